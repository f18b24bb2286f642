// The kernels of tests/runtime/tiny.py in C++: those that TVM compiles are invisible to sanitizers.
//
// Compiled with MV, MUL and HALVE_ADD defined as the symbols of their code.
#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Filled by every session that is opened, always with the same.
#pragma GCC visibility push(default)
extern "C" {
void* flexcomp_parallel_launch = nullptr;
void* flexcomp_alloc_workspace = nullptr;
void* flexcomp_free_workspace = nullptr;
}
#pragma GCC visibility pop

namespace {

constexpr int kN = 256, kBlock = 32;

float* Data(const TVMFFIAny& any) { return static_cast<float*>(static_cast<DLTensor*>(any.v_ptr)->data); }

template <typename Function>
Function Backend(void*& pointer) {
  return reinterpret_cast<Function>(__atomic_load_n(&pointer, __ATOMIC_RELAXED));
}

struct Env {
  void* sync;
  int32_t tasks;
};

struct Product {
  const float *x, *w;
  float* y;
  int64_t first, count;
};

// Blocks of a task, each through a tile in workspace.
int Multiply(int task, Env* env, void* data) {
  const Product& product = *static_cast<Product*>(data);
  const auto alloc = Backend<void* (*)(int, int, uint64_t, int, int)>(flexcomp_alloc_workspace);
  const auto release = Backend<int (*)(int, int, void*)>(flexcomp_free_workspace);
  for (int64_t block = task; block < product.count; block += env->tasks) {
    auto* tile = static_cast<float*>(alloc(1, 0, kBlock * sizeof(float), 2, 32));
    if (tile == nullptr) return -1;
    std::memset(tile, 0, kBlock * sizeof(float));
    for (int k = 0; k < kN; ++k) {
      const float x = product.x[k] > 0 ? product.x[k] : 0;
      for (int i = 0; i < kBlock; ++i) tile[i] += x * product.w[(block * kN + k) * kBlock + i];
    }
    std::memcpy(product.y + (product.first + block) * kBlock, tile, kBlock * sizeof(float));
    if (release(1, 0, tile) != 0) return -1;
  }
  return 0;
}

}  // namespace

EXPORT int MV(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  Product product{Data(args[0]), Data(args[1]), Data(args[4]), args[2].v_int64, args[3].v_int64};
  return Backend<int (*)(int (*)(int, Env*, void*), void*, int)>(flexcomp_parallel_launch)(&Multiply, &product, 0);
}

EXPORT int MUL(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  for (int i = 0; i < kN; ++i) Data(args[2])[i] = Data(args[0])[i] * Data(args[1])[i];
  return 0;
}

EXPORT int HALVE_ADD(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  for (int i = 0; i < kN; ++i) Data(args[3])[i] = Data(args[0])[i] * 0.5f;
  for (int i = 0; i < kN; ++i) Data(args[2])[i] = Data(args[3])[i] + Data(args[1])[i];
  return 0;
}
