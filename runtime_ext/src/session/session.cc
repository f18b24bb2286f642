#include "session/session.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "cuda/cuda_processor.h"
#include "kernels/cpu_processor.h"
#include "session/arena_use.h"
#include "session/loader_core.h"
#include "session/padded_copy.h"
#include "session/port_check.h"
#include "storage/read_rate.h"
#include "threads/cpu_features.h"

namespace flexcomp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxThreads = 1024;

int64_t NsOf(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Placement PlaceThreads(const Program& program, const SessionOptions& options) {
  if (options.threads > kMaxThreads) RaiseError("InputError", "cannot run on ", options.threads, " threads");
  return Place(options.cores, options.threads, static_cast<int>(std::clamp<uint32_t>(program.threads, 1, kMaxThreads)));
}

std::unique_ptr<Processor> MakeProcessor(const Shapes& shapes, const SessionOptions& options, const Placement& placement) {
  const Program& program = shapes[0];
  const std::vector<std::string> missing = MissingCpuFeatures(program.features);
  if (!missing.empty()) {
    std::string list;
    for (const std::string& feature : missing) list += (list.empty() ? "" : ", ") + feature;
    RaiseError("TargetError", "the library was compiled for \"", program.target, "\"; this processor lacks ", list);
  }
  if (const int error = RequestTiles(program.features); error != 0)
    RaiseError("TargetError", "the library was compiled for \"", program.target, "\" and multiplies in tiles of AMX, which the ",
               "kernel refuses: ", std::strerror(error), "; Linux allows them from 5.16 on, unless an alternative signal stack of ",
               "a thread lacks room for them. Build with arithmetic=\"float32\", or for a processor without AMX");
  if (program.layers.empty()) Raise("ArtifactError", "the program has no layers");
  if (program.on_cuda && options.lane) Raise("InputError", "networks for GPUs do not take turns in one working memory yet");
  if (program.on_cuda && options.linked != nullptr) Raise("ArtifactError", "networks for GPUs cannot be linked with a program");
  if (program.on_cuda) return std::make_unique<cuda::CudaProcessor>(shapes, options.library_path);
  return std::make_unique<CpuProcessor>(program.layers[0], options.library_path, options.linked, placement.threads, placement.compute);
}

Kernels FindKernels(const Program& program, Processor& processor) {
  Kernels kernels;
  for (const Layer& layer : program.layers) {
    const bool prepared = layer.weights && layer.weights->preparation;
    kernels.compute.push_back(processor.Find(layer));
    kernels.prepare.push_back(prepared ? processor.FindPreparation(layer) : nullptr);
  }
  return kernels;
}

}  // namespace

Session::Session(Shapes shapes, const WeightsSource& weights, const SessionOptions& options)
    : programs_(std::move(shapes)),
      lane_(options.lane),
      lane_ladder_(lane_ ? LaneLadder(programs_) : std::vector<LaneRung>{}),
      placement_(PlaceThreads(program(), options)),
      processor_(MakeProcessor(programs_, options, placement_)),
      file_(std::make_unique<WeightsFile>(weights, program(), options.storage)),
      wanted_(RungsFor(options.budget)),
      rung_(wanted_.front()),
      shareables_(lane_ && programs_.size() == 1 ? FindShareables(program()) : Shareables{}) {
  RequireInLane(wanted_);
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const Program& one = programs_[i];
    if (options.storage.verify) CheckPlans(one);
    shapes_.push_back(std::make_unique<Shape>(one, FindKernels(one, *processor_), *processor_, file_->queued()));
    shapes_.back()->checker.Check(wanted_[i]);
  }
  nbytes_ = NbytesFor(wanted_, sharing_);
  left_.reserve(1);  // budgets shrink without asking for memory
  memory_ = processor_->MakeMemory(nbytes_);
  const auto cores = CpuSet::Available();
  const bool own_core = cores && placement_.threads + options.other_threads < cores->count();
  const bool apart = own_core && options.cores.affinity && placement_.loader.empty();
  crowded_ = cores && !own_core;
  loader_ = std::make_unique<Loader>(*file_, placement_.loader, own_core, apart);
  loader_->LetHelp(options.help && processor_->delivery() == nullptr);
  loader_->Deliver(processor_->delivery());
  if (options.trace) {
    trace_.emplace();
    size_t most = 0;
    for (const auto& shape : shapes_) most = std::max(most, shape->tapes.most_operations());
    loader_->NoteTimes(most);
  }
  Use(rung_);
}

void Session::RequireOpen() const {
  if (!loader_) Raise("ExecutionError", "the session is closed");
}

void Session::RequireThisProcess() const {
  if (!process_.IsThisProcess())
    Raise("ExecutionError", "the session was opened before this process was forked: open one here");
}

std::byte* Session::PlaceOf(const Port& port) const noexcept {
  return PlacesOf(rung_).At(current().plan(rung_).value_at[port.value]);
}

uint64_t Session::ResidentArena() {
  RequireThisProcess();
  const std::lock_guard lock(state_mutex_);
  RequireOpen();
  return memory_->Resident();
}

void Session::Close() {
  if (!process_.IsThisProcess()) return;
  const std::lock_guard lock(mutex_);
  const std::lock_guard state_lock(state_mutex_);
  loader_.reset();
  for (const auto& shape : shapes_) shape->calls = {};
  memory_.reset();
  file_.reset();
  processor_.reset();
}

Session::State Session::state() {
  RequireThisProcess();
  const std::lock_guard lock(state_mutex_);
  RequireOpen();
  stats_.total_bytes_read = loader_->total_bytes() + fetched_total_.load(std::memory_order_relaxed);
  return {stats_, shape_, rung_, placement_, file_->direct(), processor_->staging_nbytes()};
}

std::vector<const RungHead*> Session::RungsOfShapes() {
  RequireThisProcess();
  const std::lock_guard lock(state_mutex_);
  RequireOpen();
  std::vector<const RungHead*> rungs;
  for (size_t i = 0; i < wanted_.size(); ++i) rungs.push_back(&programs_[i].rungs[wanted_[i]]);
  return rungs;
}

void Session::Cancel() {
  RequireThisProcess();
  const std::lock_guard lock(state_mutex_);
  RequireOpen();
  if (!running_) return;
  cancelled_ = interrupt_ = true;
  loader_->Interrupt();
}

void Session::RaiseInterrupted(const char* meanwhile) {
  const std::lock_guard lock(state_mutex_);
  RequireGoingOn();
  RaiseError("ExecutionError", "the budget became smaller while ", meanwhile);
}

void Session::RequireGoingOn() const {
  if (stopped_) Raise("Stopped", "the inference was stopped");
  if (cancelled_) Raise("CancelledError", "the inference was cancelled");
}

Trace Session::trace() {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  RequireOpen();
  if (!trace_) Raise("InputError", "the session was opened without tracing");
  return *trace_;
}

void Session::Run(std::span<const DLTensor* const> inputs, std::span<const DLTensor* const> outputs) {
  const auto start = Clock::now();
  RequireThisProcess();
  const Fit fit = FitOf(inputs);
  const Program& used = programs_[fit.shape];
  for (size_t i = 0; i < inputs.size(); ++i) CheckTensor(used.inputs[i].name, fit.input(used, i), *inputs[i], used.on_cuda);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i] != nullptr) CheckTensor(used.outputs[i].name, fit.output(used, i), *outputs[i], used.on_cuda);

  const auto on_device = [](const DLTensor* tensor) { return tensor != nullptr && tensor->device.device_type != kDLCPU; };
  const bool awaits = std::ranges::any_of(inputs, on_device) || std::ranges::any_of(outputs, on_device);
  const auto take_inputs = [&] {
    if (awaits) memory_->AwaitCaller();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Port& port = used.inputs[i];
      if (fit.padded())
        CopyPadded(PlaceOf(port), port.type, DataOf(*inputs[i]), fit.inputs[i], programs_.padding()->value(i));
      else
        memory_->Write(PlaceOf(port), DataOf(*inputs[i]), port.type.nbytes);
    }
  };
  const auto give_outputs = [&] {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Port& port = used.outputs[i];
      if (outputs[i] == nullptr) continue;
      if (fit.padded())
        CopyCut(DataOf(*outputs[i]), fit.outputs[i], PlaceOf(port), port.type);
      else
        memory_->Read(DataOf(*outputs[i]), PlaceOf(port), port.type.nbytes);
    }
  };
  ArenaUse use(*this, fit.shape);
  valid_rows_ = fit.valid_rows.value_or(CallTable::kAllRows);
  Infer(use, start, take_inputs, give_outputs);
}

Fit Session::FitOf(std::span<const DLTensor* const> inputs) const {
  if (!programs_.fits()) return {};
  std::vector<std::span<const int64_t>> extents;
  for (const DLTensor* tensor : inputs) extents.emplace_back(tensor->shape, static_cast<size_t>(tensor->ndim));
  return programs_.FitOf(extents);
}

tvm::ffi::Tensor Session::NewOutput(size_t index) {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  RequireOpen();
  if (index >= current().outputs.size()) RaiseError("InputError", "there is no output ", index);
  return processor_->NewTensor(current().outputs[index].type);
}

void Session::RunInPlace(const PortsCallback& fill, const PortsCallback& drain) {
  std::vector<std::vector<std::byte>> beside;  // for an arena that this process does not see
  const auto places = [&](const std::vector<Port>& ports) {
    std::vector<DLTensor> tensors;
    beside.clear();
    for (const Port& port : ports)
      tensors.push_back(MakeTensor(port.type, memory_->visible() ? PlaceOf(port) : beside.emplace_back(port.type.nbytes).data()));
    return tensors;
  };
  const auto take = [&] {
    std::vector<DLTensor> tensors = places(current().inputs);
    fill(tensors);
    for (size_t i = 0; i < beside.size(); ++i) memory_->Write(PlaceOf(current().inputs[i]), beside[i].data(), beside[i].size());
  };
  const auto give = [&] {
    std::vector<DLTensor> tensors = places(current().outputs);
    for (size_t i = 0; i < beside.size(); ++i) memory_->Read(beside[i].data(), PlaceOf(current().outputs[i]), beside[i].size());
    drain(tensors);
  };
  ArenaUse use(*this);
  valid_rows_ = CallTable::kAllRows;
  // Nothing is read meanwhile: the time that filling takes must not hide any of the inference's.
  if (fill) take();
  bool filled = true;
  const auto fill_again = [&] {
    if (fill && !filled) take();
    filled = false;
  };
  Infer(use, Clock::now(), fill_again, [] {});
  if (drain) give();
}

void Session::TakeShape(size_t shape) {
  if (shape >= programs_.size()) RaiseError("InputError", "there is no shape ", shape, ": the network has ", programs_.size());
  const ArenaUse use(*this, shape);
}

double Session::Warm() {
  const auto start = Clock::now();
  ArenaUse use(*this);
  while (!TryWarm()) use.Switch();
  return SecondsSince(start);
}

bool Session::TryWarm() {
  if (loader_->Filled()) return true;
  loader_->StartFilling();
  bool done = false;
  try {
    done = EndLoads(loader_->Await(static_cast<uint32_t>(loader_->tape().operations.size())));
    if (processor_->delivery() != nullptr) processor_->delivery()->Settle();  // device work counts, too
  } catch (...) {
    loader_->GiveUp();
    throw;
  }
  return done;
}

double Session::ReadRate(uint64_t request_nbytes, uint64_t nbytes) {
  const ArenaUse use(*this);
  if (current().weights.data_nbytes == 0) Raise("InputError", "the network has no weights to read");
  const std::span<std::byte> room = RoomBesideStates();
  if (room.size() < kPage) Raise("InputError", "beside its states the arena has no room to read to");
  const OtherTapes other(*this);
  carry_ = {};
  // A small arena is the target of several reads at a time, none of which is used.
  file_->Verify(false);
  if (const auto rate = MeasureReadRate(*loader_, room, current().weights.data_nbytes, request_nbytes, nbytes)) return *rate;
  RaiseInterrupted("the storage was measured");
}

DeviceRates Session::MeasureDevice() {
  const ArenaUse use(*this);
  loader_->GiveUp();  // reads for the next inference, and copies, may be in flight
  return processor_->MeasureRates();
}

template <typename TakeInputs, typename GiveOutputs>
void Session::Infer(ArenaUse& use, std::chrono::steady_clock::time_point start, const TakeInputs& take_inputs,
                    const GiveOutputs& give_outputs) {
  double stall_s = 0;
  states_written_ = true;
  while (!TryInfer(take_inputs, give_outputs, stall_s)) use.Switch();
  CommitStates();  // now that nothing can fail any more
  const auto end = Clock::now();
  if (trace_) trace_->whole = {NsOf(start), NsOf(end)};
  const std::lock_guard lock(state_mutex_);
  ++stats_.runs;
  stats_.loads = std::exchange(made_, {});
  stats_.loads += loader_->counts();
  stats_.loads += fetched_;
  stats_.stall_s = stall_s;
  stats_.latency_s = std::chrono::duration<double>(end - start).count();
}

template <typename TakeInputs, typename GiveOutputs>
bool Session::TryInfer(const TakeInputs& take_inputs, const GiveOutputs& give_outputs, double& stall_s) {
  const Tape tape = loader_->tape();
  if (trace_) trace_->Clear(rung_, tape.steps.size(), current().plan(rung_).loads);
  fetched_ = {};
  if (tape.steps.data() != steps_.data()) UseCalls();
  now().calls.SetValid(valid_rows_);
  loader_->Start();
  bool done = false;
  try {
    take_inputs();
    done = trace_ ? RunSteps<true>(now().calls.calls(), stall_s) : RunSteps<false>(now().calls.calls(), stall_s);
    if (done) give_outputs();
    else TakeBack();
    processor_->Finish();
    EndLoads(done);
  } catch (...) {
    TakeBack();
    loader_->GiveUp();
    if (trace_) NoteLoads(tape.operations);
    throw;
  }
  if (trace_) {
    loader_->EndGivingUp();  // loads in flight are noted, too
    NoteLoads(tape.operations);
  }
  return done;
}

void Session::NoteLoads(std::span<const Operation> operations) noexcept {
  for (size_t i = 0; i < operations.size(); ++i) {
    LoadSpans& spans = trace_->loads[operations[i].load];
    Span& span = operations[i].kind == Operation::Kind::kRead ? spans.read : spans.prepare;
    const Span& found = loader_->times()[i];
    if (found.end != 0) span = {span.end != 0 ? span.begin : found.begin, found.end};
  }
}

bool Session::EndLoads(bool done) {
  if (!done) {
    const std::lock_guard lock(state_mutex_);
    if (wanted_[shape_] < rung_ && Abandon()) state_changed_.notify_all();
  }
  const bool finished = done && loader_->Finish();
  if (finished && fetched_.reads > 0) file_->RequireUnchanged();
  // Of a complete inference the counts are to be read.
  if (!finished) done ? loader_->GiveUp() : loader_->GiveUpLater();
  return finished;
}

template <bool kTraced>
bool Session::RunSteps(std::span<const Call> calls, double& stall_s) {
  const ProcessorScope scope(*processor_);
  // Until weights that stay are loaded, loading often takes longest.
  const bool spares = crowded_ && !loader_->Filled();
  LoaderCore loader_core(Clock::now(), stall_s);
  const std::span<const uint32_t> needs = loader_->tape().need;
  const auto all = static_cast<uint32_t>(loader_->tape().operations.size());
  processor_->Spare(false);
  if (replays_ && !kTraced && loader_->Resident()) return Replay(calls);
  for (uint32_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    if (interrupt_.load(std::memory_order_relaxed)) return false;
    const uint32_t need = needs[i];
    if (!loader_->Ready(need)) {
      const auto stalled = Clock::now();
      const bool loaded = loader_->Await(need);
      stall_s += SecondsSince(stalled);
      if (!loaded) return false;
    }
    if (spares) [[unlikely]]
      processor_->Spare(!loader_->Ready(all) && loader_core.Wanted(Clock::now(), stall_s));
    if (call.checks != 0) [[unlikely]]
      RequireInside(call);
    if (call.fetch != nullptr) [[unlikely]] {
      const auto stalled = Clock::now();
      const bool fetched = FetchRows(*call.fetch);
      stall_s += SecondsSince(stalled);
      if (!fetched) return false;
    }
    if constexpr (kTraced) {
      processor_->AwaitLoads(i, need);
      trace_->steps[i].begin = MonotonicNs();
    }
    if (processor_->Step(i, need, call.kernel, call.args, call.count) != 0) ThrowKernelError(call);
    if constexpr (kTraced) {
      processor_->Finish();  // which a device need not have done yet
      trace_->steps[i].end = MonotonicNs();
    }
    if (call.exchanges) [[unlikely]]
      exchanged_ = i + 1;
    loader_->Computed(i + 1);
  }
  return true;
}

bool Session::Replay(std::span<const Call> calls) {
  if (interrupt_.load(std::memory_order_relaxed)) return false;
  if (processor_->Replay(calls) != 0) ThrowKernelError(calls.front());
  exchanged_ = static_cast<uint32_t>(calls.size());
  loader_->Computed(static_cast<uint32_t>(calls.size()));
  return true;
}

void Session::RequireInside(const Call& call) {
  for (uint32_t i = 0; i < call.checks; ++i) {
    BoundsCheck check = call.check[i];
    check.data = memory_->Look(check.data, check.count * (check.wide ? 8 : 4));
    if (const std::string fault = FindOutside(check); !fault.empty())
      RaiseError("InputError", current().layers[call.layer].description, ": ", fault);
  }
}

void Session::ThrowKernelError(const Call& call) const {
  void* raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  const std::string reason = TakeReason(raised);
  const Layer& layer = current().layers[call.layer];
  RaiseError("ExecutionError", "layer ", layer.name, " (", layer.implementation, ")", processor_->Replays() ? " or another one" : "",
             " failed: ", reason);
}

}  // namespace flexcomp
