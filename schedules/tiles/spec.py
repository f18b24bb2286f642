"""Specifications of layers, without the method: the input of a kernel family."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .blocks import apart, blocks_of
from .byte_rows import ByteRows
from .epilogue import IDENTITY, Epilogue, operands
from .epilogue_names import describe
from .first_taps import FirstTaps
from .place import Place

# Element types of activations that kernels multiply, and their bytes.
ARITHMETIC = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class ConvSpec:
    """A 2-D convolution, NHWC in and out, with bias and epilogue.

    A fully connected layer of M rows is the 1×1 convolution of a 1×M image.
    """

    batch: int
    height: int
    width: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    epilogue: Epilogue = IDENTITY
    place: Place | None = field(default=None, repr=False)  # of the result, if part of a tensor
    weights: str = field(default="float32", repr=False)  # type of kept weights, where not widened (panel.py)
    integers: bool = field(default=False, repr=False)  # the input holds integers in a range of 8 bits that includes 0
    vectors: int = field(default=0, repr=False)  # of the panel, if it has those of other layers, too
    first_taps: FirstTaps | None = field(default=None, repr=False)  # where some channels lack the first row or column
    dtype: str = field(default="float32", repr=False)  # of activations, and of factors: one of ARITHMETIC

    @property
    def itemsize(self) -> int:
        """Bytes of an activation."""
        return ARITHMETIC[self.dtype]

    @property
    def read_nbytes(self) -> int:
        """Bytes of an image that are read: of what lies between strides nothing is."""
        sizes = zip((self.height, self.width), self.out_shape[1:3], self.kernel, self.stride, strict=True)
        pixels = math.prod(min(size, out * kernel) if kernel < stride else size for size, out, kernel, stride in sizes)
        return self.itemsize * pixels * self.in_channels

    @property
    def widens(self) -> bool:
        """Whether weights have another type than the factors that are made of them."""
        return self.weights not in ("float32", self.dtype)

    @property
    def bytes_in(self) -> ByteRows | None:
        """The layout of the input, if its rows are in 8 bits, as weights in blocks want whose taps are together."""
        form = blocks_of(self.weights)
        return ByteRows(self.in_channels, form.size) if form and form.together > 1 else None

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of the tensor that the kernel reads as its input."""
        columns = self.bytes_in.nbytes if self.bytes_in else self.in_channels
        return (self.batch, self.height, self.width, columns)

    @property
    def computed_in(self) -> str:
        """The type of the factors."""
        return "int8" if self.bytes_in else self.dtype

    @property
    def x_dtype(self) -> str:
        return "int8" if self.bytes_in else self.dtype

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The result's shape, and that of the tensors that the epilogue reads."""
        return (self.batch, self.out_height, self.out_width, self.out_channels)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of the tensor that the kernel writes to."""
        return self.place.shape if self.place else self.out_shape

    @property
    def y_start(self) -> int:
        """Where the result begins in that tensor, in elements."""
        return self.place.start if self.place else 0

    @property
    def y_stride(self) -> int:
        """Elements of that tensor from one pixel of the result to the next."""
        return self.place.stride if self.place else self.out_channels

    @property
    def out_height(self) -> int:
        top, _, bottom, _ = self.padding
        return (self.height + top + bottom - self.dilation[0] * (self.kernel[0] - 1) - 1) // self.stride[0] + 1

    @property
    def out_width(self) -> int:
        _, left, _, right = self.padding
        return (self.width + left + right - self.dilation[1] * (self.kernel[1] - 1) - 1) // self.stride[1] + 1

    @property
    def depthwise(self) -> bool:
        """Every channel has its own filter and nothing else."""
        return self.groups > 1 and self.groups == self.in_channels == self.out_channels

    @property
    def pointwise(self) -> bool:
        """A matrix product over all pixels: neighbours do not matter."""
        return self.kernel == self.stride == (1, 1) and not any(self.padding)

    @property
    def group_in(self) -> int:
        return self.in_channels // self.groups

    @property
    def group_out(self) -> int:
        return self.out_channels // self.groups

    @property
    def taps(self) -> int:
        """Products summed for one output."""
        return self.kernel[0] * self.kernel[1] * self.group_in

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.out_height * self.out_width * self.out_channels * self.taps

    @property
    def tensors(self) -> int:
        """Extra inputs of the output's shape that the epilogue reads."""
        return operands(self.epilogue, "tensor")

    @property
    def channel_vectors(self) -> int:
        """Per-channel vectors of the panel, besides the bias: those that the epilogue reads, and maybe others."""
        return max(self.vectors, operands(self.epilogue, "channel"))

    def __str__(self) -> str:
        kernel = f"{self.kernel[0]}×{self.kernel[1]}"
        extra = "".join(
            text
            for wanted, text in (
                (self.stride != (1, 1), f" stride {self.stride[0]}"),
                (self.dilation != (1, 1), f" dilation {self.dilation[0]}"),
                (self.groups > 1, f" groups {self.groups}"),
            )
            if wanted
        )
        epilogue = describe(self.epilogue)
        return (
            f"{kernel} {self.in_channels}→{self.out_channels} @ {self.out_height}×{self.out_width}{extra}"
            + (f" +{epilogue}" if epilogue else "")
            + (f" into {self.place}" if self.place else "")
            + (f", {apart(self.weights)}" if self.widens else "")
            + (f", computed in {self.computed_in}" if self.computed_in != "float32" else "")
        )


@dataclass(frozen=True)
class MatmulSpec:
    """A batched product of two activations: [batch, m, k] × [batch, k, n] → [batch, m, n].

    An operand with a batch of one is shared by the whole batch.
    """

    batch: int
    m: int
    n: int
    k: int
    left_shared: bool = False
    right_shared: bool = False
    epilogue: Epilogue = IDENTITY
    dtype: str = field(default="float32", repr=False)  # as of ConvSpec

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (self.batch, self.m, self.n)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def tensors(self) -> int:
        return operands(self.epilogue, "tensor")

    def __str__(self) -> str:
        epilogue = describe(self.epilogue)
        return f"{self.batch}×[{self.m}×{self.k}·{self.k}×{self.n}]" + (f" +{epilogue}" if epilogue else "")


Spec = ConvSpec | MatmulSpec  # of a layer that has a choice of kernels


def identity(spec: Spec) -> str:
    """Tells layers apart whose kernels take different times; layers that lie elsewhere are the same."""
    if not isinstance(spec, ConvSpec):
        return repr(spec)
    kept = f" {spec.weights}" if spec.widens else ""
    computed = f" in {spec.dtype}" if spec.dtype != "float32" else ""
    integers = " times integers" if kept and spec.integers else ""
    return f"{spec!r}{kept}{integers}{computed}" + (f" {spec.first_taps}" if spec.first_taps else "")
