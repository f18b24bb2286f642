"""The report on a library as one HTML file, which loads nothing: figures as JSON, and the script that draws them.

`data.py` gathers the figures, `coding.py` shortens them, `page.py` joins them with the style and the scripts next to it.
"""

from flexcomp.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, data="report_data", page="write_report")
