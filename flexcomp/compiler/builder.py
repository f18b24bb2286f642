"""`build`: the way from a model to an artifact."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import tvm

from flexcomp.cache import KernelCache
from flexcomp.deferred import Deferred
from flexcomp.device import (
    CompileTarget,
    DeviceProfile,
    guessed_profile,
    machine_of,
    require_supported,
    resolve_target,
    with_arithmetic,
    with_tf32,
)
from flexcomp.errors import InputError
from flexcomp.frontend import CustomOperator, Imported, load_model, load_shapes, title_of
from flexcomp.gc_threshold import high_gc_threshold
from flexcomp.network import Network, PaddedRows, Planning, fixed_order, in_bands, in_one_file, kernel_sets, over_valid
from flexcomp.profiling import Database, Measurements
from flexcomp.renamed import renamed
from flexcomp.report import shown
from flexcomp.runtime import Padding, parse_budget
from flexcomp.schedules import byte_products
from flexcomp.schedules.tiles.blocks import INT4
from flexcomp.schedules.tiles.panel import WEIGHT_DTYPES

from .alike import alike_layers
from .artifact import Artifact
from .auto_arithmetic import ChosenArithmetic, TypesOfBytes, TypesOfHalf
from .auto_arithmetic import choose as choose_arithmetic
from .auto_shapes import OtherShape
from .auto_weights import Chosen
from .auto_weights import choose as choose_types
from .c_code import require_right
from .calibration import Given
from .code import Code
from .kernel_compiler import KernelCompiler
from .known import DEFAULT_ARITHMETIC, DEFAULT_STORE
from .lowering import compiled_here, fuse_layers, lower_layers, lowered_here
from .options import Options, Request, Weights, options_of
from .padding import lengths_served, padded_rows, rows_of, tried_padding
from .prepared import Prepared, Progress, artifact_of_shapes
from .probing import probed
from .shapes import require_common, shape_with
from .state import changing, required_states, written_out
from .state_types import StateTypes, require_alike
from .weight_types import TypesInOrder, WeightTypes
from .weights import evaluate

_log = logging.getLogger(__name__)


@renamed(device="profile")
def build(
    model: str | Path | onnx.ModelProto | tvm.IRModule,
    target: str | dict | tvm.target.Target = "native",
    budget: int | float | str | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, int]] | None = None,
    params: Mapping[str, object] | Sequence[object] | None = None,
    threads: int | None = None,
    strategy: str = "best",
    kernels: str = "auto",
    profile: DeviceProfile | str | Path | None = None,
    tuning: str | Path | None = None,
    progress: Progress | bool | None = None,
    cache: bool = True,
    weights: str | Mapping[str, str] | None = None,
    max_error: float | None = None,
    calibration: Given = None,
    probe: bool | str | Path | None = None,
    store: str = DEFAULT_STORE,
    state: Mapping[str, str] | None = None,
    state_type: str | Mapping[str, str] | None = None,
    pad: Mapping[str, int | float] | None = None,
    input_values: Mapping[str, Any] | None = None,
    tf32: bool = False,
    arithmetic: str = DEFAULT_ARITHMETIC,
    custom_operators: Sequence[CustomOperator] | None = None,
) -> Artifact:
    """Compile a network for a target and a memory budget.

    The model and its inputs:
    `model`: the path of an ONNX file, an `onnx.ModelProto`, or a Relax module with weights as constants or as `params`.
    `target`: "native", the name of a board, or a target of TVM.
    `budget`: bytes as a number, "64MB" or "64MiB"; a fraction of the resident size as 0.1 or "10%"; "min"; or "all" for
    everything resident. The artifact has a plan for this budget and a ladder of plans for others; None: only the ladder.
    `input_shapes`: the shapes of inputs with dynamic axes, by input: `{"x": (1, 3, 224, 224)}`.
    `shapes`: for names in `input_shapes`, the extents that the library is built for: `{"n": [16, 64]}` with `{"x": (1, "n")}`;
    or a list of combinations, `[{"h": 32, "w": 64}]`.
    `pad`: numbers by input. A session pads inputs of other extents with them, if the build finds that outputs do not change.
    `input_values`: numbers or arrays by input, `{"sr": 16000}`. These inputs are constants of the network.
    `state`: outputs that become inputs of the next inference, `{"h_out": "h_in"}`. A * on both sides stands for the same text:
    `{"present.*": "past_key_values.*"}`. An input with its own name stays as it is set. States are zeros at first. `run` neither
    takes nor returns them; `Session.state` does.
    `state_type`: the type of caches of keys and values in memory, "float32", "float16" or "int8" (a scale for each row of a
    head); or types by patterns of inputs' names, the last match counts. States that more than attention reads keep their type,
    with a warning.
    `custom_operators`: operators of the model that flexcomp lacks, or that are to be computed in another way.

    Weights and arithmetic:
    `weights`: the type in the file and in memory: "float32", "float16", "bfloat16", "int8" or "int4"; or types by patterns of
    ONNX nodes' names, where the last match counts: `{"*": "int8", "/head/*": "float32"}`. None rounds no weight. "auto" chooses
    for each layer the type with the fewest bytes, so that no output differs from the float32 network's by more than `max_error`
    of its largest element (None: 0.005) on the `calibration` inputs.
    `calibration`: arrays by input name, several such dicts, or an .npz file; None: random inputs with a fixed seed.
    `arithmetic`: "float32"; "float16", on AArch64 with half precision, or "bfloat16", on x86-64 with AVX512_BF16 and AArch64
    with BF16: weights and activations are of this type, and layers whose weights have another type or do not fit compute in
    float32, with `calibration` also layers whose values leave the type's range on these inputs; "auto": these 16 bits in as
    many layers as `max_error` allows on the `calibration` inputs; "int8": layers with weights in blocks multiply activations
    that are rounded to 8 bits, on processors with dot products of bytes, and with `max_error` or `calibration` only as far as
    these allow. Inputs and outputs keep their types.
    `tf32`: True multiplies on tensor cores of GPUs from sm_80 on. Operands are rounded to ten bits of mantissa; sums are float32.
    `store`: the forms of weights in the file. "once": the form of each layer's smallest kernel; loading prepares other forms.
    "prepared": the forms of all kernels in plans. "auto": as "once", with up to a quarter more bytes for second forms where
    preparing is impossible, or slower than reading.

    Planning:
    `threads`: compute threads; None: one for each core of the target.
    `kernels`: "smallest", "fastest", or "auto": for every budget the fastest kernels that fit. "flexnn" is FlexNN's order, for
    comparison: the first of Winograd, im2col and direct that fits.
    `strategy`: the planner; all but "best" are for comparison.
    `profile`: measured rates of the machine that will run the network, as an object or a file of `flexcomp profile`.
    `probe`: without a profile, a build for this machine measures the storage of this folder (None: the current one) and a core,
    once, in a second or two. False, or FLEXCOMP_PROBE=0, measures nothing: plans then use rates that are guessed from the target.
    `tuning`: a database of `flexcomp.tune`. Its times decide which kernels are fastest.

    The build itself:
    `cache`: True keeps machine code of kernels for later builds, in FLEXCOMP_CACHE or the user's folder for caches.
    `progress`: a function that is called with (phase, done, total); True shows progress, False does not; None: in terminals and
    notebooks only.

    Raises ModelError, UnsupportedModelError, TargetError, BudgetError or InputError; TuningError for a broken database.
    """
    request = Request(parse_budget(budget), strategy)
    options = options_of(
        input_shapes=input_shapes, shapes=shapes, params=params, threads=threads, kernels=kernels, profile=profile, tuning=tuning,
        cache=cache, weights=weights, max_error=max_error, calibration=calibration, probe=probe, store=store, state=state,
        state_type=state_type, pad=pad, input_values=input_values, tf32=tf32, arithmetic=arithmetic,
        custom_operators=custom_operators,
    )  # fmt: skip
    compiling = KernelCompiler(KernelCache() if cache else None)
    with high_gc_threshold(), shown(progress, title_of(model)) as report, compiling as compiler:
        prepared = prepare_shapes(model, target, options, progress=report, compiler=compiler)
        return artifact_of_shapes(prepared, request, report)


def prepare(
    model: str | Path | onnx.ModelProto | tvm.IRModule,
    target: str | dict | tvm.target.Target = "native",
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    compiler: KernelCompiler | None = None,
) -> Prepared:
    """The first half of `build`, without budget and strategy, for one shape: the second half can run several times.

    Errors are those of `build`. With a `compiler`, kernels for every budget are compiled there as soon as
    they are known.
    """
    (prepared,) = prepare_shapes(model, target, options, progress=progress, compiler=compiler)
    return prepared


def prepare_shapes(
    model: str | Path | onnx.ModelProto | tvm.IRModule,
    target: str | dict | tvm.target.Target = "native",
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    compiler: KernelCompiler | None = None,
) -> tuple[Prepared, ...]:
    """As `prepare`, for each of the declared shapes, the largest first; all networks have the same weights."""
    report = progress or (lambda phase, done, total: None)
    options = options or Options()
    machine, cache, kernels = options.machine, options.cache, options.kernels
    resolved = resolve_target(target)
    require_supported(resolved)
    if options.gpu.tf32:
        resolved = with_tf32(resolved)
    resolved = with_arithmetic(resolved, options.weights.arithmetic)
    compiling = compiler or KernelCompiler(KernelCache() if cache else None)
    compiling.require(resolved)
    profile = machine.profile or guessed_profile(resolved)
    threads = _threads(machine.threads, resolved, kernels)

    measured = None if machine.tuning is None else Measurements(Database.read(machine.tuning), str(resolved), threads)

    declared = options.model.declared
    if resolved.gpu and options.model.pad is not None:
        raise InputError(f"pad: a GPU computes ({resolved}), for which inputs are not padded: leave pad out")
    report("import", 0, len(declared))
    of, inputs, shapes = options.model, [shape.inputs for shape in declared], []
    states = partial(written_out, changing(of.state))
    for one in load_shapes(model, inputs, of.params, of.custom_operators, states, of.input_values):
        shapes.append(one)
        report("import", len(shapes), len(declared))
    imported = shapes[0]
    for one in shapes:
        require_right(one.mod, resolved, KernelCache() if cache else None)
    pairs = [required_states(options.model.state, one) for one in shapes]
    require_common(shapes, declared, pairs[0])
    padding, over = _padding(model, options, shapes, threads, report)
    types, chosen = types_of(shapes, options.weights, resolved, report, cache, list(map(str, declared)))
    if machine.profile is None:  # not before: probing takes a second and writes a file; nor while kernels compile on all cores
        profile = probed(target, machine.probe, lambda note: report(note, 1, 1)) or profile
    if not resolved.gpu:
        profile = replace(profile, cores=profile.cores or resolved.num_cores)
    unit = machine_of(resolved, profile, threads)
    code = Code(resolved, KernelCache() if cache else None)
    begin = (lambda kernels, layers: compiler.begin(code.of(kernels, layers)[1], resolved)) if compiler is not None else None
    kept = [StateTypes(options.model.state_type, one, of, resolved) for one, of in zip(shapes, pairs, strict=True)]
    rows = None if padding is None else padding.rows
    fused = [
        fuse_layers(one, resolved, measured, report, of, states=in_memory, padded=rows is not None)
        for one, of, in_memory in zip(shapes, types, kept, strict=True)
    ]
    require_alike(fused, shapes, declared)
    if options.weights.unlimited:
        _log.warning(
            "arithmetic='float16': values beyond 65504 become infinite, and weights alone do not tell whether the network has "
            "any; with calibration=… (--calibration) the build looks, and layers with such values stay float32"
        )
    if resolved.computes_bytes and not options.weights.measured and not types[0].multiplies_bytes:
        _log.warning(
            "arithmetic='int8' is for dense layers with weights in blocks, and the network has none: all layers are computed in "
            "float32; weights='int4' makes blocks of a float network's weights"
        )
    alike = alike_layers(fused, [one.weights for one in shapes]) if len(shapes) > 1 else {}
    told = [
        padded_rows(options.model.input_shapes, rows, shape, over.get(index)) for index, shape in enumerate(declared)
    ]
    store, late = options.weights.store, profile.prepared_late
    unit = replace(unit, padded=tuple(lengths_served(declared, rows))) if rows is not None else unit
    made: dict[bytes, Deferred] | None = {} if len(shapes) > 1 else None
    networks = [
        lower_layers(
            one, mod, resolved, unit, kernels, measured, report, store, late, begin, states, alike, padded=rows_told, made=made,
        )
        for one, mod, states, rows_told in zip(shapes, fused, pairs, told, strict=True)
    ]
    if len(shapes) > 1:
        networks = list(in_one_file(networks))
    if measured is not None:
        report(f"tuning: {measured.note()}", 1, 1)
    result = []
    for network, shape in zip(networks, declared, strict=True):
        planned = _planned(network, kernels, profile, threads)
        extents = shape.extents if len(shapes) > 1 else {}  # a library of one shape is the same, however it was declared
        pads = padding if not result else None
        result.append(Prepared(imported.name, code, threads, kernels, profile, planned, compiling, chosen, extents, pads))
    return tuple(result)


def _planned(network: Network, kernels: str, profile: DeviceProfile, threads: int) -> Planning:
    """A network in all its forms."""
    if kernels == "flexnn":
        return fixed_order.planning(network, profile, threads)
    return in_bands(kernel_sets.planning(network, profile, threads), profile, threads)


def _threads(asked: int | None, target: CompileTarget, kernels: str) -> int:
    """Compute threads that plans are made for; for a GPU the one that launches kernels.

    Raises InputError for options that a GPU lacks.
    """
    if target.gpu:
        if asked not in (None, 1):
            raise InputError(f"threads={asked}: a GPU computes ({target}), whose threads are not chosen; leave threads out")
        if kernels == "flexnn":
            raise InputError(f"kernels='flexnn' is an order of kernels for CPUs, and a GPU computes ({target})")
        return 1
    if asked is not None and asked > (target.known_cores or asked):
        _log.warning("%s threads would share %s: fewer are faster", asked, _cores(target))
    return asked or target.num_cores


def types_of(
    shapes: Sequence[Imported],
    options: Weights,
    target: CompileTarget,
    report: Progress,
    cache: bool,
    names: Sequence[str] = ("",),
) -> tuple[list[WeightTypes], tuple[Chosen | ChosenArithmetic, ...]]:
    """The types of weights for passes to ask for, of a network in each of its shapes, which have `names`; and how types were
    chosen, by their errors. Weights that are chosen for activations in 8 bits get half of the error; all of it is that from
    float32.

    Raises InputError for types that there are not or that the target does not widen, and for calibration inputs that do not
    fit the network.
    """
    on_weights = [partial(evaluate, weights=one.weights) for one in shapes]
    offered = [kind for kind in WEIGHT_DTYPES if kind != "float16" or target.converts_float16]
    offered += [] if target.gpu else [INT4]
    if not options.measured:
        usual = target.half or None
        together = partial(byte_products.together, unit=target.vector_unit) if target.computes_bytes else lambda kept: ""
        return [WeightTypes(options.types, one, offered=offered, usual=usual, together=together) for one in on_weights], ()
    in_order = [lambda types, one=one: TypesInOrder(types, one, offered) for one in on_weights]
    rounded_for = target if target.half else None
    lower = [partial(lowered_here, one, rounded_for=rounded_for) for one in shapes]
    compiled = partial(compiled_here, shapes[0].name, cache)
    others = [OtherShape(name, one, compiled, kept) for name, one, kept in zip(names[1:], lower[1:], in_order[1:], strict=True)]
    given, most = options.calibration, options.max_error
    chosen: tuple[Chosen | ChosenArithmetic, ...] = ()
    usual, judge = WeightTypes(options.types, on_weights[0], offered=offered) if options.types != "auto" else None, None
    if usual is None:
        allowed = most if options.arithmetic == "float32" else most / 2
        chosen = (choose_types(lower[0], compiled, on_weights[0], given, allowed, offered, report, names[0], others),)
        usual, judge = in_order[0](chosen[0].types), partial(WeightTypes, "float32", on_weights[0], offered=offered)
    if options.arithmetic != "float32":
        if options.arithmetic == "int8":
            usual = TypesOfBytes(usual, on_weights[0], offered, target.vector_unit)
        else:
            usual = TypesOfHalf(on_weights[0], offered, target.half)
        found = choose_arithmetic(lower[0], compiled, usual, in_order[0], given, most, report, names[0], others, judge)
        chosen = (*chosen, found)
    return [one(chosen[-1].types) for one in in_order], chosen


def _padding(
    model: Any, options: Options, networks: Sequence[Imported], threads: int, report: Progress
) -> tuple[Padding | None, Mapping[int, int]]:
    """What sessions pad with, tried on this machine; and by shape how many kernels must leave out padded rows."""
    if (of := options.model).pad is None:
        return None, {}

    def loaded(extents: Mapping[str, int]) -> Imported:
        fixed = shape_with(of.input_shapes, extents).inputs
        return load_model(model, fixed, of.params, of.custom_operators, values=of.input_values)

    rows = rows_of(of.input_shapes)
    served = lengths_served(of.declared, rows) if rows is not None else ()

    def compiled(network: Imported, padded: PaddedRows | None, pads: Padding | None) -> tuple[Artifact, int]:
        types = WeightTypes("float32", partial(evaluate, weights=network.weights), offered=WEIGHT_DTYPES)
        lowered = lowered_here(network, types, padded=padded, threads=threads, served=served)
        return compiled_here(network.name, options.cache, lowered, pads, threads), over_valid(lowered.layers)

    return tried_padding(of.pad, of.input_shapes, of.declared, networks, loaded, compiled, report)


def _cores(target: CompileTarget) -> str:
    return f"the target's {target.known_cores} core{'s' * (target.known_cores > 1)}"
