// The part of CUDA that generated CUDA C uses, for a C++ compiler. `emulator.py` numbers barriers, shuffles and shared arrays.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "fibers.h"

#define __global__
#define __launch_bounds__(...)
#define ON_CPU_SHARED(index, type, name, extent) \
  type* const name = static_cast<type*>(on_cpu::Grid::current_grid->Shared(index, (extent) * sizeof(type)))
#define ON_CPU_THREADS(place) on_cpu::Grid::current_grid->Barrier(place)
#define ON_CPU_WARP(place) on_cpu::Grid::current_grid->WarpBarrier(place)
#define ON_CPU_COMMIT(place) on_cpu::Grid::current_grid->Commit(place)
#define ON_CPU_WAIT(place, left) on_cpu::Grid::current_grid->WaitForFetches(place, left)

using uint = unsigned;
using uchar = unsigned char;
using ushort = unsigned short;
using half = _Float16;
struct nv_bfloat16 {
  ushort bits;
};  // of which only pointers are used

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")

// Vectors that are loaded and stored at once, and so must be aligned.
#define ON_CPU_VECTORS(type)                                       \
  struct alignas(2 * sizeof(type)) type##2 { type x, y; };         \
  struct alignas(4 * sizeof(type)) type##4 { type x, y, z, w; };   \
  inline type##2 make_##type##2(type x, type y) { return {x, y}; } \
  inline type##4 make_##type##4(type x, type y, type z, type w) { return {x, y, z, w}; }
ON_CPU_VECTORS(float)
ON_CPU_VECTORS(int)
ON_CPU_VECTORS(uint)
ON_CPU_VECTORS(ushort)
// Of 32 bytes, which are loaded as two of 16.
struct alignas(16) ulonglong4 {
  unsigned long long x, y, z, w;
};
inline ulonglong4 make_ulonglong4(uint64_t x, uint64_t y, uint64_t z, uint64_t w) { return {x, y, z, w}; }

// Of integers; those of floats would treat NaN otherwise than CPUs do, and generated code has none.
inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

// Functions that `schedules/cuda/instructions.py` names.
inline int signed_byte(unsigned word, int number) { return int8_t(word >> 8 * number); }
inline void* kept_pointer(void* place) { return place; }
#define ON_CPU_FETCH(nbytes)                                                                \
  template <int beyond>                                                                     \
  void fetch_##nbytes(void* to, const void* from, int at, int is_outside) {                 \
    const char* place = static_cast<const char*>(from) + (ptrdiff_t(at) + beyond) * nbytes; \
    on_cpu::Grid::current_grid->Fetch(to, place, nbytes, is_outside);                       \
  }
ON_CPU_FETCH(4)
ON_CPU_FETCH(8)
ON_CPU_FETCH(16)

// To the nearest of ten bits of mantissa, of two to the one that is farther from zero.
inline float tf32_rounded(float number) {
  if (std::isnan(number)) return std::bit_cast<float>(0x7fffffffu);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(number) + 0x1000u) & ~0x1fffu);
}
inline void OnCpuMultiply(int place, float* sums, float a, float b, float c, float d, float e, float f) {
  on_cpu::Grid::current_grid->Multiply(-1 - place, {{a, b, c, d}, {e, f}}, sums, 8);
}

template <typename T>
T OnCpuShuffleXor(int place, unsigned mask, T value, int bits, int width) {
  on_cpu::Grid* grid = on_cpu::Grid::current_grid;
  if (mask != 0xffffffffu || width != int(on_cpu::kWarp)) grid->Fail("shuffles are of whole warps");
  uint64_t shown = 0;
  std::memcpy(&shown, &value, sizeof(T));
  shown = grid->Exchange(-1 - place, shown, grid->lane() ^ bits);
  std::memcpy(&value, &shown, sizeof(T));
  return value;
}
