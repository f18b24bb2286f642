"""Instructions that generated CUDA C asks for by name, since nvcc would not choose them: functions around PTX.

`PREAMBLES` has their texts; a translation unit begins with the ones in use. The emulator of the tests has functions of the
same names.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

_BYTE, _FETCH, _POINTER, _TENSOR = "signed_byte", "fetch_", "kept_pointer", "tf32_"
COMMIT, WAIT = "fetch_commit", "fetch_wait"

# By a word that occurs in all sources that need the text.
PREAMBLES = {
    # A conversion to float32 takes any byte of a register when written so; for shifts nvcc emits two more instructions.
    _BYTE: """\
static __device__ __forceinline__ int signed_byte(unsigned word, int number) {
  int byte;
  asm("bfe.s32 %0, %1, %2, 8;" : "=r"(byte) : "r"(word), "r"(8 * number));
  return byte;
}
""",
    # The sum of two places stays one: that of a pointer in registers and an index is one instruction.
    _POINTER: """\
static __device__ __forceinline__ void* kept_pointer(void* place) { asm volatile("" : "+l"(place)); return place; }
""",
    # Copies to shared memory that go on while threads compute. Those of 16 bytes go past L1, which smaller ones cannot. Where a
    # number is outside nothing is read, and zeros are written.
    _FETCH: """\
#define FETCH(nbytes, type, by) \\
  template <int beyond> \\
  static __device__ __forceinline__ void fetch_##nbytes(void* to, const void* from, int at, int is_outside) { \\
    asm volatile("{ .reg .pred outside; setp.ne.b32 outside, %2, 0; " \\
                 "cp.async." #by ".shared.global [%0], [%1 + %3], " #nbytes ", outside; }" \\
                 :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global((const type*)from + at)), \\
                    "r"(is_outside), "n"(beyond * nbytes) : "memory"); \\
  }
FETCH(4, float, ca)
FETCH(8, float2, ca)
FETCH(16, float4, cg)
static __device__ __forceinline__ void fetch_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left>
static __device__ __forceinline__ void fetch_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(left) : "memory"); }
""",
    # A product of 16 × 8 and 8 × 8 numbers by the threads of a warp; of the sums of each two neighbours lie eight apart.
    _TENSOR: """\
static __device__ __forceinline__ float tf32_rounded(float number) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(number));
  return __uint_as_float(rounded);
}
static __device__ __forceinline__ void tf32_multiply(float* sums, float a, float b, float c, float d, float e, float f) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[8]), "+f"(sums[9])
               : "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(__float_as_uint(c)), "r"(__float_as_uint(d)),
                 "r"(__float_as_uint(e)), "r"(__float_as_uint(f)));
}
""",
}  # fmt: skip


def kept_pointer(buffer: tirx.Buffer, at) -> ir.Expr:
    """Where buffer[at] lies, in registers."""
    return T.bind(tirx.call_extern("handle", _POINTER, tirx.address_of(buffer[at])))


def signed_byte(word: ir.Expr, number: int) -> ir.Expr:
    """Byte `number` of a word, counted from the lowest, as an int32."""
    return tirx.call_pure_extern("int32", _BYTE, word, number)


def fetch(target: tirx.Buffer, at, pointer: ir.Expr, far, beyond: int, lanes: int, inside) -> None:
    """Begin to copy `lanes` numbers to target[at : at + lanes], in shared memory; zeros if not `inside`.

    The source is `far + beyond` times `lanes` numbers after the pointer; `beyond` takes no instruction. sm_80 and newer
    (PTX ISA, "Asynchronous copy operations").
    """
    outside = tirx.const(0, "int32") if inside is True else tirx.Cast("int32", tirx.Not(inside))
    T.evaluate(tirx.call_extern("void", f"{_FETCH}{4 * lanes}<{beyond}>", tirx.address_of(target[at]), pointer, far, outside))


def commit() -> None:
    """Make a group of the copies that the thread has begun since the last call."""
    T.evaluate(tirx.call_extern("void", COMMIT))


def wait(left: int) -> None:
    """Wait for all groups of the thread but the last `left`; a barrier after this waits for those of other threads."""
    T.evaluate(tirx.call_extern("void", f"{WAIT}<{left}>"))


def tf32_rounded(number: ir.Expr) -> ir.Expr:
    """The nearest float32 with ten bits of mantissa, of two the one that is farther from zero."""
    return tirx.call_pure_extern("float32", f"{_TENSOR}rounded", number)


def tf32_multiply(sums: tirx.Buffer, at, left: Sequence[ir.Expr], right: Sequence[ir.Expr]) -> None:
    """Add a warp's product to sums[at], sums[at + 1], sums[at + 8] and sums[at + 9] of each of its threads.

    Thread 4g + t shows numbers (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) of the left operand, 16 × 8, and (t, g), (t + 4, g)
    of the right one, 8 × 8, and has sums (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1) (PTX ISA, "Matrix fragments for
    mma.m16n8k8"). Further bits of mantissa than ten do not count. All threads of the warp come here. sm_80 and newer.
    """
    T.evaluate(tirx.call_extern("void", f"{_TENSOR}multiply", tirx.address_of(sums[at]), *left, *right))
