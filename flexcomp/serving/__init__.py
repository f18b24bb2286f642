"""A pool of networks over HTTP: the Open Inference Protocol, which KServe, Triton and their clients speak.

`protocol` turns requests into arrays and arrays into responses; `models` are the libraries that may be loaded; `inference`
carries one request from its headers to its answer; `app` has the routes, and `server` the socket and the end.
Needs the extra `serve`.
"""

from flexcomp.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    app="make_app",
    auth="read_token",
    budget="requests_nbytes",
    inference="Service",
    limits="Room",
    logs="FORMATS log_to_stderr",
    memory="keep_freed_memory",
    metrics="Metrics",
    models="Models libraries_in",
    server="bind serve",
)
