"""Instructions that generated CUDA C asks for by name, since nvcc would not choose them: functions around PTX.

`PREAMBLES` has their texts; a translation unit begins with those that it uses. The emulator of the tests has functions of the
same names.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

_BYTE, _FETCH, _POINTER = "signed_byte", "fetch_", "kept_pointer"
COMMIT, WAIT = "fetch_commit", "fetch_wait"

# By a word that all sources have that need them.
PREAMBLES = {
    # A conversion to float32 takes any byte of a register that it finds so; of shifts nvcc makes two instructions more.
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
static __device__ __forceinline__ void fetch_wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
""",
}  # fmt: skip


def kept_pointer(buffer: tirx.Buffer, at) -> ir.Expr:
    """Where buffer[at] lies, in registers."""
    return T.bind(tirx.call_extern("handle", _POINTER, tirx.address_of(buffer[at])))


def signed_byte(word: ir.Expr, number: int) -> ir.Expr:
    """Byte `number` of a word, which the lowest one begins with, as an int32."""
    return tirx.call_pure_extern("int32", _BYTE, word, number)


def fetch(target: tirx.Buffer, at, pointer: ir.Expr, far, beyond: int, lanes: int, inside) -> None:
    """Begin to copy `lanes` numbers to target[at : at + lanes], in shared memory; zeros if they are not `inside`.

    They lie `far + beyond` times `lanes` numbers behind a pointer; the second part takes no instruction. sm_80 and newer
    (PTX ISA, "Asynchronous copy operations").
    """
    outside = tirx.const(0, "int32") if inside is True else tirx.Cast("int32", tirx.Not(inside))
    T.evaluate(tirx.call_extern("void", f"{_FETCH}{4 * lanes}<{beyond}>", tirx.address_of(target[at]), pointer, far, outside))


def commit() -> None:
    """What the thread has begun to copy since the last time is a group."""
    T.evaluate(tirx.call_extern("void", COMMIT))


def wait() -> None:
    """Wait for all groups of the thread; for those of others it has to meet these at a barrier behind that."""
    T.evaluate(tirx.call_extern("void", WAIT))
