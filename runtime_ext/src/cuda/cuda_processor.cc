#include "cuda/cuda_processor.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "cuda/device_memory.h"
#include "cuda/device_tensor.h"
#include "cuda/measure_rates.h"
#include "kernels/call_table.h"
#include "base/process_mark.h"

namespace flexcomp::cuda {
namespace {

// Size of the data at a symbol, from the library's table of symbols.
uint64_t NbytesAt(const void* data) {
  Dl_info info;
  void* symbol = nullptr;
  const bool found = ::dladdr1(data, &info, &symbol, RTLD_DL_SYMENT) != 0 && symbol != nullptr && info.dli_saddr == data;
  return found ? static_cast<const ElfW(Sym)*>(symbol)->st_size : 0;
}

std::unique_ptr<Delivery> MakeDelivery(Device& device, StreamOrder& order, const MappedMemory*& mapped) {
  if (device.integrated()) return std::make_unique<SharedDelivery>(device, order, mapped);
  return std::make_unique<CopiedDelivery>(device, order);
}

// A forked process leaves its copy alone.
std::shared_ptr<Device> Shared() {
  return {new Device, [process = ProcessMark()](Device* device) {
            if (process.IsThisProcess()) delete device;
          }};
}

}  // namespace

CudaProcessor::CudaProcessor(const Shapes& shapes, const std::string& library_path)
    : shapes_(shapes),
      shared_(Shared()),
      device_(*shared_),
      library_(shapes[0].layers.at(0), library_path),
      order_(device_, shapes),
      graph_(device_),
      delivery_(MakeDelivery(device_, order_, mapped_)) {}

CudaProcessor::~CudaProcessor() { device_.Settle(); }

Kernel CudaProcessor::Find(const Layer& layer) {
  const void* data = library_.FindKernel(layer);
  if (data == nullptr)
    RaiseError("ArtifactError", "the library has no kernel ", layer.kernel, " that takes what layer ", layer.name, " gives it");
  std::unique_ptr<LoadedKernel>& loaded = kernels_[data];
  if (!loaded) {
    const DeviceKernel kernel = ReadDeviceKernel(static_cast<const std::byte*>(data), NbytesAt(data));
    loaded = std::make_unique<LoadedKernel>(device_, kernel, layer);
  }
  return loaded.get();
}

Kernel CudaProcessor::FindPreparation(const Layer& layer) {
  RaiseError("ArtifactError", "the weights of layer ", layer.name, " are to be prepared when they are loaded, which is not done for GPUs");
}

std::unique_ptr<SessionMemory> CudaProcessor::MakeMemory(uint64_t nbytes) {
  if (device_.integrated()) {
    auto mapped = std::make_unique<MappedMemory>(device_, nbytes);
    mapped_ = mapped.get();
    return mapped;
  }
  uint64_t most = nbytes;
  for (const auto& program : shapes_.programs())
    for (const RungHead& rung : program->rungs) most = std::max(most, rung.arena);
  return std::make_unique<DeviceMemory>(device_, nbytes, most);
}

void CudaProcessor::Use(const Tapes& tapes) noexcept {
  graph_.Clear();  // the graph has the addresses of another arena
  order_.Use(tapes);
}

int CudaProcessor::Tell(const Refusal& refusal) noexcept {
  if (!refusal) return 0;
  try {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", device_.Describe(refusal).c_str());
  } catch (const std::bad_alloc&) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", refusal.call);
  }
  return -1;
}

void CudaProcessor::AwaitLoads(uint32_t step, uint32_t need) {
  if (const Refusal refusal = order_.AwaitLoads(step, need)) device_.Raise(refusal);
}

int CudaProcessor::Step(uint32_t step, uint32_t need, Kernel kernel, const TVMFFIAny* args, int32_t) noexcept {
  Refusal refusal = order_.BeforeStep(step, need);
  if (!refusal) refusal = static_cast<const LoadedKernel*>(kernel)->Launch(device_.compute(), args);
  if (!refusal && (refusal = order_.AfterStep(step)) && (refusal = order_.AfterStep(step))) {
    // The graph runs, and nobody would know when that has ended, nor take back its exchanges.
    device_.Lose(refusal);
  }
  return Tell(refusal);
}

int CudaProcessor::Prepare(Kernel, const TVMFFIAny*, int32_t) noexcept { return Tell({kInvalidValue, "cuLaunchKernel"}); }

int CudaProcessor::Replay(std::span<const Call> calls) noexcept {
  if (!graph_) {
    // After all copies, for which the steps of a graph do not wait.
    Refusal refusal = device_.Try("cuStreamSynchronize", [&](const Driver& driver) { return driver.StreamSynchronize(device_.copy()); });
    if (!refusal) {
      refusal = graph_.Capture([&]() -> Refusal {
        for (const Call& call : calls)
          if (const Refusal refused = static_cast<const LoadedKernel*>(call.kernel)->Launch(device_.compute(), call.args)) return refused;
        return {};
      });
    }
    if (refusal) {
      graph_.Clear();
      return Tell(refusal);
    }
  }
  return Tell(graph_.Launch());
}

tvm::ffi::Tensor CudaProcessor::NewTensor(const TensorType& type) { return cuda::NewTensor(shared_, type); }

DeviceRates CudaProcessor::MeasureRates() { return cuda::MeasureRates(device_); }

void CudaProcessor::Finish() { device_.Finish(device_.compute()); }

}  // namespace flexcomp::cuda
