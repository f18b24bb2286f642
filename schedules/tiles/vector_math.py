"""exp, sigmoid, tanh, erf and log as plain float32 arithmetic, for scalars and vectors of any lane count.

LLVM turns `tirx.exp` of a vector into one call of libm per lane. The expansions here consist of
multiplications, additions, integer shifts and selects: a vectorised loop stays vector code on every target.

Every function takes a TIR expression of type float32 or float32xN and returns one of the same type. Arguments
that occur more than once are bound by `Let`: the size of the result does not depend on the argument's.

| function | largest error against the exact value | method |
| --- | --- | --- |
| exp | 1e-7 relative (one ulp of subnormal results) | x = n ln 2 + r, polynomial of degree 6 in r |
| exp_nonpositive | 1e-7 relative, 0 below 2^-126 | the same, with fewer special cases |
| sigmoid | 2e-7 relative, 0 below 2^-127 | 1 / (1 + exp(-x)) |
| tanh | 3e-7 relative | x P(x²) / Q(x²), degrees 4 and 4, on [-9, 9] |
| erf | 3e-7 relative | x P(x²) / Q(x²), degrees 5 and 5, on [-3.9, 3.9] |
| log | 1e-7 relative | x = 2^e m, series of atanh in (m - 1) / (m + 1) |

Coefficients are minimax fits (Lawson's reweighted least squares); both rational functions have positive
coefficients only, so nothing cancels in their evaluation. NaN stays NaN, infinities give the limits. Rounding
to an integer adds 1.5 * 2^23 and takes the low bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, tirx

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693359375  # 9 significant bits: n * _LN2_HIGH is exact
_LN2_LOW = -2.12194440054690583e-4
_ROUNDING = 12582912.0  # 1.5 * 2^23: adding this leaves the nearest integer in the low bits
_ROUNDING_BITS = 0x4B400000  # its representation

_EXP = (
    0.4999999343204469,
    0.16666520398303009,
    0.041668390800537865,
    0.008368745177634553,
    0.0013814539361321797,
)
_EXP_MIN, _EXP_MAX = -104.0, 89.0  # exp underflows to 0 below and overflows above

_EXP_FLUSH = -88.0  # nearest to -127 ln 2: a result below the normal numbers

_TANH_P = (
    9.9999997945525154e-01, 1.3381004100895175e-01, 3.4955625357352602e-03, 2.0608662497000777e-05,
    1.3354086627516978e-08,
)  # fmt: skip
_TANH_Q = (
    1.0, 4.6714319693676454e-01, 2.5876884850496704e-02, 3.2855929963918512e-04, 7.7763213229072210e-07,
)  # fmt: skip
_TANH_MAX = 9.0  # 1 - tanh(9) is a quarter of an ulp

_ERF_P = (
    1.1283791476266607e00, 1.8966830781473229e-01, 5.2668195377176749e-02, 3.7383900537366838e-03,
    2.8505977822723254e-04, 2.0664151813519597e-06,
)  # fmt: skip
_ERF_Q = (
    1.0, 5.0142194287143393e-01, 1.1381949638721640e-01, 1.4914363605411571e-02, 1.1573807297454244e-03,
    3.8269296565109237e-05,
)  # fmt: skip
_ERF_MAX = 3.9  # 1 - erf(3.9) is half an ulp


def lanes(expr: ir.Expr) -> int:
    """Lane count of a TIR expression: 1 for a scalar."""
    return expr.ty.dtype.lanes


def _dtype(base: str, like: ir.Expr) -> str:
    count = lanes(like)
    return base if count == 1 else f"{base}x{count}"


def constant(value: float, like: ir.Expr) -> ir.Expr:
    """The float32 constant `value` with as many lanes as `like`."""
    return tirx.const(value, _dtype("float32", like))


def let(value: ir.Expr, body: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """`body(v)` where v stands for `value`, computed once."""
    if isinstance(value, (ir.Var, tirx.FloatImm, tirx.IntImm)):
        return body(value)
    if str(value.ty.dtype).startswith("int"):
        # Hides the bounds of the integer: NarrowDataType ends with an error if it knows them in one place of an expression only.
        value = tirx.call_intrin(value.ty.dtype, "tirx.reinterpret", value)
    variable = tirx.Var("m", value.ty.dtype)
    return tirx.Let(variable, value, body(variable))


def polynomial(x: ir.Expr, coefficients: Sequence[float]) -> ir.Expr:
    """sum of coefficients[i] * x**i, by Horner's rule."""
    result = constant(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + constant(coefficient, x)
    return result


# Of every float type: the integer type of its size, and the representation of infinity. NaN lies above.
_BITS = {"float16": ("int16", 0x7C00), "float32": ("int32", 0x7F800000), "float64": ("int64", 0x7FF << 52)}


def is_number(x: ir.Expr) -> ir.Expr:
    """Whether `x` is not NaN.

    Compares bits: TVM simplifies `x == x` to true, and does not vectorise isnan.
    """
    integer, infinity = _BITS[str(x.ty.dtype.with_lanes(1))]
    integer = _dtype(integer, x)
    sign = -1 << (8 * tvm_ffi.dtype(str(x.ty.dtype.with_lanes(1))).itemsize - 1)
    magnitude = tirx.bitwise_and(tirx.reinterpret(integer, x), tirx.const(~sign, integer))
    return magnitude <= tirx.const(infinity, integer)


def _keep_nan(x: ir.Expr, result: ir.Expr, instead: ir.Expr | None = None) -> ir.Expr:
    """`x`, or `instead` if given, where `x` is NaN, else `result`."""
    return tirx.Select(is_number(x), result, x if instead is None else instead)


def _clamp(x: ir.Expr, low: float, high: float) -> ir.Expr:
    return tirx.min(tirx.max(x, constant(low, x)), constant(high, x))


def _power_of_two(n: ir.Expr) -> ir.Expr:
    """2**n as float32 for an int32 expression -126 <= n <= 127; 0 for -127, infinity for 128."""
    int32 = _dtype("int32", n)
    bits = tirx.shift_left(n + tirx.const(127, int32), tirx.const(23, int32))
    return tirx.reinterpret(_dtype("float32", n), bits)


def _round(x: ir.Expr, body: Callable[[ir.Expr, ir.Expr], ir.Expr]) -> ir.Expr:
    """`body(n, float(n))` for n the integer nearest to x, |x| < 2^22."""
    int32 = _dtype("int32", x)
    # The float comes from the integer: TVM's simplifier folds (x + c) - c to x.
    integer = tirx.reinterpret(int32, x + constant(_ROUNDING, x)) - tirx.const(_ROUNDING_BITS, int32)
    return let(integer, lambda n: let(tirx.Cast(_dtype("float32", x), n), lambda f: body(n, f)))


def exp(x: ir.Expr) -> ir.Expr:
    """e**x; subnormal results are kept unless the machine flushes them."""

    def scaled(x: ir.Expr, n: ir.Expr, n_float: ir.Expr) -> ir.Expr:
        int32 = _dtype("int32", x)
        remainder = (x - n_float * constant(_LN2_HIGH, x)) - n_float * constant(_LN2_LOW, x)

        def power(r: ir.Expr) -> ir.Expr:
            value = polynomial(r, _EXP) * (r * r) + r + constant(1.0, x)
            # 2**n in two factors, as n reaches -150 and 128: the product under- and overflows correctly.
            return let(
                tirx.shift_right(n, tirx.const(1, int32)),
                lambda half: value * _power_of_two(half) * _power_of_two(n - half),
            )

        return let(remainder, power)

    def clamped(original: ir.Expr) -> ir.Expr:
        return let(
            _clamp(original, _EXP_MIN, _EXP_MAX),
            lambda c: _keep_nan(original, _round(c * constant(_LOG2_E, c), lambda n, f: scaled(c, n, f))),
        )

    return let(x, clamped)


def exp_nonpositive(x: ir.Expr) -> ir.Expr:
    """e**x for x <= 0 or NaN, as in a softmax; 0 where the result would be subnormal."""

    def scaled(x: ir.Expr, n: ir.Expr, n_float: ir.Expr) -> ir.Expr:
        remainder = (x - n_float * constant(_LN2_HIGH, x)) - n_float * constant(_LN2_LOW, x)
        # At the lower bound n is -127, whose representation is that of 0. A product, so that NaN stays NaN.
        return let(remainder, lambda r: (polynomial(r, _EXP) * (r * r) + r + constant(1.0, x)) * _power_of_two(n))

    def bounded(x: ir.Expr) -> ir.Expr:
        return _round(x * constant(_LOG2_E, x), lambda n, f: scaled(x, n, f))

    return let(tirx.max(constant(_EXP_FLUSH, x), x), bounded)


def sigmoid(x: ir.Expr) -> ir.Expr:
    """1 / (1 + e**-x); 0 where the result would be subnormal."""
    one = constant(1.0, x)

    def scaled(x: ir.Expr, n: ir.Expr, n_float: ir.Expr) -> ir.Expr:
        remainder = (x - n_float * constant(_LN2_HIGH, x)) - n_float * constant(_LN2_LOW, x)
        # One factor will do: at the bounds n is -127 and 128, whose representations are those of 0 and infinity.
        return let(remainder, lambda r: (polynomial(r, _EXP) * (r * r) + r + one) * _power_of_two(n))

    def power(x: ir.Expr) -> ir.Expr:
        return _round(x * constant(_LOG2_E, x), lambda n, f: scaled(x, n, f))

    bounded = tirx.min(constant(_EXP_MAX, x), tirx.max(constant(_EXP_FLUSH, x), constant(0.0, x) - x))
    return one / (one + let(bounded, power))


def _odd_rational(x: ir.Expr, limit: float, numerator: Sequence[float], denominator: Sequence[float]) -> ir.Expr:
    """x P(x²) / Q(x²) for |x| <= limit, constant beyond, never outside [-1, 1]."""

    def of_clamped(x: ir.Expr) -> ir.Expr:
        return let(x * x, lambda z: x * polynomial(z, numerator) / polynomial(z, denominator))

    return let(x, lambda x: _keep_nan(x, _clamp(let(_clamp(x, -limit, limit), of_clamped), -1.0, 1.0)))


def tanh(x: ir.Expr) -> ir.Expr:
    """Hyperbolic tangent."""
    return _odd_rational(x, _TANH_MAX, _TANH_P, _TANH_Q)


def erf(x: ir.Expr) -> ir.Expr:
    """Error function."""
    return _odd_rational(x, _ERF_MAX, _ERF_P, _ERF_Q)


def log(x: ir.Expr) -> ir.Expr:
    """Natural logarithm: -inf at 0, NaN below; subnormal arguments are exact."""

    def of(original: ir.Expr) -> ir.Expr:
        int32 = _dtype("int32", original)

        def integer(value: int) -> ir.Expr:
            return tirx.const(value, int32)

        smallest_normal, two_to_24 = (
            constant(1.1754943508222875e-38, original),
            constant(16777216.0, original),
        )
        is_small = original < smallest_normal

        def of_normal(bits: ir.Expr) -> ir.Expr:
            # e such that x / 2**e lies in [sqrt(1/2), sqrt(2))
            exponent = tirx.shift_right(bits - integer(0x3F3504F3), integer(23))
            return let(exponent, lambda e: of_parts(bits, e))

        def of_parts(bits: ir.Expr, e: ir.Expr) -> ir.Expr:
            mantissa = tirx.reinterpret(_dtype("float32", original), bits - tirx.shift_left(e, integer(23)))
            count = tirx.Cast(_dtype("float32", original), e) - tirx.Select(
                is_small, constant(24.0, original), constant(0.0, original)
            )
            return let(mantissa - constant(1.0, original), lambda f: let(count, lambda n: series(f, n)))

        def series(f: ir.Expr, n: ir.Expr) -> ir.Expr:
            # log(1 + f) = f - s (f - R) with s = f / (2 + f), R = 2 (s²/3 + s⁴/5 + s⁶/7 + s⁸/9)
            def of_s(s: ir.Expr) -> ir.Expr:
                tail = let(s * s, lambda z: z * polynomial(z, (2 / 3, 2 / 5, 2 / 7, 2 / 9)))
                return n * constant(_LN2_HIGH, f) + (f - (s * (f - tail) - n * constant(_LN2_LOW, f)))

            return let(f / (f + constant(2.0, f)), of_s)

        scaled = tirx.Select(is_small, original * two_to_24, original)
        value = let(tirx.reinterpret(int32, scaled), of_normal)
        infinity = constant(float("inf"), original)
        zero = constant(0.0, original)
        value = tirx.Select(original < infinity, value, original)
        value = tirx.Select(original == zero, zero - infinity, value)
        return _keep_nan(original, tirx.Select(original < zero, constant(float("nan"), original), value))

    return let(x, of)


def _power(base: ir.Expr, exponent: ir.Expr) -> ir.Expr | None:
    """base**exponent for the constant exponents that networks use; None for others."""
    if isinstance(exponent, tirx.Broadcast):
        exponent = exponent.value
    if not isinstance(exponent, tirx.FloatImm):
        return None
    if exponent.value == 0.5:
        return tirx.sqrt(base)
    if exponent.value == 1.0:
        return base
    if exponent.value == 2.0:
        return let(base, lambda b: b * b)
    if exponent.value == 3.0:
        return let(base, lambda b: b * b * b)
    if exponent.value == 4.0:
        return let(base, lambda b: let(b * b, lambda s: s * s))
    if exponent.value == -1.0:
        return constant(1.0, base) / base
    return None


def is_constant(expr: ir.Expr) -> bool:
    """Whether `expr` is a number, or the same number in every lane."""
    return isinstance(expr.value if isinstance(expr, tirx.Broadcast) else expr, tirx.FloatImm | tirx.IntImm)


def unless_nan(x: ir.Expr, value: ir.Expr, instead: ir.Expr | None = None) -> ir.Expr:
    """`value`, but `x`, or `instead` if given, where `x` is NaN."""
    return let(x, lambda x: _keep_nan(x, value, instead))


def largest(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """The larger of two float32 expressions or vectors, NaN if one is: of max(a, b) that is b, unless only a is NaN."""
    return let(a, lambda a: _keep_nan(a, tirx.max(a, b)))


def smallest(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """The smaller of two float32 expressions or vectors, NaN if one is."""
    return let(a, lambda a: _keep_nan(a, tirx.min(a, b)))


def keep_nan(node: tvm_ffi.Object) -> tvm_ffi.Object:
    """`node` with maxima and minima of floats that are NaN if an operand is.

    TVM's max(a, b) is `a > b ? a : b`, which is b if either is NaN. So a constant comes first, at no cost; where neither
    is one, `a` is looked at.
    """

    def kept(pair: tirx.Max | tirx.Min) -> ir.Expr:
        kind = str(pair.ty.dtype)
        if kind not in _BITS or is_constant(pair.a):
            return pair
        if is_constant(pair.b):
            return type(pair)(pair.b, pair.a)
        return let(pair.a, lambda a: _keep_nan(a, type(pair)(a, pair.b)))

    return tvm_ffi.structural_map(node, [((tirx.Max, tirx.Min), kept)])


EXPANSIONS = {"tirx.exp": exp, "tirx.sigmoid": sigmoid, "tirx.tanh": tanh, "tirx.erf": erf, "tirx.log": log}


def _expand_call(call: ir.Call) -> ir.Expr:
    if not isinstance(call.op, ir.Op) or not isinstance(call.ty, ir.PrimType):
        return call
    if call.ty.dtype.with_lanes(1) != "float32":
        return call
    if call.op.name == "tirx.pow":
        result = _power(call.args[0], call.args[1])
        return call if result is None else result
    if call.op.name == "tirx.rsqrt":
        return constant(1.0, call) / tirx.sqrt(call.args[0])
    expansion = EXPANSIONS.get(call.op.name)
    return call if expansion is None else expansion(call.args[0])


def expand(node: tvm_ffi.Object) -> tvm_ffi.Object:
    """`node` (an expression, statement or PrimFunc) without float32 calls of exp, sigmoid, tanh, erf and log.

    These are replaced by the expansions of this module; rsqrt and powers with small constant exponents by
    products, quotients and square roots. A bool becomes a number by a Select: TVM cannot bind a number that is a comparison of
    vectors.
    """
    return tvm_ffi.structural_map(node, [(ir.Call, _expand_call), (tirx.Cast, _expand_cast)])


def _expand_cast(cast: tirx.Cast) -> ir.Expr:
    if cast.value.ty.dtype.with_lanes(1) != "bool" or cast.ty.dtype.with_lanes(1) == "bool":
        return cast
    one, zero = (tirx.const(number, cast.ty.dtype) for number in (1, 0))
    return tirx.Select(cast.value, one, zero)
