"""Choices of kernels by name, and the preferences of ChooseKernels whose kernels an artifact then holds. Knows no TVM."""

KERNELS = {
    "auto": ("smallest", "balanced", "fastest"),
    "smallest": ("smallest",),
    "fastest": ("fastest",),
    # FlexNN's fixed order (flexcomp/network/fixed_order.py), from the last resort to the first choice.
    "flexnn": ("smallest", "im2col_gemm", "winograd"),
}

# Element types that weights may be kept in, as `flexcomp.schedules.tiles.panel` and `blocks` have them.
WEIGHTS = ("float32", "float16", "bfloat16", "int8", "int4")
DEFAULT_MAX_ERROR = 5e-3  # of the largest output, for "auto"
RUINED = 1.0  # an error as large as the outputs, which only layers have whose values leave the range of their type

# Element types that kernels multiply: float16 on AArch64 with half precision, bfloat16 on x86-64 with AVX512_BF16 and AArch64
# with BF16, int8 for weights in blocks where the processor has dot products of bytes; "auto" chooses among float32 and the
# target's 16 bits by layer.
HALVES = ("float16", "bfloat16")
ARITHMETICS = ("float32", *HALVES, "int8", "auto")
DEFAULT_ARITHMETIC = "float32"

# Element types that states may have in memory.
STATE_TYPES = ("float32", "float16", "int8")

# In how many forms a layer's weights may lie in the file.
STORES = ("auto", "once", "prepared")
DEFAULT_STORE = "auto"

# Tokens that the caches of a folder's decoder hold, unless the model or the caller says fewer or more.
CONTEXT = 2048
