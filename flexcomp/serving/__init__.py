"""A pool of networks over HTTP: the Open Inference Protocol, which KServe, Triton and their clients speak.

`protocol` turns requests into arrays and arrays into responses; `models` are the libraries that may be loaded; `inference`
computes what one request asks, and `account` counts and logs each; `app` has the routes, and `server` the socket and the end.
`language` and the files `openai_` are for text: decoders, by OpenAI's protocol; `whole` parts the budget.
Needs the extra `serve`.
"""

from flexcomp.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    app="make_app",
    auth="read_token",
    budget="requests_nbytes",
    language="LanguageModel is_decoder needs_of",
    limits="Room",
    logs="FORMATS log_to_stderr",
    memory="keep_freed_memory",
    metrics="Metrics",
    models="Models libraries_in",
    server="bind serve",
    service="Service",
    whole="Whole parted pool_part",
)
