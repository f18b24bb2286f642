"""The lowered network in all its forms: layers, values, and where weights lie, between the passes and the planner.

`lower.py` makes it, `variants.py` merges the choices of kernels, `forms.py` turns it into problems of the planner.
"""

from .bands.forms import in_bands
from .candidates import layer_candidates
from .forms import Form, Planning, form_of, planned_layer
from .kernel_sets import FitToBudget
from .lower import lower
from .lowered import Lowered
from .one_file import in_one_file
from .states import VIEWS
from .used import used
from .valid_rows import PaddedRows, ValidRows, over_valid
from .variants import BandKernel, Network, merge

__all__ = [
    "VIEWS",
    "BandKernel",
    "Form",
    "Lowered",
    "Network",
    "PaddedRows",
    "Planning",
    "ValidRows",
    "FitToBudget",
    "form_of",
    "in_bands",
    "in_one_file",
    "layer_candidates",
    "lower",
    "merge",
    "over_valid",
    "planned_layer",
    "used",
]
