"""One IR pass per file, on Relax, put in order by `flexcomp.compiler.pipeline`; AlignStack, DefineCalled, HideValues,
LowerBFloat16 and ShowValues are on TIR."""

from .absorb_conversions import AbsorbConversions
from .align_stack import AlignStack
from .canonicalise import Canonicalise
from .check_indices import CheckIndices
from .choose_kernels import ChooseKernels
from .define_called import DefineCalled
from .fold_batch_norm import FoldBatchNorm
from .fuse_attention import FuseAttention
from .fuse_generic import FuseGeneric
from .fuse_layers import FuseLayers
from .gather_before_spreading import GatherBeforeSpreading
from .hide_values import HideValues, ShowValues
from .keep_constant_outputs import KeepConstantOutputs
from .keep_integers import KeepIntegers
from .keep_spreading import KeepSpreading
from .lower_attention import LowerAttention
from .lower_bfloat16 import LowerBFloat16
from .lower_operators import LowerOperators
from .lower_recurrence import LowerRecurrence
from .multiply_integers import MultiplyIntegers
from .narrow_activations import NarrowActivations
from .narrow_states import NarrowStates, StateSlot
from .narrow_weights import NarrowWeights
from .nhwc import ToNHWC
from .place_parts import PlaceParts
from .pretransform_weights import PretransformWeights
from .quantise_activations import QuantiseActivations
from .recognise_norms import RecogniseNorms
from .reduce_broadcasts import ReduceBroadcasts
from .share_panels import SharePanels
from .share_weights import ShareWeights
from .sink_broadcasts import SinkBroadcasts
from .slice_embeddings import SliceEmbeddings
from .slice_layers import SliceLayers
from .split_products import SplitProducts
from .two_dimensions import ToTwoDimensions
from .widen import Widen

__all__ = [
    "AbsorbConversions",
    "AlignStack",
    "Canonicalise",
    "CheckIndices",
    "ChooseKernels",
    "DefineCalled",
    "FoldBatchNorm",
    "FuseAttention",
    "FuseGeneric",
    "FuseLayers",
    "GatherBeforeSpreading",
    "HideValues",
    "KeepConstantOutputs",
    "KeepIntegers",
    "KeepSpreading",
    "LowerAttention",
    "LowerBFloat16",
    "LowerOperators",
    "LowerRecurrence",
    "MultiplyIntegers",
    "NarrowActivations",
    "NarrowStates",
    "NarrowWeights",
    "PlaceParts",
    "PretransformWeights",
    "QuantiseActivations",
    "RecogniseNorms",
    "ReduceBroadcasts",
    "SharePanels",
    "ShareWeights",
    "ShowValues",
    "SinkBroadcasts",
    "SliceEmbeddings",
    "SliceLayers",
    "SplitProducts",
    "StateSlot",
    "ToNHWC",
    "ToTwoDimensions",
    "Widen",
]
