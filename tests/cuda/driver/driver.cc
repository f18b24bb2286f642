// libcuda.so.1 for machines without a GPU: the runtime's calls, on the device of model.h. Arguments are those of CUDA's driver API.
// The interface for tests is in fake.cc.
#include "model.h"

using namespace model;

namespace {

Stream* const kDefaultStream = reinterpret_cast<Stream*>(1);  // on which callers write late (fake.cc), and nobody else does anything
constexpr char kPtx[8] = {'/', '/', ' ', 'P', 'T', 'X', ' ', '\n'};  // before what images.py gives as such
thread_local int depth = 0;  // of contexts

using Lock = std::unique_lock<std::mutex>;

// The beginning of every call: the call is counted, may be told to fail, and has a context.
int Begin(const char* name, bool in_context = true) {
  Device& d = device();
  ++d.called[name];
  if (++d.calls == d.settings.fail_at) return d.failed = name, d.settings.fail_with;
  if (in_context && depth == 0) return kInvalidContext;
  return in_context ? d.lost : kSuccess;
}

// Waits of one kind, unlike those of all, come in the same order every time.
enum Waiter {
  kCompute,
  kCopy,
  kHost
};
bool SkipsWait(Event* event, Waiter waiter) {
  const Settings& s = device().settings;
  const bool skips = ++device().waits[waiter] == s.skip_at && waiter == s.skip_kind;
  if (skips && event->stream != nullptr) event->stream->stalls = true;
  return skips;
}

struct Module {
  void* library;
  std::string text;  // of PTX
};
struct Function {
  void (*run)(void** parameters, const unsigned* size, unsigned seed, char* error);
  unsigned parameters;
};
struct Graph {
  std::vector<std::function<void()>> operations;
};

int Live(const char* kind, int change) { return device().live[kind] += change, kSuccess; }

void CopyBytes(uint64_t to, uint64_t from, size_t nbytes, bool to_device, bool from_device) {
  Device& d = device();
  if ((to_device && !d.OnDevice(to, nbytes)) || (from_device && !d.OnDevice(from, nbytes))) return d.Lose("a copy outside of memory");
  d.Touch([&] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), nbytes); });
}

}  // namespace

#define CALL(name, ...)      \
  Lock lock(device().mutex); \
  if (const int refused = Begin(name __VA_OPT__(, ) __VA_ARGS__)) return refused

extern "C" {

int cuInit(unsigned) {
  CALL("cuInit", false);
  return kSuccess;
}
int cuDriverGetVersion(int* version) { return *version = device().settings.version, kSuccess; }
int cuGetErrorName(int error, const char** name) {
  *name = error == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                     : "CUDA_ERROR_OF_A_TEST";
  return kSuccess;
}
int cuGetErrorString(int, const char** text) { return *text = "said by a test", kSuccess; }
int cuDeviceGetCount(int* count) {
  CALL("cuDeviceGetCount", false);
  return *count = 1, kSuccess;
}
int cuDeviceGet(int* number, int) {
  CALL("cuDeviceGet", false);
  return *number = 0, kSuccess;
}
int cuDeviceGetName(char* name, int nbytes, int) {
  CALL("cuDeviceGetName", false);
  return std::strncpy(name, "a GPU of tests", nbytes), kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  CALL("cuDeviceGetAttribute", false);
  const Settings& s = device().settings;
  *value = attribute == 75   ? s.architecture / 10
           : attribute == 76 ? s.architecture % 10
           : attribute == 18 ? s.integrated
                             : 1;
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  CALL("cuDevicePrimaryCtxRetain", false);
  if (device().lost) return device().lost;
  *context = &device();
  return Live("contexts", 1);
}
int cuDevicePrimaryCtxRelease_v2(int) {
  CALL("cuDevicePrimaryCtxRelease", false);
  return Live("contexts", -1);
}
int cuCtxPushCurrent_v2(void* context) {
  CALL("cuCtxPushCurrent", false);
  if (context != &device()) return kInvalidContext;
  return ++depth, kSuccess;
}
int cuCtxPopCurrent_v2(void**) { return depth > 0 ? (--depth, kSuccess) : kInvalidContext; }

int cuMemHostRegister_v2(void* data, size_t nbytes, unsigned) {
  CALL("cuMemHostRegister");
  const auto at = reinterpret_cast<uint64_t>(data);
  if (device().registered.count(at)) return kInvalidValue;
  device().registered[at] = {at, nbytes};
  if (device().settings.integrated) device().peak = std::max(device().peak, device().used += nbytes);
  return Live("registrations", 1);
}
int cuMemHostUnregister(void* data) {
  CALL("cuMemHostUnregister");
  const auto found = device().registered.find(reinterpret_cast<uint64_t>(data));
  if (found == device().registered.end()) return kInvalidValue;
  if (device().settings.integrated) device().used -= found->second.nbytes;
  device().registered.erase(found);
  return Live("registrations", -1);
}
int cuMemHostGetDevicePointer_v2(uint64_t* place, void* data, unsigned) {
  CALL("cuMemHostGetDevicePointer");
  return *place = reinterpret_cast<uint64_t>(data), kSuccess;
}
int cuMemGetAllocationGranularity(size_t* nbytes, const void*, int) {
  CALL("cuMemGetAllocationGranularity");
  return *nbytes = device().settings.granularity, kSuccess;
}
int cuMemAddressReserve(uint64_t* base, size_t nbytes, size_t, uint64_t, unsigned long long) {
  CALL("cuMemAddressReserve");
  constexpr uint64_t kGuard = 1 << 20;
  void* all = mmap(nullptr, nbytes + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return kOutOfMemory;
  *base = reinterpret_cast<uint64_t>(all) + kGuard;
  device().reserved[*base] = {*base, nbytes};
  return Live("addresses", 1);
}
int cuMemAddressFree(uint64_t base, size_t nbytes) {
  CALL("cuMemAddressFree");
  constexpr uint64_t kGuard = 1 << 20;
  if (!device().reserved.erase(base)) return kInvalidValue;
  munmap(reinterpret_cast<void*>(base - kGuard), nbytes + 2 * kGuard);
  return Live("addresses", -1);
}
int cuMemCreate(unsigned long long* handle, size_t nbytes, const void*, unsigned long long) {
  CALL("cuMemCreate");
  Device& d = device();
  if (nbytes % d.settings.granularity != 0) return kInvalidValue;
  if (d.used + nbytes > d.settings.nbytes) return kOutOfMemory;
  const int fd = memfd_create("piece", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, nbytes) != 0) return kOutOfMemory;
  // The old contents are undefined.
  const std::vector<char> poison(nbytes, static_cast<char>(0xff));
  if (write(fd, poison.data(), nbytes) != static_cast<ssize_t>(nbytes)) return kOutOfMemory;
  d.pieces[*handle = ++d.last_handle] = {fd, nbytes};
  d.peak = std::max(d.peak, d.used += nbytes);
  return Live("memory", 1);
}
int cuMemRelease(unsigned long long handle) {
  CALL("cuMemRelease");
  Device& d = device();
  const auto piece = d.pieces.find(handle);
  if (piece == d.pieces.end()) return kInvalidValue;
  close(piece->second.fd);
  d.used -= piece->second.nbytes;
  d.pieces.erase(piece);
  return Live("memory", -1);
}
int cuMemMap(uint64_t place, size_t nbytes, size_t offset, unsigned long long handle, unsigned long long) {
  CALL("cuMemMap");
  Device& d = device();
  if (!d.pieces.count(handle) || !d.Reserved(place) || d.mapped.count(place) || offset != 0) return kInvalidValue;
  if (mmap(reinterpret_cast<void*>(place), nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, d.pieces[handle].fd, 0) == MAP_FAILED) return kOutOfMemory;
  return Live("mappings", 1);
}
int cuMemSetAccess(uint64_t place, size_t nbytes, const void*, size_t) {
  CALL("cuMemSetAccess");
  device().mapped[place] = {place, nbytes};
  return kSuccess;
}
int cuMemUnmap(uint64_t place, size_t nbytes) {
  CALL("cuMemUnmap");
  mmap(reinterpret_cast<void*>(place), nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  device().mapped.erase(place);
  return Live("mappings", -1);
}

int cuMemAlloc_v2(uint64_t* data, size_t nbytes) {
  CALL("cuMemAlloc");
  Device& d = device();
  if (nbytes == 0) return kInvalidValue;
  if (d.used + nbytes > d.settings.nbytes) return kOutOfMemory;
  void* at = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return kOutOfMemory;
  std::memset(at, 0xff, nbytes);
  mprotect(at, nbytes, PROT_NONE);
  *data = reinterpret_cast<uint64_t>(at);
  d.mapped[*data] = d.allocated[*data] = {*data, nbytes};
  d.peak = std::max(d.peak, d.used += nbytes);
  return Live("allocations", 1);
}
int cuMemFree_v2(uint64_t data) {
  CALL("cuMemFree");
  Device& d = device();
  const auto found = d.allocated.find(data);
  if (found == d.allocated.end()) return kInvalidValue;
  munmap(reinterpret_cast<void*>(data), found->second.nbytes);
  d.used -= found->second.nbytes;
  d.mapped.erase(data);
  d.allocated.erase(found);
  return Live("allocations", -1);
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t nbytes, Stream* stream) {
  CALL("cuMemcpyAsync");
  Device& d = device();
  if (stream->capturing) return kCaptureUnsupported;
  const bool to_device = d.OnDevice(to, nbytes), from_device = d.OnDevice(from, nbytes);
  const bool from_pageable = !from_device && !d.Pinned(from, nbytes), to_pageable = !to_device && !d.Pinned(to, nbytes);
  if (d.Reserved(to) != to_device && !to_device) return kInvalidValue;
  d.called["pageable copies"] += from_pageable || to_pageable;
  if (from_pageable) {
    const auto* bytes = reinterpret_cast<const char*>(from);
    auto taken = std::make_shared<std::vector<char>>(bytes, bytes + nbytes);
    d.Give(*stream, [=] { CopyBytes(to, reinterpret_cast<uint64_t>(taken->data()), nbytes, to_device, false); });
  } else {
    d.Give(*stream, [=] { CopyBytes(to, from, nbytes, to_device, from_device); });
  }
  if (to_pageable) d.AwaitStream(lock, *stream);
  return d.lost;
}
int cuMemsetD8Async(uint64_t place, unsigned char value, size_t nbytes, Stream* stream) {
  CALL("cuMemsetD8Async");
  const bool host = device().Pinned(place, nbytes);
  device().Give(*stream, [=] {
    if (!host && !device().OnDevice(place, nbytes)) return device().Lose("bytes set outside of memory");
    device().Touch([&] { std::memset(reinterpret_cast<void*>(place), value, nbytes); });
  });
  return kSuccess;
}

int cuStreamCreate(Stream** stream, unsigned) {
  CALL("cuStreamCreate");
  *stream = new Stream;
  (*stream)->number = device().live["streams"];  // where the second stream of a session failed, the next one has a first again
  (*stream)->random.seed(device().settings.seed * 2 + (*stream)->number % 2);
  (*stream)->thread = std::thread([stream = *stream] { device().Run(*stream); });
  return Live("streams", 1);
}
int cuStreamDestroy_v2(Stream* stream) {
  {
    CALL("cuStreamDestroy");
    stream->ending = true;
    device().changed.notify_all();
    Live("streams", -1);
  }
  stream->thread.join();
  delete stream;
  return kSuccess;
}
int cuStreamSynchronize(Stream* stream) {
  CALL("cuStreamSynchronize");
  if (stream == kDefaultStream) {
    device().changed.wait(lock, [] { return device().late_writes == 0; });
    return device().lost;
  }
  if (stream->capturing) return kCaptureUnsupported;
  device().AwaitStream(lock, *stream);
  return device().lost;
}
int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  CALL("cuStreamWaitEvent");
  if (SkipsWait(event, stream->number % 2 == 0 ? kCompute : kCopy)) return kSuccess;
  const uint64_t number = event->recorded;
  device().Give(*stream, [=] { device().changed.wait(*Device::current, [=] { return event->passed >= number; }); });
  return kSuccess;
}
int cuEventCreate(Event** event, unsigned) {
  CALL("cuEventCreate");
  *event = new Event;
  return Live("events", 1);
}
int cuEventDestroy_v2(Event* event) {
  CALL("cuEventDestroy");
  delete event;
  return Live("events", -1);
}
int cuEventRecord(Event* event, Stream* stream) {
  CALL("cuEventRecord");
  const uint64_t number = ++event->recorded;
  event->stream = stream;
  device().Give(*stream, [=] { event->passed = std::max(event->passed, number); });
  return kSuccess;
}
int cuEventSynchronize(Event* event) {
  CALL("cuEventSynchronize");
  if (SkipsWait(event, kHost)) return kSuccess;
  const uint64_t number = event->recorded;
  device().changed.wait(lock, [=] { return event->passed >= number; });
  return device().lost;
}

int cuModuleLoadData(Module** module, const void* image) {
  CALL("cuModuleLoadData");
  const auto* bytes = static_cast<const unsigned char*>(image);
  if (std::memcmp(bytes, kPtx, sizeof(kPtx)) == 0) {
    bytes += sizeof(kPtx);
    ++device().called["PTX"];
  } else if (device().settings.refuses_cubins) {
    return kNoBinary;
  }
  if (std::memcmp(bytes, ".version", 8) == 0) {
    *module = new Module{nullptr, static_cast<const char*>(image)};
    return Live("modules", 1);
  }
  if (std::memcmp(bytes, "\177ELF", 4) != 0) return kInvalidImage;
  // Where its table of sections ends: at the end of the file, as from the linker.
  uint64_t at;
  uint16_t size, count;
  std::memcpy(&at, bytes + 40, 8), std::memcpy(&size, bytes + 58, 2), std::memcpy(&count, bytes + 60, 2);
  const size_t nbytes = at + size * count;
  const int fd = memfd_create("module", MFD_CLOEXEC);
  const bool written = fd >= 0 && write(fd, bytes, nbytes) == static_cast<ssize_t>(nbytes);
  // A name of its own: a file of this name that was closed is another one.
  static int modules = 0;
  const std::string path = "/tmp/.module-" + std::to_string(getpid()) + "-" + std::to_string(modules++);
  const bool linked = written && symlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.c_str()) == 0;
  void* library = linked ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (linked) unlink(path.c_str());
  if (fd >= 0) close(fd);
  if (library == nullptr) return kInvalidImage;
  *module = new Module{library, {}};
  return Live("modules", 1);
}
int cuModuleUnload(Module* module) {
  CALL("cuModuleUnload");
  if (module->library != nullptr) dlclose(module->library);
  delete module;
  return Live("modules", -1);
}
int cuModuleGetFunction(Function** function, Module* module, const char* name) {
  CALL("cuModuleGetFunction");
  if (module->library == nullptr) {  // text of which only kernels that do nothing are understood
    static Function nothing = {[](void**, const unsigned*, unsigned, char*) {}, 0};
    if (module->text.find(".entry " + std::string(name) + "()\n{\n  ret;\n}") == std::string::npos) return kNotFound;
    return *function = &nothing, kSuccess;
  }
  void* run = dlsym(module->library, ("OnDevice_" + std::string(name)).c_str());
  void* parameters = dlsym(module->library, ("OnDeviceParameters_" + std::string(name)).c_str());
  if (run == nullptr || parameters == nullptr) return kNotFound;
  static std::map<void*, Function> functions;  // those of modules are as many as modules
  functions[run] = {reinterpret_cast<decltype(Function::run)>(run), *static_cast<unsigned*>(parameters)};
  return *function = &functions[run], kSuccess;
}
int cuLaunchKernel(Function* function, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz, unsigned,
                   Stream* stream, void** parameters, void**) {
  CALL("cuLaunchKernel");
  if (uint64_t{bx} * by * bz == 0 || uint64_t{tx} * ty * tz > 1024) return kInvalidValue;
  std::vector<uint64_t> values;
  for (unsigned i = 0; i < function->parameters; ++i) values.push_back(*static_cast<uint64_t*>(parameters[i]));
  const unsigned seed = device().settings.seed;
  device().Give(*stream, [=] {
    std::vector<uint64_t> taken = values;
    std::vector<void*> pointers;
    for (uint64_t& value : taken) pointers.push_back(&value);
    const unsigned size[] = {bx, by, bz, tx, ty, tz};
    char error[256] = {};
    device().Touch([&] { function->run(pointers.data(), size, seed, error); });
    if (error[0] != 0) device().Lose(error);
  });
  return kSuccess;
}
int cuStreamBeginCapture_v2(Stream* stream, int) {
  CALL("cuStreamBeginCapture");
  if (stream->capturing) return kInvalidHandle;
  return stream->capturing = true, kSuccess;
}
int cuStreamEndCapture(Stream* stream, Graph** graph) {
  CALL("cuStreamEndCapture");
  if (!stream->capturing) return kInvalidHandle;
  stream->capturing = false;
  *graph = new Graph{std::move(stream->captured)};
  stream->captured.clear();
  return Live("graphs", 1);
}
int cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, unsigned long long) {
  CALL("cuGraphInstantiate");
  *exec = new Graph(*graph);
  return Live("executable graphs", 1);
}
int cuGraphLaunch(Graph* exec, Stream* stream) {
  CALL("cuGraphLaunch");
  for (const auto& operation : exec->operations) device().Give(*stream, operation);
  return kSuccess;
}
int cuGraphExecDestroy(Graph* exec) {
  CALL("cuGraphExecDestroy");
  delete exec;
  return Live("executable graphs", -1);
}
int cuGraphDestroy(Graph* graph) {
  CALL("cuGraphDestroy");
  delete graph;
  return Live("graphs", -1);
}

}  // extern "C"
