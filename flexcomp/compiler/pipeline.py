"""The order of all passes, in phases; a comment states the invariant after each phase."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir.transform import Pass, Sequential

from flexcomp.network import VIEWS
from flexcomp.passes import (
    AbsorbConversions,
    Canonicalise,
    CheckIndices,
    ChooseKernels,
    FoldBatchNorm,
    FuseAttention,
    FuseGeneric,
    FuseLayers,
    GatherBeforeSpreading,
    KeepConstantOutputs,
    KeepIntegers,
    KeepSpreading,
    LowerAttention,
    LowerOperators,
    LowerRecurrence,
    MultiplyIntegers,
    NarrowActivations,
    NarrowStates,
    NarrowWeights,
    PlaceParts,
    PretransformWeights,
    QuantiseActivations,
    RecogniseNorms,
    ReduceBroadcasts,
    SharePanels,
    ShareWeights,
    SinkBroadcasts,
    SliceEmbeddings,
    SliceLayers,
    SplitProducts,
    StateSlot,
    ToNHWC,
    ToTwoDimensions,
    Widen,
)
from flexcomp.passes.choose_kernels import Alike, Measured
from flexcomp.passes.fuse_attention import Evaluate
from flexcomp.passes.legalise import LEGALISATIONS
from flexcomp.passes.narrow_states import Refused
from flexcomp.passes.weights import WeightType
from flexcomp.schedules.registry import Machine

# Ctrl-C in a pass, which C++ calls, comes out of C++ unchanged, not as one of TVM's errors.
tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)


def simplify() -> list[Pass]:
    """Floats of 32 bits or more, integers of quantised tensors among them; one dataflow block in A-normal form; constants as
    small as their readers need; batch norms folded; convolutions of images, in NHWC; norms of rows are operators."""
    return [
        Widen(), Canonicalise(), SinkBroadcasts(), KeepIntegers(), FoldBatchNorm(), ToTwoDimensions(), ToNHWC(), Canonicalise(),
        RecogniseNorms(),
    ]  # fmt: skip


def transformers(
    unit: Machine,
    evaluate: Evaluate,
    weight_type: WeightType = lambda names, weight: "float32",
    measured: Measured | None = None,
    slots: Sequence[StateSlot] = (),
    refused: Refused = lambda slot, reader: None,
    padded: bool = False,
) -> list[Pass]:
    """Indices are checked; attention, large embeddings and recurrences are calls of kernels; products and sums take
    the place of broadcasts; integers are multiplied as they are; weights of custom operators have an element type, and states
    that of their slots.

    `evaluate` gives the result of a function of the weights; recurrences have the kernels that `measured` times speak for;
    `refused` is told of states that stay as they are. Of `padded` inputs attention may know the valid rows.
    """
    return [
        CheckIndices(evaluate),
        FuseAttention(unit, evaluate, padded),
        GatherBeforeSpreading(),
        SplitProducts(),
        MultiplyIntegers(unit, weight_type),
        ReduceBroadcasts(),
        LowerAttention(unit),
        NarrowStates(unit, slots, refused),
        SliceEmbeddings(unit, weight_type),
        LowerRecurrence(unit, weight_type, measured or (lambda spec: {})),
        NarrowWeights(weight_type),
    ]


def fuse(
    unit: Machine, weight_type: WeightType = lambda names, weight: "float32", rounded_for: Machine | None = None
) -> list[Pass]:
    """Anchors and their epilogues are functions, whose weights and activations have element types; equal weights are one
    variable, and layers that have the same ones take the same vectors.

    With `rounded_for`, float32 is rounded where that machine would have float16.
    """
    narrow = NarrowActivations(unit) if rounded_for is None else NarrowActivations(rounded_for, rounded=True)
    return [FuseLayers(weight_type), narrow, QuantiseActivations(unit), PlaceParts(), ShareWeights(), SharePanels()]


def choose(
    unit: Machine, kernels: str = "smallest", measured: Measured | None = None, alike: Alike | None = None
) -> list[Pass]:
    """These functions have a chosen kernel; `kernels` is the preference, `alike` are layers of other shapes."""
    return [ChooseKernels(unit, kernels, measured, alike)]


def pack(unit: Machine, padded: bool = False) -> list[Pass]:
    """Layers are calls of their kernels on packed weights, which may know the valid rows of `padded` inputs; equal ones are one
    variable."""
    return [SliceLayers(unit), PretransformWeights(unit, padded), ShareWeights()]


def layers(unit: Machine, kernels: str = "smallest", measured: Measured | None = None) -> list[Pass]:
    """All of these."""
    return [*fuse(unit), *choose(unit, kernels, measured), *pack(unit)]


def separate_weights() -> list[Pass]:
    """`main` takes transformed weights; `main_transform_params` makes them of the raw ones, but for those that stay operators."""
    return [KeepSpreading(), KeepConstantOutputs(), relax.transform.LiftTransformParams()]


def operators(unit: Machine) -> list[Pass]:
    """Every operator is a kernel call or a view; operators without a family are fused and legalised by TVM."""
    return [
        LowerOperators(unit),
        AbsorbConversions(unit),
        relax.transform.LegalizeOps(LEGALISATIONS, skip_ops=[f"relax.{view}" for view in VIEWS]),
        FuseGeneric(),
        relax.transform.DeadCodeElimination(),
    ]


def run(mod: tvm.IRModule, passes: list[Pass], name: str) -> tvm.IRModule:
    """Apply a phase."""
    return Sequential(passes, name=name)(mod)
