"""Numbers for the kernels: raw logits as ordered integers and as float32, and 2^x fast enough for a memory-bound pass.

A row of logits reaches the kernels as words: int32 for the bits of float32, int16 for those of bfloat16 (its upper
half). NumPy knows no bfloat16, integers compare in any order that a vector unit likes, and NaN cannot hide among them.

Loops run over unsigned numbers: an index that might count from the end does not make vectors.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from .cached import intrinsic, njit

LOWEST = np.int64(-(1 << 31))  # below the key of any number
LIGHT_SCALE = 1e6  # beyond it float32 runs out of exponents
BLOCK = 64  # tokens that are looked at together when few are wanted
_INFINITY = np.int32(0x7F800000)

# 2^f on [-1/2, 1/2], interpolated at Chebyshev nodes: relative error 3e-16 and 3e-9
_C = (
    *(1.0, 0.693147180559949983, 0.240226506959100982, 0.0555041086644477192, 0.00961812910760688853),
    *(0.00133335582301649739, 0.000154035304417360502, 0.0000152526572602008371, 1.32154425879216897e-6),
    *(1.02086902999583058e-7, 7.0725859492692237e-9),
)
_C32 = tuple(
    np.float32(c)
    for c in (
        *(1.0, 0.693147206702832596, 0.240226509222887581, 0.0555032722667030206, 0.00961805667852463808),
        *(0.00134004281776158379, 0.000154614446985691291),
    )
)
_ROUND = 6755399441055744.0  # 1.5 · 2^52: adding it leaves the nearest whole number in the low bits
_FARTHEST = np.float32(-3e32)  # times LIGHT_SCALE it is still a number
_ROUND32 = np.float32(12582912.0)


@intrinsic
def wide(typing_context):
    """Ask for 512-bit vectors where the processor has them: compilers shun them for fear of slower clocks, but these
    loops are arithmetic alone, and half as many instructions."""

    def generate(context, builder, signature, args):
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def fetch(typing_context, words, index):
    """Start to bring words[index] into the cache."""

    def generate(context, builder, signature, args):
        array = context.make_array(words)(context, builder, args[0])
        place = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, number(0), number(3), number(1)])  # to read, into all caches, data
        return context.get_dummy_value()

    return types.none(words, index), generate


@intrinsic
def plus(typing_context, a, b):
    """a + b, of a sum that may be added up in any order: what lets a loop run in vectors."""

    def generate(context, builder, signature, args):
        return builder.fadd(*args, flags=("reassoc", "nsz"))

    return a(a, b), generate


@intrinsic
def _bitcast(typing_context, value, like):
    """The bits of `value` as a number of the type of `like`; of integers, which grow to 64 bits here, the low ones."""
    target = like

    def generate(context, builder, signature, args):
        bits, kind = args[0], context.get_value_type(target)
        if isinstance(bits.type, ir.IntType) and bits.type.width > target.bitwidth:
            bits = builder.trunc(bits, ir.IntType(target.bitwidth))
        return builder.bitcast(bits, kind)

    return like(value, like), generate


@intrinsic
def logit(typing_context, word):
    """A word as float32, −0 as +0 so that equal numbers have equal keys."""

    def generate(context, builder, signature, args):
        (bits,) = args
        if bits.type.width == 16:
            bits = builder.shl(builder.zext(bits, ir.IntType(32)), ir.IntType(32)(16))
        number = builder.bitcast(bits, ir.FloatType())
        return builder.fadd(number, ir.FloatType()(0.0))

    return types.float32(word), generate


@intrinsic
def key(typing_context, x):
    """float32 -> int32 of the same order."""

    def generate(context, builder, signature, args):
        i32 = ir.IntType(32)
        bits = builder.bitcast(args[0], i32)
        return builder.xor(bits, builder.and_(builder.ashr(bits, i32(31)), i32(0x7FFFFFFF)))

    return types.int32(types.float32), generate


@intrinsic
def _magnitude(typing_context, x):
    """The bits of |x|: above those of infinity for every NaN, of either sign."""

    def generate(context, builder, signature, args):
        return builder.and_(builder.bitcast(args[0], ir.IntType(32)), ir.IntType(32)(0x7FFFFFFF))

    return types.int32(types.float32), generate


@njit(inline="always")
def key_to_logit(k):
    return _bitcast(k ^ ((k >> 31) & np.int64(0x7FFFFFFF)), np.float32(0))


@njit(inline="always")
def power(x):
    """2^x for x <= 0, exactly 0 below the normal range."""
    inside = x if x > -1022.0 else -1022.0
    rounded = inside + _ROUND
    f = inside - (rounded - _ROUND)
    p = _C[10]
    p = p * f + _C[9]
    p = p * f + _C[8]
    p = p * f + _C[7]
    p = p * f + _C[6]
    p = p * f + _C[5]
    p = p * f + _C[4]
    p = p * f + _C[3]
    p = p * f + _C[2]
    p = p * f + _C[1]
    p = p * f + _C[0]
    result = _bitcast(_bitcast(p, np.int64(0)) + (_bitcast(rounded, np.int64(0)) << np.int64(52)), 0.0)
    return result if x > -1022.0 else 0.0


@njit(inline="always")
def _power32(x):
    x = x if x > np.float32(-126.0) else np.float32(-126.0)
    rounded = x + _ROUND32
    f = x - (rounded - _ROUND32)
    p = _C32[6]
    p = p * f + _C32[5]
    p = p * f + _C32[4]
    p = p * f + _C32[3]
    p = p * f + _C32[2]
    p = p * f + _C32[1]
    p = p * f + _C32[0]
    return _bitcast(_bitcast(p, np.int32(0)) + (_bitcast(rounded, np.int32(0)) << np.int32(23)), np.float32(0))


@njit(inline="always")
def _weight32(d, scale, rest):
    """2^(d·(scale + rest)), exactly 0 at minus infinity, where d·scale + d·rest could be NaN."""
    inside = d if d > _FARTHEST else np.float32(0.0)
    weight = _power32(inside * scale + inside * rest)
    return weight if d > _FARTHEST else np.float32(0.0)


@njit
def top(words, start, stop):
    """The largest key of a piece of a row, and whether a NaN is in it."""
    wide()
    largest, magnitude = np.int32(LOWEST), np.int32(0)
    for i in range(np.uint64(start), np.uint64(stop)):
        x = logit(words[i])
        largest = max(largest, key(x))
        magnitude = max(magnitude, _magnitude(x))
    return np.int64(largest), magnitude > _INFINITY


@njit
def total(values, count):
    """Σ values[:count], in vectors."""
    wide()
    out = 0.0
    for i in range(np.uint64(count)):
        out = plus(out, values[i])
    return out


@njit
def added(words):
    """Σ words, wrapping round."""
    wide()
    out = np.int32(0)
    for i in range(len(words)):
        out += words[i]
    return out


@njit
def any_at_least(words, start, stop, lowest):
    """Whether one of words[start:stop] has this key or a larger one."""
    wide()
    found = 0
    for i in range(np.uint64(start), np.uint64(stop)):
        found += key(logit(words[i])) >= lowest
    return found > 0


@njit(fastmath={"contract"})
def mass(words, start, stop, peak, scale):
    """Σ 2^((x − peak)·scale)."""
    wide()
    total = 0.0
    for i in range(np.uint64(start), np.uint64(stop)):
        total = plus(total, power((np.float64(logit(words[i])) - peak) * scale))
    return total


@njit(fastmath={"contract"})
def skim(words, start, stop, peak, scale):
    """`top` and, in float32, `mass` of a piece in one pass. The mass is good for a piece that weighs little: its
    relative error is some 1e-7. It is garbage if the top is beyond `peak`, or the scale beyond `LIGHT_SCALE`."""
    wide()
    peak32, scale32 = np.float32(peak), np.float32(scale)
    rest32 = np.float32(scale - np.float64(scale32))  # what rounding takes from the scale would bend all alike
    largest, magnitude, total = np.int32(LOWEST), np.int32(0), np.float32(0.0)
    for i in range(np.uint64(start), np.uint64(stop)):
        x = logit(words[i])
        largest = max(largest, key(x))
        magnitude = max(magnitude, _magnitude(x))
        total = plus(total, _weight32(x - peak32, scale32, rest32))
    return np.int64(largest), magnitude > _INFINITY, np.float64(total)


@njit(fastmath={"contract"})
def light_rest(start, stop, p_words, p_law, q_words, q_law):
    """Σ (pace·2^((p − peak)·scale) − the same of q)₊ in float32, for pieces that weigh little. A law here: peak, scale,
    pace."""
    wide()
    (p_peak, p_scale, p_pace), (q_peak, q_scale, q_pace) = p_law, q_law
    peak, scale, pace = np.float32(p_peak), np.float32(p_scale), np.float32(p_pace)
    other_peak, other_scale, other_pace = np.float32(q_peak), np.float32(q_scale), np.float32(q_pace)
    rest = np.float32(p_scale - np.float64(scale))
    other_rest = np.float32(q_scale - np.float64(other_scale))
    total = np.float32(0.0)
    for i in range(np.uint64(start), np.uint64(stop)):
        p = pace * _weight32(logit(p_words[i]) - peak, scale, rest)
        q = other_pace * _weight32(logit(q_words[i]) - other_peak, other_scale, other_rest)
        total = plus(total, p - q if p > q else np.float32(0.0))
    return np.float64(total)
