// Several models under one budget.
//
// Models take turns in lanes: one inference at a time works in a lane's memory, on the lane's cores. The bytes that a
// model keeps between inferences are its own. Each model's share is a rung of its ladder (shares.h). When shares
// change, an idle model gives back its kept bytes at once, a running one at the end of its inference. The next
// inference claims such memory anew: only then does memory come back, and only if there is room next to the memory of
// all others. So the pool never holds more than its budget, in whatever order models change.
//
// Each call either succeeds completely, or throws and has changed nothing: first the call makes everything that can
// fail, a roster (model.h), a request (requests.h), room in a queue, and after that only noexcept steps follow. The
// work of lanes between calls is noexcept, too: an inference that fails is the error of its request.
#pragma once

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pool/lane_memory.h"
#include "pool/model.h"
#include "pool/requests.h"
#include "base/process_mark.h"
#include "threads/cpu_set.h"

namespace flexcomp {

struct PoolOptions {
  uint64_t budget = 0;      // bytes of all models together
  uint32_t lanes = 1;       // inferences at a time
  int threads = 0;          // of each lane; 0: as many as its cores
  uint64_t most_waiting = 64;  // requests of a model
  bool by_swapnet = false;     // shares by SwapNet's rule, instead of the best
};

class Pool {
 public:
  // A forked process leaves its copy alone (see Session::Deleter).
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

  // Opens the library that `program` was loaded from, after a check that there is room; returns the model's number,
  // which no other model will have. Models of the same library, weights and options, which keep no state, are one
  // network under several names. Throws BudgetError, with the smallest sufficient budget, where the budget is too small
  // for one model more, and the errors of opening a session.
  uint32_t Add(const std::string& name, const ModelOptions& options, const Program& program, const std::string& library,
               const std::string& weights, const tvm::ffi::json::Object& session_options);
  // Its requests that wait fail; that which runs ends.
  void Remove(const std::string& name);
  bool Remove(uint32_t number);  // false: there is no model of this number any more
  // When this returns, no more is held. Inferences that have to give back memory begin anew. Throws BudgetError where
  // the budget is too small for the models.
  void SetBudget(uint64_t budget);

  // A number for a request that is yet to be made.
  uint64_t Ticket() noexcept { return next_request_++; }
  enum class Admission {
    kGone,     // there is no model of this number any more
    kRefused,
    kWaits,
    kDone,     // the request was run here; `Collect` does not report such a request
  };
  struct Submitted {
    Admission admission;
    Refusal refusal{};
  };
  // Makes request number `ticket`, of tensors in the order of the network's inputs and outputs, which are read and
  // written until the request is done. The request exists until forgotten.
  Submitted Submit(uint64_t ticket, uint32_t model, const RequestOptions& options, std::vector<tvm::ffi::Any> tensors);
  // Waits until the request is done. Throws the error of running the request.
  Answer Wait(uint64_t ticket);
  // Whether the request ends as cancelled: it is not begun, or ends after the running kernel.
  bool Cancel(uint64_t ticket);
  // The request of the model that runs, if one does: the same.
  void CancelRunning(uint32_t model);
  // No one will ask for the request: the same.
  void Forget(uint64_t ticket) noexcept;
  // Waits for a finished request among those to be collected. One thread calls this, and forgets the request before
  // asking for another; 0: the pool is closed.
  uint64_t Collect();

  // A request from its beginning to its end; a refusal is an answer, none: there is no model of this number any more.
  std::optional<Answer> Run(uint32_t model, const RequestOptions& options, std::vector<tvm::ffi::Any> tensors);

  // Why the model cannot run any more; empty: the model can run.
  std::string Broken(const std::string& name);
  tvm::ffi::json::Array Names();
  // {"number", "inputs", "outputs"} of a model; null: there is none of this name.
  tvm::ffi::json::Value Describe(const std::string& name);
  // The shape of a model whose inputs have these extents, one ffi::Shape for each; none: there is no such model. Throws InputError.
  std::optional<int64_t> ShapeOf(uint32_t number, tvm::ffi::PackedArgs extents);
  tvm::ffi::json::Object Plan();
  // `at_once`: all of one moment, for which requests wait while memory is looked through.
  tvm::ffi::json::Object Stats(bool at_once = true);
  // Those of one model, with "resident_bytes" of its session and "session", what that says of itself; none: there is no model of
  // this number any more.
  std::optional<tvm::ffi::json::Object> StatsOf(uint32_t number);
  // Waiting requests fail; running ones end.
  void Close() noexcept;

 private:
  struct Lane {
    LaneMemory memory;
    RequestQueue queue;
    Network* running = nullptr;
    Network* last = nullptr;   // that ran, and may still read ahead
    double free = 0;           // when the running requests should have ended
    uint32_t opening = 0;      // networks that are being opened for the lane
    std::thread thread{};
  };
  using Lock = std::unique_lock<std::mutex>;

  void RemoveNow(uint32_t number, Lock& lock);
  void RequireOpen() const;
  void RequireThisProcess() const;
  LanePlace PlaceOf(uint32_t lane) const;
  uint32_t ChooseLane() const;

  // ---- memory (pool_memory.cc)
  uint64_t Claimed() const noexcept;
  uint64_t LaneTarget(uint32_t lane) const noexcept;
  void Use(Roster::Targets&& targets) noexcept;
  void ShareAnew(bool at_once) noexcept;  // where that pays; at_once: in any case
  // Idle networks use their targets, idle lanes shrink.
  void Settle() noexcept;
  void SettleLane(uint32_t lane) noexcept;
  // The network gives back its kept bytes and uses its target; the error: parking failed, and the network uses the
  // former rung, or is broken.
  std::optional<tvm::ffi::Error> ParkNow(Network& network) noexcept;
  // The network's shared weights are claimed, or not any more; the session is parked then, or closed.
  void Hold(Network& network);
  void Release(Network& network) noexcept;
  // Makes those that are not in memory; waits where another lane makes them.
  std::optional<tvm::ffi::Error> MakeShared(Network& network, Lock& lock) noexcept;
  void Break(Network& network, const tvm::ffi::Error& error) noexcept;
  void Leave(Lane& lane) noexcept;  // the network that reads ahead in the lane

  // ---- requests (pool_requests.cc)
  Lane& LaneOf(const Request& request) noexcept { return *lanes_[request.model->network->lane]; }
  // The first request in the lane's queue, until someone takes the request out.
  const Request& FirstOf(const Lane& lane) const noexcept { return *requests_.At(lane.queue.first().id); }
  RequestQueue::SecondsOf SecondsInOrder() const;
  bool RunsHere(uint32_t lane) noexcept;
  void End(Request& request, Request::End end) noexcept;
  void EndWaiting(Request& request, Request::End end) noexcept;  // that is in no queue any more
  void CancelNow(Request& request) noexcept;  // that is not done
  void FailWaiting(const Model* model, Request::End end) noexcept;  // nullptr: of all
  void DropLate(Lane& lane) noexcept;
  double NextDeadline() const noexcept;

  // ---- turns (pool_turns.cc)
  void Main(uint32_t lane) noexcept;
  bool Dispatchable(uint32_t lane) noexcept;
  // Returns the request, perhaps the last owner of its tensors: these must not be released under the lock.
  std::shared_ptr<Request> RunFirst(uint32_t lane, Lock& lock) noexcept;
  std::optional<tvm::ffi::Error> RunNow(Lane& lane, Network& network, const Request& request, Lock& lock, double& took,
                                        Network::Reading& reading) noexcept;
  void NoteRun(Request& request, Network& network, bool cold, const Network::Reading& reading) noexcept;

  static tvm::ffi::json::Object SaidOf(const Model& model, double now);

  ProcessMark process_;
  const PoolOptions options_;
  std::mutex changes_;  // one change of models or budget at a time; taken before mutex_
  std::mutex mutex_;
  std::condition_variable wake_, done_, collect_, made_;
  bool closed_ = false;
  bool ended_ = false;  // and nothing runs any more
  uint64_t budget_;
  Roster roster_;
  uint32_t next_model_ = 1;
  Requests requests_;
  std::atomic<uint64_t> next_request_ = 1;
  uint64_t reshared_ = 0;
  uint64_t shared_nbytes_ = 0;      // claimed for shared weights
  double shared_at_ = 0;            // when rates were last looked at
  CpuSet cores_;  // of all lanes
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace flexcomp
