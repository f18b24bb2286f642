"""The forms that operators ask of their inputs: shapes, constants and attributes that mostly fit each other.

A form takes the dice and the shape of the first input, and gives the other inputs by position (a shape, an array, or None for
one that is left out) and attributes. An operator without a form gets inputs of one shape or of shapes that broadcast.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.fuzz.models import values

Shape = tuple[int, ...]


@dataclass
class Form:
    """What goes with a first input."""

    inputs: dict[int, Shape | np.ndarray | None] = field(default_factory=dict)
    attributes: dict[str, object] = field(default_factory=dict)


Former = Callable[[random.Random, Shape], Form]
RANKS: dict[str, tuple[int, ...]] = {}  # of the first input, where not every rank makes sense


def _ints(*given: int) -> np.ndarray:
    return np.array(given, "int64")


def _one_in(rng: random.Random, n: int) -> bool:
    return rng.randrange(n) == 0


def _window(rng: random.Random, spatial: Shape, kernel: Shape | None = None) -> dict[str, object]:
    n = len(spatial)
    kernel = kernel or tuple(rng.choice([1, 1, 2, 3, 3, 5]) for _ in range(n))
    attributes: dict[str, object] = {"kernel_shape": list(kernel)}
    if _one_in(rng, 2):
        attributes["strides"] = [rng.choice([1, 1, 2, 3]) for _ in range(n)]
    if _one_in(rng, 3):
        attributes["dilations"] = [rng.choice([1, 1, 2]) for _ in range(n)]
    if _one_in(rng, 4):
        attributes["auto_pad"] = rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    elif _one_in(rng, 2):
        attributes["pads"] = [rng.choice([0, 1, 1, 2]) for _ in range(2 * n)]
    return attributes


def _conv(rng: random.Random, x: Shape) -> Form:
    channels = x[1]
    groups = rng.choice([1, 1, 1, max(channels, 1), 2 if channels % 2 == 0 and channels else 1])
    out = groups * rng.choice([1, 1, 2, 3, 8, 17])
    kernel = tuple(rng.choice([1, 1, 2, 3, 3, 4, 7]) for _ in x[2:])
    attributes = _window(rng, x[2:], kernel)
    if groups != 1 or _one_in(rng, 4):
        attributes["group"] = groups
    bias = (out,) if _one_in(rng, 2) else None
    return Form({1: (out, channels // groups, *kernel), 2: bias}, attributes)


def _conv_transpose(rng: random.Random, x: Shape) -> Form:
    channels = x[1]
    groups = rng.choice([1, 1, 1, max(channels, 1)])
    out = rng.choice([1, 2, 3, 8])
    kernel = tuple(rng.choice([1, 2, 3, 4]) for _ in x[2:])
    attributes = _window(rng, x[2:], kernel)
    if groups != 1:
        attributes["group"] = groups
    if _one_in(rng, 4):
        attributes["output_padding"] = [rng.choice([0, 0, 1]) for _ in x[2:]]
    if _one_in(rng, 8):
        attributes["output_shape"] = [rng.choice([n, 2 * n, 2 * n + 1, 1]) for n in x[2:]]
    bias = (out * groups,) if _one_in(rng, 2) else None
    return Form({1: (channels, out, *kernel), 2: bias}, attributes)


def _pool(rng: random.Random, x: Shape) -> Form:
    attributes = _window(rng, x[2:])
    if _one_in(rng, 3):
        attributes["ceil_mode"] = 1
    return Form({}, attributes)


def _average_pool(rng: random.Random, x: Shape) -> Form:
    form = _pool(rng, x)
    if _one_in(rng, 2):
        form.attributes["count_include_pad"] = 1
    return form


def _lp_pool(rng: random.Random, x: Shape) -> Form:
    form = _pool(rng, x)
    form.attributes["p"] = rng.choice([1, 2, 3])
    return form


def _matmul(rng: random.Random, x: Shape) -> Form:
    if not x:
        return Form({1: (2, 2)})
    columns = values.extent(rng)
    lead = x[:-2]
    choice = rng.randrange(5)
    if choice == 0:
        return Form({1: (x[-1],)})
    if choice == 1:
        return Form({1: (x[-1], columns)})
    if choice == 2:
        return Form({1: (*[1 if _one_in(rng, 2) else e for e in lead], x[-1], columns)})
    if choice == 3:
        return Form({1: (rng.choice([1, 2, 3]), *lead, x[-1], columns)})
    return Form({1: (*lead, x[-1], columns)})


def _gemm(rng: random.Random, x: Shape) -> Form:
    trans_a, trans_b = _one_in(rng, 3), _one_in(rng, 2)
    rows, inner = (x[1], x[0]) if trans_a else x
    columns = rng.choice([1, 2, 3, 8, 17])
    bias = rng.choice([None, (columns,), (1, columns), (rows, columns), (rows, 1), (), (1,)])
    attributes: dict[str, object] = {"transA": int(trans_a), "transB": int(trans_b)}
    if _one_in(rng, 3):
        attributes["alpha"] = rng.choice([0.0, 0.5, -2.0])
    if _one_in(rng, 3):
        attributes["beta"] = rng.choice([0.0, 0.5, -2.0])
    return Form({1: (columns, inner) if trans_b else (inner, columns), 2: bias}, attributes)


def _batch_norm(rng: random.Random, x: Shape) -> Form:
    c = (x[1],) if len(x) > 1 else (1,)
    variance = np.abs(values.tensor(rng, 1, c)) + np.float32(0.1)
    return Form({1: c, 2: c, 3: c, 4: variance}, {"epsilon": rng.choice([1e-5, 1e-3])})


def _layer_norm(rng: random.Random, x: Shape) -> Form:
    axis = _axis(rng, x)
    over = x[axis:] if x else ()
    return Form({1: over, 2: over if _one_in(rng, 2) else None}, {"axis": axis})


def _rms_norm(rng: random.Random, x: Shape) -> Form:
    axis = _axis(rng, x)
    return Form({1: x[axis:] if x else ()}, {"axis": axis})


def _instance_norm(rng: random.Random, x: Shape) -> Form:
    return Form({1: (x[1],), 2: (x[1],)})


def _group_norm(rng: random.Random, x: Shape) -> Form:
    groups = rng.choice([g for g in (1, 2, 3, x[1]) if g and x[1] % g == 0] or [1])
    return Form({1: (x[1],), 2: (x[1],)}, {"num_groups": groups})


def _axis(rng: random.Random, x: Shape) -> int:
    return rng.randrange(-len(x), len(x)) if x else 0


def _axes(rng: random.Random, x: Shape) -> list[int]:
    chosen = rng.sample(range(len(x)), rng.randint(1, len(x))) if x else []
    return [axis - len(x) if _one_in(rng, 3) else axis for axis in chosen]


def _axis_attribute(rng: random.Random, x: Shape) -> Form:
    return Form({}, {"axis": _axis(rng, x)} if not _one_in(rng, 4) else {})


def _concat(rng: random.Random, x: Shape) -> Form:
    axis = _axis(rng, x)
    others = {}
    for i in range(1, rng.randint(1, 4)):
        extents = list(x)
        if x:
            extents[axis] = values.extent(rng)
        others[i] = tuple(extents)
    return Form(others, {"axis": axis})


def _split(rng: random.Random, x: Shape) -> Form:
    axis = _axis(rng, x)
    size = x[axis] if x else 1
    first = rng.randint(0, size)
    return Form({1: _ints(first, size - first)}, {"axis": axis})


def _slice(rng: random.Random, x: Shape) -> Form:
    axes = _axes(rng, x)
    around = [x[a] for a in axes]
    starts = [rng.choice([0, 0, 1, -1, n, -n, n + 2, rng.randint(-n - 1, n + 1)]) for n in around]
    ends = [rng.choice([n, n, -1, 2**63 - 1, -(2**63), 0, rng.randint(-n - 1, n + 1)]) for n in around]
    steps = [rng.choice([1, 1, 1, 2, 3, -1, -2]) for _ in axes]
    return Form({1: _ints(*starts), 2: _ints(*ends), 3: _ints(*axes), 4: _ints(*steps) if _one_in(rng, 2) else None})


def _pad(rng: random.Random, x: Shape) -> Form:
    mode = rng.choice(["constant", "constant", "reflect", "edge", "wrap"])
    widths = [rng.choice([0, 0, 1, 2, 3, -1, rng.randint(-n, 2 * n + 1)]) for n in (*x, *x)]
    value = () if mode == "constant" and _one_in(rng, 2) else None
    return Form({1: _ints(*widths), 2: value}, {"mode": mode})


def _reshape(rng: random.Random, x: Shape) -> Form:
    count = int(np.prod(x))
    factors = [f for f in (2, 3, 4, 5) if count and count % f == 0]
    target = [count]
    while factors and len(target) < 5 and not _one_in(rng, 3):
        factor = rng.choice(factors)
        if target[0] % factor:
            break
        target = [target[0] // factor, *target[1:], factor]
    rng.shuffle(target)
    for _ in range(rng.randrange(3)):
        target.insert(rng.randrange(len(target) + 1), 1)
    if _one_in(rng, 3):
        target[rng.randrange(len(target))] = -1
    if _one_in(rng, 8) and x:
        target[0] = 0
    return Form({1: _ints(*target)})


def _expand(rng: random.Random, x: Shape) -> Form:
    target = [values.extent(rng) if e == 1 else rng.choice([e, 1]) for e in x]
    return Form({1: _ints(*[rng.choice([1, 2, 3]) for _ in range(rng.randrange(3))], *target)})


def _tile(rng: random.Random, x: Shape) -> Form:
    return Form({1: _ints(*[rng.choice([1, 1, 2, 3, 0]) for _ in x])})


def _indexed(rng: random.Random, x: Shape) -> Form:
    axis = _axis(rng, x)
    size = x[axis] if x else 1
    of = values.shape(rng, rng.choice([0, 1, 1, 2]))
    return Form({1: values.tensor(rng, 7, of, -size, max(size - 1, 0))}, {"axis": axis})


def _elements(rng: random.Random, x: Shape) -> Form:
    axis = _axis(rng, x)
    of = [rng.randint(0 if _one_in(rng, 9) else min(1, e), e) for e in x]
    size = x[axis] if x else 1
    return Form({1: values.tensor(rng, 7, tuple(of), -size, max(size - 1, 0)), 2: tuple(of)}, {"axis": axis})


def _gather_elements(rng: random.Random, x: Shape) -> Form:
    form = _elements(rng, x)
    del form.inputs[2]
    return form


def _tuples(rng: random.Random, x: Shape) -> np.ndarray:
    depth = rng.randint(1, len(x)) if x else 1
    lead = values.shape(rng, rng.choice([0, 1, 1, 2]))
    parts = [values.tensor(rng, 7, lead, -n, max(n - 1, 0)) for n in x[:depth]] or [np.zeros(lead, "int64")]
    return np.stack(parts, -1)


def _gather_nd(rng: random.Random, x: Shape) -> Form:
    return Form({1: _tuples(rng, x)})


def _scatter_nd(rng: random.Random, x: Shape) -> Form:
    at = _tuples(rng, x)
    return Form({1: at, 2: (*at.shape[:-1], *x[at.shape[-1] :])})


def _transpose(rng: random.Random, x: Shape) -> Form:
    return Form({}, {} if _one_in(rng, 4) else {"perm": rng.sample(range(len(x)), len(x))})


def _squeeze(rng: random.Random, x: Shape) -> Form:
    ones = [a for a, e in enumerate(x) if e == 1]
    if _one_in(rng, 4) or not ones:
        return Form({1: None})
    return Form({1: _ints(*[a - len(x) if _one_in(rng, 3) else a for a in rng.sample(ones, rng.randint(1, len(ones)))])})


def _unsqueeze(rng: random.Random, x: Shape) -> Form:
    count = rng.randint(1, 3)
    rank = len(x) + count
    axes = rng.sample(range(rank), count)
    return Form({1: _ints(*[a - rank if _one_in(rng, 3) else a for a in axes])})


def _resize(rng: random.Random, x: Shape) -> Form:
    n = len(x)
    sizes = [e if _one_in(rng, 2) else rng.choice([1, e, 2 * e, 3 * e, max(e // 2, 1), e + 1]) for e in x]
    scales = [rng.choice([1.0, 1.0, 2.0, 0.5, 1.5, 0.7, 3.0]) for _ in x]
    by_size = _one_in(rng, 2)
    attributes = {
        "mode": rng.choice(["nearest", "linear", "cubic"]),
        "coordinate_transformation_mode": rng.choice(
            ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
        ),
    }
    if attributes["mode"] == "nearest":
        attributes["nearest_mode"] = rng.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if attributes["mode"] == "cubic" and _one_in(rng, 2):
        attributes["cubic_coeff_a"] = rng.choice([-0.5, -0.75])
        attributes["exclude_outside"] = rng.choice([0, 1])
    given = np.array(sizes, "int64") if by_size else np.array(scales, "f4")
    assert len(given) == n
    return Form({1: None, (3 if by_size else 2): given, **({2: None} if by_size else {})}, attributes)


def _topk(rng: random.Random, x: Shape) -> Form:
    axis = _axis(rng, x)
    size = x[axis] if x else 1
    return Form({1: _ints(rng.choice([1, size, rng.randint(0, size)]))}, {"axis": axis, "largest": rng.randrange(2), "sorted": 1})


def _one_hot(rng: random.Random, x: Shape) -> Form:
    return Form({1: _ints(rng.choice([1, 3, 5])), 2: (2,)}, {"axis": rng.randint(-len(x) - 1, len(x))})


def _cumulative(rng: random.Random, x: Shape) -> Form:
    return Form({1: np.array(_axis(rng, x), "int64")}, {"exclusive": rng.randrange(2), "reverse": rng.randrange(2)})


def _reduction(rng: random.Random, x: Shape) -> Form:
    axes = None if _one_in(rng, 4) else _axes(rng, x)
    attributes: dict[str, object] = {"keepdims": rng.randrange(2)}
    if _one_in(rng, 6):
        attributes["noop_with_empty_axes"] = 1
    return Form({1: None if axes is None else _ints(*axes)}, attributes)


def _arg(rng: random.Random, x: Shape) -> Form:
    return Form({}, {"axis": _axis(rng, x), "keepdims": rng.randrange(2), "select_last_index": rng.randrange(2)})


def _clip(rng: random.Random, x: Shape) -> Form:
    return Form({1: () if _one_in(rng, 2) else None, 2: () if _one_in(rng, 2) else None})


def _trilu(rng: random.Random, x: Shape) -> Form:
    k = np.array(rng.choice([0, 1, -1, 2, -3, 9, -9]), "int64")
    return Form({1: k if _one_in(rng, 2) else None}, {"upper": rng.randrange(2)})


def _blocks(rng: random.Random, x: Shape) -> Form:
    return Form({}, {"blocksize": rng.choice([1, 2, 3])})


def _depth(rng: random.Random, x: Shape) -> Form:
    return Form({}, {"blocksize": rng.choice([1, 2]), "mode": rng.choice(["DCR", "CRD"])})


def _recurrent(gates: int) -> Former:
    def form(rng: random.Random, x: Shape) -> Form:
        hidden, both = rng.choice([1, 2, 3, 5, 8]), _one_in(rng, 3)
        directions = 2 if both else 1
        layout = int(_one_in(rng, 5))
        batch = x[0] if layout else x[1]
        bias = (directions, 2 * gates * hidden) if _one_in(rng, 2) else None
        state = ((batch, directions, hidden) if layout else (directions, batch, hidden)) if _one_in(rng, 3) else None
        attributes: dict[str, object] = {
            "hidden_size": hidden, "direction": "bidirectional" if both else rng.choice(["forward", "reverse"]), "layout": layout,
        }  # fmt: skip
        if gates == 3 and _one_in(rng, 2):
            attributes["linear_before_reset"] = 1
        if _one_in(rng, 6):
            attributes["clip"] = rng.choice([0.5, 3.0])
        inputs = {1: (directions, gates * hidden, x[2]), 2: (directions, gates * hidden, hidden), 3: bias, 4: None, 5: state}
        if gates == 4:
            inputs |= {6: state, 7: (directions, 3 * hidden) if _one_in(rng, 4) else None}
        return Form(inputs, attributes)

    return form


def _quantise(rng: random.Random, x: Shape) -> Form:
    scale = np.array(abs(rng.gauss(0, 1)) / 8 + 0.01, "f4")
    zero = rng.choice([None, np.array(rng.randint(0, 255), "u1"), np.array(rng.randint(-128, 127), "i1")])
    return Form({1: scale, 2: zero}, {})


def _dequantise(rng: random.Random, x: Shape) -> Form:
    axis = _axis(rng, x)
    per_axis = bool(x) and _one_in(rng, 2)
    of = (x[axis],) if per_axis else ()
    return Form({1: np.abs(values.tensor(rng, 1, of)) + np.float32(0.01), 2: of if _one_in(rng, 2) else None}, {"axis": axis})


def _einsum(rng: random.Random, x: Shape) -> Form:
    letters = "ijklmn"[: len(x)]
    kept = "".join(rng.sample(letters, rng.randint(0, len(x))))
    if _one_in(rng, 2):
        return Form({}, {"equation": f"{letters}->{kept}"})
    inner = rng.sample(letters, rng.randint(0, len(letters)))
    sizes = dict(zip(letters, x, strict=True))
    other = "".join(inner) + "z"
    out = "".join(rng.sample(letters + "z", rng.randint(0, len(letters) + 1)))
    return Form({1: (*[sizes[c] for c in inner], 3)}, {"equation": f"{letters},{other}->{out}"})


def _prelu(rng: random.Random, x: Shape) -> Form:
    slope = rng.choice([x, (1,), tuple(1 for _ in x), (x[1],) + (1,) * (len(x) - 2) if len(x) > 1 else (1,)])
    return Form({1: slope})


def _constant_of_shape(rng: random.Random, x: Shape) -> Form:
    return Form({0: _ints(*values.shape(rng))})


def _range(rng: random.Random, x: Shape) -> Form:
    start, step = rng.randint(-5, 5), rng.choice([1, 2, -1, -3])
    return Form({0: _scalar(start), 1: _scalar(start + step * rng.randint(-1, 9)), 2: _scalar(step)})


def _scalar(value: int) -> np.ndarray:
    return np.array(value, "int64")


def _image(rng: random.Random, x: Shape) -> Form:
    mode = rng.choice(["bilinear", "nearest", "bicubic", "linear", "cubic"])
    out = tuple(values.extent(rng) for _ in x[2:])
    return Form(
        {1: (x[0], *out, len(x) - 2)},
        {"mode": mode, "padding_mode": rng.choice(["zeros", "border", "reflection"]), "align_corners": rng.randrange(2)},
    )


def _attention(rng: random.Random, x: Shape) -> Form:
    batch, heads, _, size = x
    keys = rng.choice([1, 2, 3, 8])
    form = Form({1: (batch, heads, keys, size), 2: (batch, heads, keys, rng.choice([size, 1, 4]))})
    if _one_in(rng, 2):
        form.attributes["is_causal"] = 1
    if _one_in(rng, 3):
        form.inputs[3] = (x[2], keys)
    if _one_in(rng, 4):
        form.attributes["softcap"] = 2.0
    return form


def _lrn(rng: random.Random, x: Shape) -> Form:
    return Form({}, {"size": rng.choice([1, 2, 3, 5])})


def _where(rng: random.Random, x: Shape) -> Form:
    return Form({1: x if _one_in(rng, 2) else (), 2: x})


_WINDOWS = (3, 4, 4, 4, 5)
FORMS: dict[str, Former] = {
    "ArgMax": _arg, "ArgMin": _arg, "Attention": _attention, "AveragePool": _average_pool, "BatchNormalization": _batch_norm,
    "Clip": _clip, "Concat": _concat, "ConstantOfShape": _constant_of_shape, "Conv": _conv, "ConvTranspose": _conv_transpose,
    "CumSum": _cumulative, "CumProd": _cumulative, "DepthToSpace": _depth, "DequantizeLinear": _dequantise, "Einsum": _einsum,
    "Expand": _expand, "Flatten": _axis_attribute, "GRU": _recurrent(3), "Gather": _indexed, "GatherElements": _gather_elements,
    "GatherND": _gather_nd, "Gemm": _gemm, "GridSample": _image, "GroupNormalization": _group_norm, "Hardmax": _axis_attribute,
    "InstanceNormalization": _instance_norm, "LRN": _lrn, "LSTM": _recurrent(4), "LayerNormalization": _layer_norm,
    "LogSoftmax": _axis_attribute, "LpNormalization": _axis_attribute, "LpPool": _lp_pool, "MatMul": _matmul, "MaxPool": _pool,
    "OneHot": _one_hot, "PRelu": _prelu, "Pad": _pad, "QuantizeLinear": _quantise, "RMSNormalization": _rms_norm,
    "RNN": _recurrent(1), "Range": _range, "Reshape": _reshape, "Resize": _resize, "ScatterElements": _elements,
    "ScatterND": _scatter_nd, "Slice": _slice, "Softmax": _axis_attribute, "SpaceToDepth": _blocks, "Split": _split,
    "Squeeze": _squeeze, "Tile": _tile, "TopK": _topk, "Transpose": _transpose, "Trilu": _trilu, "Unsqueeze": _unsqueeze,
    "Where": _where,
    **{f"Reduce{kind}": _reduction for kind in
       ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")},
}  # fmt: skip
RANKS |= {
    "Attention": (4,), "Conv": _WINDOWS, "ConvTranspose": _WINDOWS, "AveragePool": _WINDOWS, "MaxPool": _WINDOWS,
    "LpPool": _WINDOWS,
    "GlobalAveragePool": _WINDOWS, "GlobalMaxPool": _WINDOWS, "GlobalLpPool": _WINDOWS, "LRN": _WINDOWS, "Gemm": (2,),
    "InstanceNormalization": _WINDOWS, "GroupNormalization": _WINDOWS, "DepthToSpace": (4,), "SpaceToDepth": (4,),
    "GRU": (3,), "LSTM": (3,), "RNN": (3,), "GridSample": (4, 4, 5), "Trilu": (2, 3, 4), "BatchNormalization": (2, 3, 4, 4, 5),
    "PRelu": (1, 2, 3, 4), "MatMul": (1, 2, 2, 3, 4), "Det": (2, 3, 4), "ArgMax": (1, 2, 3, 4), "ArgMin": (1, 2, 3, 4),
}  # fmt: skip
