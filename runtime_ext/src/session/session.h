// A model ready to run under a budget.
#pragma once

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/call_table.h"
#include "kernels/kernel_preparer.h"
#include "kernels/linked_network.h"
#include "kernels/processor.h"
#include "memory/carry.h"
#include "memory/places.h"
#include "memory/sharing.h"
#include "base/process_mark.h"
#include "program/plan_checker.h"
#include "program/program.h"
#include "program/shapes.h"
#include "program/tapes.h"
#include "memory/session_memory.h"
#include "storage/loader.h"
#include "storage/trace.h"
#include "storage/weights_file.h"
#include "storage/weights_source.h"
#include "threads/cores.h"

namespace flexcomp {

// Memory that several sessions work in, one at a time: nothing in it lasts. None: a session works in its own arena.
struct Lane {
  std::byte* base = nullptr;
  uint64_t nbytes = 0;  // the largest working range

  explicit operator bool() const noexcept { return base != nullptr; }
};

struct SessionOptions {
  std::string library_path;      // empty: found among the loaded libraries
  const flexcomp_network* linked = nullptr;  // the network's code is in the program instead, and outlives the session
  uint64_t budget = UINT64_MAX;  // bytes; the largest rung that fits is taken
  int threads = 0;               // 0: as many as the kernels were made for, within the cores for them
  CoreOptions cores;
  bool help = true;    // threads that wait for weights prepare them, or make pages exist
  bool trace = false;  // note when steps and loads run
  Lane lane;
  int other_threads = 0;  // that compute at the same time, in other lanes
  StorageOptions storage;
};

struct SessionStats {
  // since the session was opened
  uint64_t runs = 0;
  uint64_t total_bytes_read = 0;  // with loads that were read ahead and then given up
  uint64_t restarts = 0;  // inferences begun anew because the budget shrank
  // of the last inference that succeeded
  Loader::Counts loads;  // also ahead of it; and of rows that it fetched, and of shared weights that were made before
  double stall_s = 0;    // the steps waited for loads, or helped
  double latency_s = 0;  // from the call to the outputs, copies included; in place: from inputs to outputs
};

// Bytes of a state that lie together in a caller's tensor, too: how many such blocks, and from one to the next in the state.
struct StateBlocks {
  uint64_t count = 0, nbytes = 0, stride = 0;
};

class Session {
 public:
  // A forked process leaves its copy alone: threads and reads in flight, which the destructor waits for, do not follow, and
  // locks may be held for ever.
  struct Deleter {
    void operator()(Session* session) const noexcept {
      if (session->process_.IsThisProcess()) delete session;
    }
  };
  using Owner = std::unique_ptr<Session, Deleter>;

  // Throws ArtifactError, TargetError, BudgetError, InputError, ExecutionError, and CancelledError if a reader of weights cancels.
  // Every function here may also throw std::bad_alloc and std::system_error. No error leaves anything half done.
  // Plans of each shape are used within the budget; the first shape is in use until an inference takes another.
  Session(Shapes shapes, const WeightsSource& weights, const SessionOptions& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Runs one inference on tensors in the order of the program's ports: inputs are copied into the arena,
  // outputs out of it, but for those that are missing or nullptr. After any error the next call begins anew.
  // Of several shapes the one that the inputs have is used from now on. States stay, and weights that its plan keeps like the one
  // before. Throws InputError for a shape that there is not.
  // A library that pads takes shorter inputs, and gives outputs of their length; kernels that are told compute the valid rows, and
  // write zeros to the others.
  void Run(std::span<const DLTensor* const> inputs, std::span<const DLTensor* const> outputs);

  // A tensor for the output of that number in memory of the device, outside of the arena; may outlive the session. Throws
  // InputError if the network runs on CPUs, or there is no such output.
  tvm::ffi::Tensor NewOutput(size_t index);

  // Runs one inference on tensors in the arena: `fill` writes the inputs before the inference, `drain` reads the outputs
  // afterwards, and neither counts as latency. Where this process does not see the device's arena, the tensors lie outside, and
  // are copied after `fill` and before `drain`. Either may be empty: inputs that nobody fills hold anything. The tensors, in the
  // order of the ports, are valid during the callback, which must not call the session. When `drain` is called, the states have
  // moved on, even if `drain` throws.
  using PortsCallback = std::function<void(std::span<DLTensor>)>;
  void RunInPlace(const PortsCallback& fill, const PortsCallback& drain);

  // As the first inference in that shape does. Throws as Run does.
  void TakeShape(size_t shape);

  // Loads the weights that stay in the arena between inferences, where the next inference would; little remains to do
  // afterwards. Returns the seconds of loading. Throws as Run does.
  double Warm();

  // Switches to the largest rung within `budget`; any thread may call at any time. Weights that both plans keep stay, and other memory
  // is given back before more is touched. An inference in progress ends before the budget grows: the call does not wait. When the
  // budget shrinks, the inference stops after the running kernel and begins anew on the new rung, with its inputs: when the call
  // returns, the memory has been given back. A budget can shrink only so often without growing, so inferences end. Shrinking
  // needs nothing that the system could refuse. Throws BudgetError if a larger arena cannot be mapped, ArtifactError if the plan
  // is damaged or wrong: then the rung in use goes on. Where the new arena can only be mapped in the place of the old one, and not
  // even so when the inference has ended, the rung in use goes on, too, and `state` tells.
  const RungHead& SetBudget(uint64_t budget);

  // The call of Run, RunInPlace, Warm or ReadRate that is in progress ends after the running kernel, or the reads in flight, with an
  // error of the kind "CancelledError", unless it is at its end. Weights that stay are not read again afterwards, if all of them had
  // been. Later calls, and those that wait their turn, go on. Any thread may call it.
  void Cancel();

  // For sessions with a lane, whose owner says when a session runs and on which rung; calls come one after the other, but Stop.
  // Uses a rung, of several shapes one of LaneLadder, even the one in use. Throws as SetBudget does, and
  // InputError if there is no such rung or the lane is too small for the rung. Weights in `shared` lie where other sessions
  // read them, too, until the session is parked anew, and are there when an inference begins.
  void Park(size_t rung, std::vector<Sharing::Place> shared = {});
  // Makes weights at their shared place, in the working range of the lane. Throws as Run does, and StorageError if the file does
  // not hold what the library says.
  void MakeShared(uint64_t shareable);
  const Shareables& shareables() const noexcept { return shareables_; }
  // Whether coming inferences are followed by the first loads of the next one.
  void ReadAhead(bool reading);
  // Ends reading ahead: from now on until the next inference somebody else may work in the lane.
  void LeaveLane();
  // An inference in progress ends after the running kernel, with an error of the kind "Stopped", and so does every later one
  // until the session is parked. Any thread may call it.
  void Stop();

  // Bytes of the arena that are in memory now; does not wait for the inference in progress.
  uint64_t ResidentArena();

  // The states for the next inference, in the program's order; each call waits for the inference in progress. An inference that
  // fails, or begins anew, leaves the states unchanged. Entries of `tensors` may be nullptr: these states are neither read nor set.
  // With `parts` a tensor may have fewer elements along one axis: it stands for the first ones of its state.
  void GetStates(std::span<const DLTensor* const> tensors, bool parts = false);
  void SetStates(std::span<const DLTensor* const> tensors, bool parts = false);
  void ResetStates();  // all zeros, as in a session that was opened just now

  // Bytes per second that the storage gives to the loader alone: reads of `request_nbytes`, or as many as arena and file
  // hold, `nbytes` in all, in the order of the file, into the arena, whose contents but the states are lost. Throws as Run does, and
  // InputError if there are no weights.
  double ReadRate(uint64_t request_nbytes, uint64_t nbytes);

  // The costs of its device besides the time of kernels. The next inference reads its first weights again. Throws as Run does, and
  // InputError if the network runs on CPUs.
  DeviceRates MeasureDevice();

  // Gives everything back, after the inference in progress; later calls throw. Does nothing in a forked process.
  void Close();

  const Shapes& shapes() const noexcept { return programs_; }
  const Program& program() const noexcept { return programs_[0]; }  // all shapes have these names, types and states
  bool traces() const noexcept { return trace_.has_value(); }  // whether `trace` may be called
  // All consistent with each other; does not wait for the inference in progress.
  struct State {
    SessionStats stats;
    size_t shape, rung;
    Placement placement;
    bool direct;
    uint64_t staging_nbytes;  // of this process, through which weights go to a GPU: not in the budget
  };
  State state();

  // The plan of each shape for the budget.
  std::vector<const RungHead*> RungsOfShapes();

  // Of the last inference, whether it succeeded or not. Throws InputError if the session was opened without tracing.
  Trace trace();

 private:
  void RequireOpen() const;
  void RequireThisProcess() const;
  void RequireInLane(std::span<const size_t> rungs) const;  // of all shapes
  void RequireGoingOn() const;
  [[noreturn]] void RaiseInterrupted(const char* meanwhile);  // why the loader was
  Places PlacesOf(size_t rung) const noexcept;
  // Of the memory for these rungs of all shapes. With a lane, of the kept range.
  uint64_t NbytesFor(std::span<const size_t> rungs, const Sharing& sharing) const noexcept;
  // The same for one rung.
  uint64_t NbytesOf(size_t shape, size_t rung) const noexcept {
    const RungHead& head = programs_[shape].rungs[rung];
    return head.arena - (lane_ ? head.working : 0);
  }
  // The byte of `nbytes` of memory at which these bytes of a rung begin. Those of all shapes end together: kept weights that are the
  // same have the same place then, mostly.
  uint64_t BeginOf(size_t shape, size_t rung, const Sharing& sharing, uint64_t nbytes) const noexcept {
    return nbytes - (NbytesOf(shape, rung) - sharing.freed());
  }
  std::byte* PlaceOf(const Port& port) const noexcept;
  std::vector<StateBlocks> CheckStates(std::span<const DLTensor* const> tensors, bool parts) const;
  // Uses the arena during its lifetime; a switch that was requested meanwhile happens at the end.
  class ArenaUse;
  class OtherTapes;
  // One inference, begun anew as often as the budget shrinks. Its latency counts from `start`; inputs are taken
  // while the loader is at work.
  template <typename TakeInputs, typename GiveOutputs>
  void Infer(ArenaUse& use, std::chrono::steady_clock::time_point start, const TakeInputs& take_inputs,
             const GiveOutputs& give_outputs);
  template <typename TakeInputs, typename GiveOutputs>
  bool TryInfer(const TakeInputs& take_inputs, const GiveOutputs& give_outputs, double& stall_s);  // false: interrupted
  bool TryWarm();  // false: interrupted
  template <bool kTraced>
  bool RunSteps(std::span<const Call> calls, double& stall_s);  // false: interrupted
  bool Replay(std::span<const Call> calls);  // the same, where everything is there and stays
  bool FetchRows(const RowsFetch& fetch);  // false: interrupted; throws StorageError
  std::vector<size_t> RungsFor(uint64_t budget) const;  // of all shapes
  Fit FitOf(std::span<const DLTensor* const> inputs) const;
  // Another shape, on the rung that is wanted. While state_mutex_ is held, no inference runs, and the memory is that for the budget.
  // Throws BudgetError, and changes nothing.
  void UseShape(size_t shape);
  // Weights that are there, at the addresses of a rung; and states.
  struct Held {
    size_t rung;
    bool any, prepared;  // prepared: also those that a second inference prepares
  };
  Held HeldNow() const noexcept { return abandoned_.value_or(Held{rung_, loader_->Filled() || loader_->Settles(), loader_->Filled()}); }
  // Of what is there, what a plan keeps, too. `states` are always carried: no moves are theirs alone.
  Carry CarryTo(const Held& held, const PlacedRung& next, const Carried& states) const noexcept;
  Carried StatesTo(const PlacedRung& next) const noexcept;  // nothing if nobody has written any
  // While state_mutex_ is held and no kernel runs: uses another plan and size of memory, with all that both plans keep. `sharing`: the
  // plan's, if it changes. False: there is no room, and the plan in use goes on.
  bool Change(size_t shape, size_t rung, uint64_t nbytes, Sharing* sharing = nullptr) noexcept;
  // Calls with each state and its place in the arena, between inferences.
  template <typename Function>
  void ForStates(const Function& function);
  void Attach();  // to memory that a switch gave up
  std::span<std::byte> RoomBesideStates() const noexcept;  // the larger part of the arena before or after the states
  void CommitStates() noexcept;  // after an inference: the next one reads the new states
  void TakeBack() noexcept;  // exchanged bytes, after an incomplete inference, while its values are in the arena
  PlacedRung PlacedAt(size_t shape, size_t rung, const Sharing& sharing, uint64_t nbytes) const noexcept;  // in memory of so many bytes
  PlacedRung PlacedNow() const noexcept { return PlacedAt(shape_, abandoned_ ? abandoned_->rung : rung_, sharing_, nbytes_); }  // where everything lies
  Carried States() const noexcept;  // all, where they lie in memory; no bytes if there are none
  // Uses a rung for which the arena has room; the loader is idle. No weights are in the arena but those of carry_.
  void Use(size_t rung) noexcept;
  // From now on the calls are those of the next inference.
  void UseCalls() noexcept;
  void OpenTapes() noexcept;
  void NoteLoads(std::span<const Operation> operations) noexcept;  // into the trace
  // After the last step, or an interruption. False: interrupted, and loading is given up. Throws as Loader::Finish does.
  bool EndLoads(bool done);
  // Both while state_mutex_ is held and no kernel runs.
  void SwitchToWanted() noexcept;
  bool Abandon() noexcept;  // the arena's memory, without waiting for reads; false: reads must end first

  void RequireInside(const Call& call);  // throws InputError for an index that the call must not see
  [[noreturn]] void ThrowKernelError(const Call& call) const;

  ProcessMark process_;
  std::mutex mutex_;        // one inference at a time; taken before state_mutex_
  std::mutex state_mutex_;  // held for moments, never while kernels run
  std::condition_variable state_changed_;
  const Shapes programs_;
  const Lane lane_;
  const std::vector<LaneRung> lane_ladder_;  // none without a lane
  Placement placement_;
  std::unique_ptr<Processor> processor_;
  std::unique_ptr<WeightsFile> file_;
  // Guarded by state_mutex_; while an inference runs, the arena and its state are the inference's own.
  bool running_ = false;
  std::atomic<bool> interrupt_{false};  // the inference in progress should stop
  bool stopped_ = false;                // for good, until the session is parked
  bool cancelled_ = false;              // the call in progress
  SessionStats stats_;
  // Everything that is made for a program: budgets and shapes change without asking for memory.
  struct Shape {
    Shape(const Program& program, Kernels kernels, Processor& processor, bool queued)
        : checker(program, queued), tapes(program), calls(program, std::move(kernels)), preparer(program, calls.kernels(), processor) {}

    PlanChecker checker;  // of used plans: no other plan is decoded
    TapeRoom tapes;       // of the rung in use
    CallTable calls;
    KernelPreparer preparer;  // for the loader's thread
  };
  Shape& now() noexcept { return *shapes_[shape_]; }
  const Shape& now() const noexcept { return *shapes_[shape_]; }
  const Program& current() const noexcept { return programs_[shape_]; }

  size_t shape_ = 0;  // in use; changes while mutex_ is held, too
  std::vector<size_t> wanted_;  // by shape: the rungs to be used as soon as possible
  size_t rung_;    // the rung in use
  uint64_t nbytes_ = 0;  // of the memory
  bool states_written_ = false;
  int64_t valid_rows_ = CallTable::kAllRows;  // of the inference
  uint32_t exchanged_ = 0;  // the steps before this one may have exchanged bytes of states, in the inference that runs
  Loader::Counts fetched_;  // of rows, in the inference that runs
  Loader::Counts made_;     // of shared weights, for the next inference
  std::atomic<uint64_t> fetched_total_{0};  // bytes, since the session was opened
  bool replays_ = false;  // the processor replays, and no call of the rung has to be checked before
  bool crowded_ = false;  // the loader has no core of its own
  std::optional<Held> abandoned_;  // what the arena holds of an earlier rung, whose size it still has: only the memory of `left_`
  std::vector<Carried> left_;      // bytes that stay, by `from`
  Carry carry_;                    // that the tapes in use reckon with
  std::unique_ptr<SessionMemory> memory_;
  const Shareables shareables_;  // in a lane
  Sharing sharing_;              // of the rung in use
  std::vector<std::unique_ptr<Shape>> shapes_;
  std::span<const Step> steps_;  // of the calls
  std::optional<Trace> trace_;
  std::unique_ptr<Loader> loader_;  // last: its thread uses the file and the arena
};

}  // namespace flexcomp
