// Several models under one budget.
//
// Models take turns in lanes: one inference at a time works in a lane's memory, on the lane's cores. What a model keeps between
// inferences is its own. Each is on the rung of its ladder that is its share (shares.h); when shares change, a model that is idle
// gives back what it keeps at once, and one that runs does so at the end of its inference. What has been given back is claimed
// anew by the next inference: only then does memory come back, and only if it fits beside what all others hold. So the
// pool never holds more than its budget, whatever the order in which models change.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pool/estimates.h"
#include "pool/lane_memory.h"
#include "pool/network.h"
#include "pool/request_queue.h"
#include "pool/shares.h"
#include "process_mark.h"
#include "threads/cpu_set.h"

namespace flexcomp {

struct PoolOptions {
  uint64_t budget = 0;      // bytes of all models together
  uint32_t lanes = 1;       // inferences at a time
  int threads = 0;          // of each lane; 0: as many as its cores
  uint64_t most_waiting = 64;  // requests of a model
  bool by_swapnet = false;     // shares by SwapNet's rule, instead of the best
};

struct ModelOptions {
  double urgency = 1;               // what a second of waiting for it costs
  std::optional<double> rate;       // requests in a second; none: learnt
  std::optional<double> deadline_s; // of requests that give none
  uint64_t keep = UINT64_MAX;       // bytes, the most that it keeps between inferences
};

struct RequestOptions {
  std::optional<double> deadline_s;  // from now; none: the model's
  bool late = false;                 // run it even if that passes
  bool collected = false;            // `Collect` says when it is done
  bool here = false;                 // run it in the call that submits it, if that is quick and nothing else waits or runs
};

// Why a request was not admitted, or not begun.
struct Refusal {
  std::string reason;  // "queue" or "deadline"
  std::string message;
  double retry_after_s = 0;
};

struct Completion {
  double wait_s = 0, run_s = 0;
  size_t rung = 0;
};

class Pool {
 public:
  // A forked process leaves its copy as it is (see Session::Deleter).
  struct Deleter {
    void operator()(Pool* pool) const noexcept {
      if (pool->process_.IsThisProcess()) delete pool;
    }
  };
  using Owner = std::unique_ptr<Pool, Deleter>;
  using Program = tvm::ffi::Module;

  // Throws InputError, BudgetError; all functions throw ExecutionError when the pool is closed, or in a forked process.
  explicit Pool(const PoolOptions& options);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Opens the library that `program` was loaded from, once it is known that there is room for it. Models of the same library,
  // weights and options, which keep no state, are one network under several names. Throws BudgetError, with the smallest that is enough, where the budget is too small for one model more,
  // and what opening a session does; then nothing has changed.
  void Add(const std::string& name, const ModelOptions& options, const Program& program, const std::string& library,
           const std::string& weights, const tvm::ffi::json::Object& session_options);
  // Its requests that wait fail; that which runs ends.
  void Remove(const std::string& name);
  // When this returns, no more is held. Inferences that have to give back memory begin anew. Throws BudgetError where it is too
  // small for the models; then nothing has changed.
  void SetBudget(uint64_t budget);

  struct Submitted {
    uint64_t id = 0;  // 0: refused
    bool done = false;  // it was run here; `Collect` does not say so
    Refusal refusal{};
  };
  // Of tensors in the order of the network's inputs and outputs, which are read and written until the request is done.
  Submitted Submit(const std::string& name, const RequestOptions& options, std::vector<tvm::ffi::Any> tensors);
  // Waits until it is done, and forgets it. Throws what running it threw. `refusal`: it was dropped as its deadline had passed.
  Completion Wait(uint64_t id, std::optional<Refusal>& refusal);
  // Takes a request out that has not begun, and forgets it; whoever waits for it is told. False: it has, or is done.
  bool Cancel(uint64_t id);
  // Why the model cannot run any more; empty: it can.
  std::string Broken(const std::string& name);
  // Waits for the next request that is done, of those to be collected; 0: the pool is closed.
  uint64_t Collect();

  tvm::ffi::json::Object Plan();
  // `at_once`: all of one moment, for which requests wait while memory is looked through.
  tvm::ffi::json::Object Stats(bool at_once = true);
  // Everything that waits fails; what runs ends.
  void Close();

 private:
  struct Model {
    std::string name;
    ModelOptions options;
    Network* network;
    RateEstimate rate;  // of requests, also of those that are refused
    bool leaving = false;  // about to be removed: takes no requests
    uint64_t requests = 0, completed = 0, failed = 0, refused = 0, missed = 0, dropped = 0, cancelled = 0, restarts = 0, waiting = 0, running = 0;
    double wait_s = 0, run_s = 0;  // of the last one
    double total_run_s = 0, total_stall_s = 0;
  };
  struct Request {
    Queued queued;
    std::optional<double> deadline;  // also of those that may be late
    bool late = false, collected = false;
    std::vector<tvm::ffi::Any> tensors;
    bool running = false, done = false, waited = false;
    bool here = false;  // runs in the call that submitted it
    std::optional<tvm::ffi::Error> error{};
    std::optional<Refusal> refusal{};
    Completion completion{};
  };
  struct Lane {
    LaneMemory memory;
    RequestQueue queue;
    Network* running = nullptr;
    Network* last = nullptr;   // that ran, and may still read ahead
    double free = 0;           // when what runs should have ended
    uint32_t opening = 0;      // networks that are being opened for it
    std::thread thread{};
  };
  using Lock = std::unique_lock<std::mutex>;

  void RequireOpen() const;
  Model& ModelOf(const std::string& name);
  double RateOf(const Model& model, double now) const;
  // Of an inference; with loading what is kept, where that is not there.
  static double LoadingOf(const Network& network) noexcept;

  // Shares for the models there are; `without` deadlines, or such that they are met.
  std::vector<ShareModel> ShareModels(double now, bool meet_deadlines, std::vector<std::vector<uint32_t>>& kept) const;
  double DeadlineOf(const Network& network) const;  // the shortest of its models'; infinite: none
  // A target for each network. Throws BudgetError.
  std::vector<uint32_t> SharesOf(uint64_t budget) const;
  // With one model more, of an existing network or of `fresh`, which is the last then. Nothing is changed. Throws BudgetError.
  std::vector<uint32_t> SharesWith(const Model& model, std::shared_ptr<Network> fresh);
  void Use(const std::vector<uint32_t>& targets);
  std::optional<std::vector<uint32_t>> FindShares(uint64_t budget, double now, uint64_t& least) const;
  void ShareAnew();  // where rates have changed so much that it pays
  uint64_t Claimed() const noexcept;
  uint64_t LaneTarget(uint32_t lane) const noexcept;
  // Idle networks use their targets, idle lanes shrink.
  void Settle();
  void SettleLane(uint32_t lane);
  void ParkNow(Network& network);
  void Break(Network& network, const tvm::ffi::Error& error);
  void Leave(Lane& lane);  // whoever reads ahead in it

  LanePlace PlaceOf(uint32_t lane) const;
  uint32_t ChooseLane() const;
  void Main(uint32_t lane);
  bool Dispatchable(uint32_t lane);
  void DropLate(Lane& lane);
  double NextDeadline() const noexcept;
  bool RunsHere(uint32_t lane);
  void RunFirst(uint32_t lane, Lock& lock);
  std::optional<tvm::ffi::Error> RunNow(Lane& lane, Network& network, const Request& request, Lock& lock, double& took,
                                        Network::Reading& reading);
  RequestQueue::SecondsOf SecondsInOrder() const;
  static tvm::ffi::json::Object SaidOf(const Model& model, double now);
  void RequireThisProcess() const;
  void Complete(Request& request);
  void FailWaiting(uint32_t lane, const std::string& kind, const std::string& message, std::optional<uint32_t> model);

  ProcessMark process_;
  const PoolOptions options_;
  std::mutex changes_;  // one change of models or budget at a time; taken before mutex_
  std::mutex mutex_;
  std::condition_variable wake_, done_, collect_;
  bool closed_ = false;
  bool ended_ = false;  // and nothing runs any more
  uint64_t budget_;
  std::vector<std::shared_ptr<Network>> networks_;  // whoever looks at their memory keeps them meanwhile
  std::map<uint32_t, Model> models_;  // by number
  uint32_t next_model_ = 0;
  std::map<uint64_t, Request> requests_;
  uint64_t next_request_ = 1;
  std::deque<uint64_t> collected_;
  uint64_t reshared_ = 0;
  double shared_at_ = 0;            // when rates were last looked at
  CpuSet cores_;  // of all lanes
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace flexcomp
