// The CUDA driver's calls, found in libcuda.so.1 when a session for a GPU is opened. Declared here: boards have no headers of CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace flexcomp::cuda {

using Result = int;  // CUresult
using DevicePointer = uint64_t;  // CUdeviceptr
using AllocationHandle = unsigned long long;
using Context = struct ContextObject*;
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using Graph = struct GraphObject*;
using GraphExec = struct GraphExecObject*;

inline constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100, kNotReady = 600;

// CUdevice_attribute
inline constexpr int kIntegrated = 18, kMajor = 75, kMinor = 76, kHostRegister = 99, kVirtualMemory = 102;
// Flags of CUstream, CUevent, host registration and stream capture.
inline constexpr unsigned kNonBlocking = 1, kNoTiming = 2, kDeviceMap = 2;
inline constexpr int kCaptureThreadLocal = 1;
inline constexpr uintptr_t kDefaultStream = 1;  // that of libraries that name none

struct MemoryLocation {
  int type = 1;  // on a device
  int id = 0;
};
// CUmemAllocationProp: memory of a device, for this process alone.
struct AllocationProperties {
  int type = 1;  // pinned
  int handle_types = 0;
  MemoryLocation location;
  void* win32_metadata = nullptr;
  unsigned char flags[8] = {};
};
struct AccessDescription {
  MemoryLocation location;
  int flags = 3;  // read and written
};

// Every call: name here, symbol in the library, parameters.
// clang-format off
#define FLEXCOMP_CUDA_CALLS(CALL)                                                                                        \
  CALL(Init, cuInit, (unsigned flags))                                                                                   \
  CALL(DriverGetVersion, cuDriverGetVersion, (int* version))                                                             \
  CALL(GetErrorName, cuGetErrorName, (Result error, const char** name))                                                  \
  CALL(GetErrorString, cuGetErrorString, (Result error, const char** text))                                              \
  CALL(DeviceGetCount, cuDeviceGetCount, (int* count))                                                                   \
  CALL(DeviceGet, cuDeviceGet, (int* device, int number))                                                                \
  CALL(DeviceGetName, cuDeviceGetName, (char* name, int nbytes, int device))                                             \
  CALL(DeviceGetAttribute, cuDeviceGetAttribute, (int* value, int attribute, int device))                                \
  CALL(PrimaryContextRetain, cuDevicePrimaryCtxRetain, (Context* context, int device))                                   \
  CALL(PrimaryContextRelease, cuDevicePrimaryCtxRelease_v2, (int device))                                                \
  CALL(ContextPush, cuCtxPushCurrent_v2, (Context context))                                                              \
  CALL(ContextPop, cuCtxPopCurrent_v2, (Context* context))                                                               \
  CALL(HostRegister, cuMemHostRegister_v2, (void* data, size_t nbytes, unsigned flags))                                  \
  CALL(HostUnregister, cuMemHostUnregister, (void* data))                                                                \
  CALL(HostGetDevicePointer, cuMemHostGetDevicePointer_v2, (DevicePointer* place, void* data, unsigned flags))           \
  CALL(GetAllocationGranularity, cuMemGetAllocationGranularity,                                                          \
       (size_t* nbytes, const AllocationProperties* properties, int option))                                             \
  CALL(AddressReserve, cuMemAddressReserve,                                                                              \
       (DevicePointer* base, size_t nbytes, size_t alignment, DevicePointer hint, unsigned long long flags))             \
  CALL(AddressFree, cuMemAddressFree, (DevicePointer base, size_t nbytes))                                               \
  CALL(MemoryCreate, cuMemCreate,                                                                                        \
       (AllocationHandle* handle, size_t nbytes, const AllocationProperties* properties, unsigned long long flags))      \
  CALL(MemoryRelease, cuMemRelease, (AllocationHandle handle))                                                           \
  CALL(MemoryMap, cuMemMap,                                                                                              \
       (DevicePointer place, size_t nbytes, size_t offset, AllocationHandle handle, unsigned long long flags))           \
  CALL(MemoryUnmap, cuMemUnmap, (DevicePointer place, size_t nbytes))                                                    \
  CALL(MemorySetAccess, cuMemSetAccess,                                                                                  \
       (DevicePointer place, size_t nbytes, const AccessDescription* access, size_t count))                              \
  CALL(MemoryAllocate, cuMemAlloc_v2, (DevicePointer* data, size_t nbytes))                                              \
  CALL(MemoryFree, cuMemFree_v2, (DevicePointer data))                                                                   \
  CALL(CopyAsync, cuMemcpyAsync, (DevicePointer to, DevicePointer from, size_t nbytes, Stream stream))                   \
  CALL(SetBytesAsync, cuMemsetD8Async, (DevicePointer place, unsigned char value, size_t nbytes, Stream stream))         \
  CALL(StreamCreate, cuStreamCreate, (Stream* stream, unsigned flags))                                                   \
  CALL(StreamDestroy, cuStreamDestroy_v2, (Stream stream))                                                               \
  CALL(StreamSynchronize, cuStreamSynchronize, (Stream stream))                                                          \
  CALL(StreamWaitEvent, cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))                                 \
  CALL(EventCreate, cuEventCreate, (Event* event, unsigned flags))                                                       \
  CALL(EventDestroy, cuEventDestroy_v2, (Event event))                                                                   \
  CALL(EventRecord, cuEventRecord, (Event event, Stream stream))                                                         \
  CALL(EventSynchronize, cuEventSynchronize, (Event event))                                                              \
  CALL(ModuleLoadData, cuModuleLoadData, (Module* module, const void* image))                                            \
  CALL(ModuleUnload, cuModuleUnload, (Module module))                                                                    \
  CALL(ModuleGetFunction, cuModuleGetFunction, (Function* function, Module module, const char* name))                    \
  CALL(LaunchKernel, cuLaunchKernel,                                                                                     \
       (Function function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,                  \
        unsigned threads_y, unsigned threads_z, unsigned shared_nbytes, Stream stream, void** parameters, void** extra)) \
  CALL(StreamBeginCapture, cuStreamBeginCapture_v2, (Stream stream, int mode))                                           \
  CALL(StreamEndCapture, cuStreamEndCapture, (Stream stream, Graph* graph))                                              \
  CALL(GraphInstantiate, cuGraphInstantiateWithFlags, (GraphExec* exec, Graph graph, unsigned long long flags))          \
  CALL(GraphLaunch, cuGraphLaunch, (GraphExec exec, Stream stream))                                                      \
  CALL(GraphExecDestroy, cuGraphExecDestroy, (GraphExec exec))                                                           \
  CALL(GraphDestroy, cuGraphDestroy, (Graph graph))
// clang-format on

// The calls, as the driver of this machine has them.
class Driver {
 public:
  // Finds and initialises the driver. Throws TargetError: there is none, or the driver is too old or does not work.
  Driver();
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

#define FLEXCOMP_CUDA_POINTER(name, symbol, parameters) Result(*name) parameters = nullptr;
  FLEXCOMP_CUDA_CALLS(FLEXCOMP_CUDA_POINTER)
#undef FLEXCOMP_CUDA_POINTER

  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  std::string Describe(Result result) const;

 private:
  void Find();

  void* library_;
};

}  // namespace flexcomp::cuda
