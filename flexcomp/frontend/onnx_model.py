"""ONNX before TVM sees it: reading, checking, fixing the input shapes, simplifying."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from flexcomp.deferred import Array
from flexcomp.errors import InputError, ModelError, UnsupportedModelError
from flexcomp.frontend import onnx_file
from flexcomp.frontend.allowance import Allowance
from flexcomp.frontend.cache_branch import take_cache_branch
from flexcomp.frontend.cache_patterns import recognise_cache_writes
from flexcomp.frontend.choices import Choice, quieten
from flexcomp.frontend.contrib import adopt_norms
from flexcomp.frontend.control_flow import write_out
from flexcomp.frontend.course import require_known_course
from flexcomp.frontend.custom import CustomOperator, Taught, teach
from flexcomp.frontend.define import define_operators
from flexcomp.frontend.domains import DEFAULT, require_fixed, require_own_domain
from flexcomp.frontend.dropouts import write_dropouts
from flexcomp.frontend.element_types import require_known_types
from flexcomp.frontend.encoder_files import EncoderFiles
from flexcomp.frontend.external_data import ExternalFiles, constants_as_weights, external_tensors, hold, locations
from flexcomp.frontend.fixed_inputs import fix_inputs
from flexcomp.frontend.fold import fold_constants
from flexcomp.frontend.functions import expand_functions, inline_local_functions
from flexcomp.frontend.growing_caches import fit_growing_caches
from flexcomp.frontend.inference import PROTOBUF_LIMIT, forget_shapes, inferred_shapes, require_consistent
from flexcomp.frontend.large_weights import LEAST_NBYTES, copy_without_large, names_read, set_aside
from flexcomp.frontend.noise import silence_noise
from flexcomp.frontend.order import sort_nodes
from flexcomp.frontend.precision import widen
from flexcomp.frontend.quantised import compute_on_integers
from flexcomp.frontend.ranges import require_countable
from flexcomp.frontend.schemas import leave_out_empty_words, write_onesided
from flexcomp.frontend.selected_count import count_selected
from flexcomp.frontend.sequences import require_known_sequences, write_sequences
from flexcomp.frontend.slimming import slim
from flexcomp.frontend.tensor_shapes import MOST_ELEMENTS

Extents = tuple[int | None, ...]
States = Callable[[Collection[str]], Mapping[str, str]]


@dataclass(frozen=True)
class OnnxModel:
    """A checked model, and its large weights, for which inputs stand in."""

    proto: onnx.ModelProto
    large: dict[str, Array]
    name: str
    defaults: frozenset[str] = frozenset()  # weights that are listed as inputs, too
    allowance: Allowance = field(default_factory=Allowance)  # for what is written out
    taught: Taught = field(default_factory=Taught)

    def copy(self) -> OnnxModel:
        """The same model, to be simplified, with the same large weights."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        return replace(self, proto=proto, allowance=replace(self.allowance))


def read_onnx(source: str | Path | onnx.ModelProto | EncoderFiles, operators: Sequence[CustomOperator] = ()) -> OnnxModel:
    """A copy of the model with its weights read, in which nodes of custom operators are marked."""
    if isinstance(source, onnx.ModelProto):
        model, raw = copy_without_large(source)
        where, folder, name = "the given ONNX model", None, source.graph.name or "model"
    elif isinstance(source, EncoderFiles):
        model, raw = source.parse(_parse)
        where, folder, name = str(source.encoder), source.encoder.parent, source.encoder.stem
    elif isinstance(source, str | os.PathLike) and isinstance(os.fspath(source), str):
        path = Path(source)
        model, raw = _parse(path)
        where, folder, name = str(path), path.parent, path.stem
    else:
        raise InputError(
            f"a model is a path, an onnx.ModelProto or a tvm.IRModule, not {type(source).__module__}."
            f"{type(source).__name__}"
        )
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{where} is not an ONNX model: it holds no graph")
    _require_versions(model, where)
    sort_nodes(model)
    leave_out_empty_words(model)
    write_onesided(model)
    defaults = frozenset({i.name for i in model.graph.input} & {t.name for t in model.graph.initializer})
    large = _load_weights(model, raw, where, folder)
    taught = teach(model, operators)
    adopt_norms(model)
    _check(model, where)
    allowance = Allowance()
    return OnnxModel(inline_local_functions(model, allowance), large, name, defaults, allowance, taught)


def _parse(path: Path) -> tuple[onnx.ModelProto, dict[int, Array]]:
    """As `onnx_file.parse`. Raises ModelError."""
    with _model_errors(path):
        return onnx_file.parse(path, LEAST_NBYTES)


@contextmanager
def _model_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except DecodeError as error:
        raise ModelError(f"{path} is not an ONNX model, or it is damaged: {error}") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None


def _require_versions(model: onnx.ModelProto, where: str) -> None:
    """Refuse what is newer than the installed onnx, whose operators TVM's importer would take for older ones."""
    if not 0 < model.ir_version <= onnx.IR_VERSION:
        said = f"ir_version {model.ir_version}" if model.HasField("ir_version") else "no ir_version"
        raise ModelError(
            f"{where} says {said}: onnx {onnx.__version__} knows 1 to {onnx.IR_VERSION}; export the model again, "
            "for an older version of ONNX if it is too new"
        )
    versions = {imported.version for imported in model.opset_import if imported.domain in DEFAULT}
    newest = onnx.defs.onnx_opset_version()
    for version in versions:
        if not 0 < version <= newest:
            raise ModelError(
                f"{where} is of opset {version}: the newest that onnx {onnx.__version__} knows is {newest}; export it for "
                f"opset {newest} or an older one"
            )
    if len(versions) > 1:
        raise ModelError(f"{where} is of several opsets at once, {', '.join(map(str, sorted(versions)))}: export it again")


def _load_weights(
    model: onnx.ModelProto, raw: dict[int, Array], where: str, folder: Path | None
) -> dict[str, Array]:
    """The large weights, which the model holds no more; all others it holds itself."""
    external = next(external_tensors(model), None)
    if external is not None and folder is None:
        raise ModelError(
            f"weight {external.name!r} of {where} lies in a separate file; pass the model's path, "
            "or load it with onnx.load(path)"
        )
    constants_as_weights(model.graph)
    files = ExternalFiles(folder)
    try:
        large = set_aside(model.graph, raw, files)
        for tensor in external_tensors(model):
            hold(tensor, files.bytes(tensor))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{where} keeps weights in a separate file that cannot be read: {_one_line(error)}") from None
    return large


def external_files(path: Path) -> set[Path]:
    """The files besides `path` that hold weights of the model there. Raises ModelError if it is none."""
    return {path.parent / location for location in locations(_parse(path)[0])}


def ports_in(path: Path, states: Callable[[Collection[str]], Collection[str]] = lambda inputs: ()) -> tuple[
    dict[str, Extents], dict[str, Extents]
]:  # fmt: skip
    """The extents of a model's inputs and outputs by name; None for dynamic ones. Weights are not read. Raises ModelError.

    `states` gives those of the inputs' names that are states: of a merged decoder the branch that reads them counts.
    """
    with _model_errors(path):
        model, _ = onnx_file.parse(path, LEAST_NBYTES)
    take_cache_branch(model, states([port.name for port in model.graph.input]))
    graph = model.graph
    weights = {weight.name for weight in graph.initializer}
    return _extents(port for port in graph.input if port.name not in weights), _extents(graph.output)


def _extents(ports: Iterable[onnx.ValueInfoProto]) -> dict[str, Extents]:
    return {
        port.name: tuple(one.dim_value if one.HasField("dim_value") else None for one in port.type.tensor_type.shape.dim)
        for port in ports
    }


def _check(model: onnx.ModelProto, where: str) -> None:
    for node in model.graph.node:
        if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type):
            raise UnsupportedModelError(
                f"node {node.name or node.output[0]!r}: {node.op_type} is not an ONNX operator{_meant(node.op_type)}; "
                "`flexcomp help operators` lists those that can be compiled"
            )
    outputs = {output.name: output for output in model.graph.output}
    if len(outputs) < len(model.graph.output):  # one that is listed twice is one
        kept = list(outputs.values())
        del model.graph.output[:]
        model.graph.output.extend(kept)
    if not outputs:
        raise ModelError(f"{where} has no outputs: there is nothing to compute")
    if model.ByteSize() >= PROTOBUF_LIMIT:
        return
    try:
        with _outputs_declared(model.graph):
            onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{where} is not a valid ONNX model: {_one_line(error)}") from None


@contextmanager
def _outputs_declared(graph: onnx.GraphProto) -> Iterator[None]:
    """Outputs with some type and shape, which the checker asks for; exporters and tools that cut models leave them out."""
    declared = [onnx.TypeProto.FromString(output.type.SerializeToString()) for output in graph.output]
    for output in graph.output:
        if not output.type.WhichOneof("value"):
            output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.shape.SetInParent()
    try:
        yield
    finally:
        for output, type_ in zip(graph.output, declared, strict=True):
            output.type.CopyFrom(type_)


def simplify_onnx(
    source: OnnxModel,
    input_shapes: Mapping[str, Sequence[int]],
    states: States = lambda outputs: {},
    values: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> OnnxModel:
    """Give every input a static shape, then fold shape arithmetic and redundant nodes away. Changes `source.proto`.

    Of the large weights those that are read are left; inputs at the end of the graph stand in for them. `states` gives, of the
    outputs' names, the inputs that outputs become. Inputs with `values` are constants.
    """
    if both := [name for name in values if name in input_shapes]:
        raise InputError(f"input_values gives {both[0]!r} a value, which has a shape of its own: leave it out of input_shapes")
    large = {name: array for name, array in _without_defaults(source, {**input_shapes, **values}).items() if name not in values}
    model = source.proto
    fix_inputs(model, values)
    take_cache_branch(model, states([output.name for output in model.graph.output]).values())
    inputs = graph_inputs(model.graph, large)
    _fix_shapes(model.graph, inputs, input_shapes)
    fit_growing_caches(model, states([output.name for output in model.graph.output]))
    inputs = graph_inputs(model.graph, large)
    declared = [onnx.ValueInfoProto.FromString(i.SerializeToString()) for i in inputs]
    require_consistent(model)
    fixed = {i.name: i for i in inputs}
    define_operators(model, large)
    _forget_old_shapes(model)
    model = expand_functions(widen(model, large), source.allowance)
    count_selected(model)
    fold_constants(model, source.allowance)
    choices: list[Choice] = []
    while (
        write_out(model, source.allowance)
        or write_sequences(model, source.allowance)
        or write_out(model, source.allowance, choices)
    ):
        model = expand_functions(model, source.allowance)
        fold_constants(model, source.allowance)
    quieten(model, choices)
    write_dropouts(model)
    if silence_noise(model):
        fold_constants(model, source.allowance)
    require_known_course(model.graph)
    require_known_sequences(model)
    require_own_domain(model.graph)
    require_fixed(model.graph)
    require_known_types(model)
    require_countable(model.graph)
    model = slim(model, large)
    compute_on_integers(model)
    recognise_cache_writes(model)

    # Simplification drops inputs that nothing reads; callers still pass them.
    kept = {i.name: i for i in model.graph.input}
    read = names_read(model.graph)
    ordered = [kept.get(i.name, fixed[i.name]) for i in declared] + [kept[name] for name in large if name in read]
    ordered = [onnx.ValueInfoProto.FromString(i.SerializeToString()) for i in ordered]
    del model.graph.input[:]
    model.graph.input.extend(ordered)
    return replace(source, proto=model, large={name: array for name, array in large.items() if name in read})


def _without_defaults(source: OnnxModel, given: Collection[str]) -> dict[str, Array]:
    """Large weights but those that are to be `given`. Changes `source.proto`: small ones of that kind are gone as well.

    ONNX calls an initialiser that is listed as an input its default. It is a constant unless its shape is named as an input's.
    """
    graph, inputs = source.proto.graph, source.defaults & set(given)
    kept = [tensor for tensor in graph.initializer if tensor.name not in inputs]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)
    return {name: array for name, array in source.large.items() if name not in inputs}


def graph_inputs(graph: onnx.GraphProto, large: Collection[str]) -> list[onnx.ValueInfoProto]:
    """The inputs a caller passes: `large` weights are among them, and old files list the initialisers as inputs as well."""
    weights = {*large, *(t.name for t in graph.initializer), *(t.values.name for t in graph.sparse_initializer)}
    return [i for i in graph.input if i.name not in weights]


def _fix_shapes(
    graph: onnx.GraphProto, inputs: list[onnx.ValueInfoProto], input_shapes: Mapping[str, Sequence[int]]
) -> None:
    names = [i.name for i in inputs]
    for name in input_shapes:
        if name not in names:
            raise InputError(f"input_shapes names {name!r}, but the model's inputs are {', '.join(map(repr, names))}")
    changed = False
    for info in inputs:
        if not info.type.HasField("tensor_type"):
            raise UnsupportedModelError(f"input {info.name!r} is not a tensor: {info.type.WhichOneof('value')}")
        tensor = info.type.tensor_type
        if tensor.elem_type == onnx.TensorProto.STRING:
            raise UnsupportedModelError(f"input {info.name!r} holds strings, not numbers")
        dims = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?" for d in tensor.shape.dim]
        if info.name in input_shapes:
            shape = [int(d) for d in input_shapes[info.name]]
            if tensor.HasField("shape") and len(shape) != len(dims):
                raise InputError(f"input {info.name!r} has {len(dims)} axes {_show(dims)}; given was {_show(shape)}")
            if any(d <= 0 for d in shape):
                raise InputError(f"the shape of input {info.name!r} must be positive; given was {_show(shape)}")
            if math.prod(shape) >= MOST_ELEMENTS:
                raise InputError(f"input {info.name!r} of shape {_show(shape)} has too many elements: 2^31 or more")
            changed |= shape != dims
            del tensor.shape.dim[:]
            tensor.shape.SetInParent()
            for d in shape:
                tensor.shape.dim.add().dim_value = d
        elif not tensor.HasField("shape") or not all(isinstance(d, int) for d in dims):
            example = ",".join(map(str, _example(dims))) or "1,3,224,224"
            shown = _show(dims) if tensor.HasField("shape") else "of unknown rank"
            raise UnsupportedModelError(
                f"input {info.name!r} has a dynamic shape {shown}; fix it with "
                f"input_shapes={{{info.name!r}: ({example.replace(',', ', ')})}} or --input {info.name}:{example}"
            )
    # Shapes of results that exporters note may be wrong, or belong to other inputs; inference stops at the first that is.
    del graph.value_info[:]
    if changed:
        for info in graph.output:
            for d in info.type.tensor_type.shape.dim:
                d.Clear()


def _forget_old_shapes(model: onnx.ModelProto) -> None:
    """Give outputs the types and shapes that follow from the inputs, where these can be told.

    Exporters and tools leave old shapes in a file: of tensors that are no outputs none stays.
    """
    declared = {output.name: onnx.ValueInfoProto.FromString(output.SerializeToString()) for output in model.graph.output}
    forget_shapes(model.graph)
    inferred = {output.name: output for output in inferred_shapes(model).graph.output}
    for output in model.graph.output:
        known = inferred[output.name]
        output.CopyFrom(known if _is_static(known) or not _is_complete(declared[output.name]) else declared[output.name])


def _meant(kind: str) -> str:
    close = difflib.get_close_matches(kind, {schema.name for schema in onnx.defs.get_all_schemas()}, n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def _is_complete(info: onnx.ValueInfoProto) -> bool:
    type_ = info.type.tensor_type
    return info.type.HasField("tensor_type") and type_.elem_type != 0 and type_.HasField("shape")


def _is_static(info: onnx.ValueInfoProto) -> bool:
    return _is_complete(info) and all(d.HasField("dim_value") for d in info.type.tensor_type.shape.dim)


def _example(dims: Sequence[int | str]) -> list[int]:
    """The shape with numbers for names: a batch of one, 224×224 for an image."""
    image = range(2, 4) if len(dims) == 4 else ()
    return [d if isinstance(d, int) else 224 if axis in image else 1 for axis, d in enumerate(dims)]


def _show(dims: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, dims))})"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
