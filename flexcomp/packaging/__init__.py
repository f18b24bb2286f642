"""Everything that a board needs to run a compiled network, in one folder: runner, libraries, weights.

`device_files.py` compiles or fetches the other files.
"""

from .device_files import LIBRARY, device_files, ffi_library, library_for, program_for
from .package import package, require_new, write_package

__all__ = ["LIBRARY", "device_files", "ffi_library", "library_for", "package", "program_for", "require_new", "write_package"]
