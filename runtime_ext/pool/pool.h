// Several models under one budget.
//
// Models take turns in lanes: one inference at a time works in a lane's memory, on the lane's cores. What a model keeps between
// inferences is its own. Each is on the rung of its ladder that is its share (shares.h); when shares change, a model that is idle
// gives back what it keeps at once, and one that runs does so at the end of its inference. What has been given back is claimed
// anew by the next inference: only then does memory come back, and only if it fits beside what all others hold. So the
// pool never holds more than its budget, whatever the order in which models change.
//
// Each call either does all that it says or throws and has changed nothing: it first makes whatever can fail, a roster (model.h), a
// request (requests.h), room in a queue, and then only what is noexcept. Whatever lanes do between calls is noexcept, too: an
// inference that fails is the error of its request.
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

  // Opens the library that `program` was loaded from, once it is known that there is room for it; gives its number, which no other
  // model will have. Models of the same library, weights and options, which keep no state, are one network under several names.
  // Throws BudgetError, with the smallest that is enough, where the budget is too small for one model more, and what opening a
  // session does.
  uint32_t Add(const std::string& name, const ModelOptions& options, const Program& program, const std::string& library,
               const std::string& weights, const tvm::ffi::json::Object& session_options);
  // Its requests that wait fail; that which runs ends.
  void Remove(const std::string& name);
  // When this returns, no more is held. Inferences that have to give back memory begin anew. Throws BudgetError where it is too
  // small for the models.
  void SetBudget(uint64_t budget);

  // A number for a request; it is no request yet.
  uint64_t Ticket() noexcept { return next_request_++; }
  enum class Admission {
    kGone,     // there is no model of this number any more
    kRefused,
    kWaits,
    kDone,     // it was run here; `Collect` does not say so
  };
  struct Submitted {
    Admission admission;
    Refusal refusal{};
  };
  // Makes request number `ticket`, of tensors in the order of the network's inputs and outputs, which are read and written until it
  // is done. It is there until it is forgotten.
  Submitted Submit(uint64_t ticket, uint32_t model, const RequestOptions& options, std::vector<tvm::ffi::Any> tensors);
  // Waits until it is done. Throws what running it threw.
  Answer Wait(uint64_t ticket);
  // Whether it will not be run, as it had not begun.
  bool Cancel(uint64_t ticket);
  // No one will ask for it: it does not begin any more.
  void Forget(uint64_t ticket) noexcept;
  // Waits for a request that is done, of those to be collected, which one thread does, and which it has to forget before it is told
  // of another; 0: the pool is closed.
  uint64_t Collect();

  // A request from its beginning to its end; a refusal is an answer, none: there is no model of this number any more.
  std::optional<Answer> Run(uint32_t model, const RequestOptions& options, std::vector<tvm::ffi::Any> tensors);

  // Why the model cannot run any more; empty: it can.
  std::string Broken(const std::string& name);
  tvm::ffi::json::Array Names();
  // {"number", "inputs", "outputs"} of a model; null: there is none of this name.
  tvm::ffi::json::Value Describe(const std::string& name);
  tvm::ffi::json::Object Plan();
  // `at_once`: all of one moment, for which requests wait while memory is looked through.
  tvm::ffi::json::Object Stats(bool at_once = true);
  // Everything that waits fails; what runs ends.
  void Close() noexcept;

 private:
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
  void RequireThisProcess() const;
  LanePlace PlaceOf(uint32_t lane) const;
  uint32_t ChooseLane() const;

  // ---- memory (pool_memory.cc)
  uint64_t Claimed() const noexcept;
  uint64_t LaneTarget(uint32_t lane) const noexcept;
  void Use(const Roster::Targets& targets) noexcept;
  void ShareAnew(bool at_once) noexcept;  // where that pays; at once: whether it does or not
  // Idle networks use their targets, idle lanes shrink.
  void Settle() noexcept;
  void SettleLane(uint32_t lane) noexcept;
  // It gives back what it keeps and uses its target; the error: it could not, and uses the rung that it used, or is broken.
  std::optional<tvm::ffi::Error> ParkNow(Network& network) noexcept;
  void Break(Network& network, const tvm::ffi::Error& error) noexcept;
  void Leave(Lane& lane) noexcept;  // whoever reads ahead in it

  // ---- requests (pool_requests.cc)
  Lane& LaneOf(const Request& request) noexcept { return *lanes_[request.model->network->lane]; }
  // What is in its queue, as long as nobody takes it out.
  const Request& FirstOf(const Lane& lane) const noexcept { return *requests_.At(lane.queue.first().id); }
  RequestQueue::SecondsOf SecondsInOrder() const;
  bool RunsHere(uint32_t lane) noexcept;
  void End(Request& request, Request::End end) noexcept;
  void EndWaiting(Request& request, Request::End end) noexcept;  // that is in no queue any more
  void FailWaiting(const Model* model, Request::End end) noexcept;  // nullptr: of all
  void DropLate(Lane& lane) noexcept;
  double NextDeadline() const noexcept;

  // ---- turns (pool_turns.cc)
  void Main(uint32_t lane) noexcept;
  bool Dispatchable(uint32_t lane) noexcept;
  // Gives the request, which may be the last to hold its tensors: they are not let go of under the lock.
  std::shared_ptr<Request> RunFirst(uint32_t lane, Lock& lock) noexcept;
  std::optional<tvm::ffi::Error> RunNow(Lane& lane, Network& network, const Request& request, Lock& lock, double& took,
                                        Network::Reading& reading) noexcept;
  void NoteRun(Request& request, Network& network, bool cold, const Network::Reading& reading) noexcept;

  static tvm::ffi::json::Object SaidOf(const Model& model, double now);

  ProcessMark process_;
  const PoolOptions options_;
  std::mutex changes_;  // one change of models or budget at a time; taken before mutex_
  std::mutex mutex_;
  std::condition_variable wake_, done_, collect_;
  bool closed_ = false;
  bool ended_ = false;  // and nothing runs any more
  uint64_t budget_;
  Roster roster_;
  uint32_t next_model_ = 1;
  Requests requests_;
  std::atomic<uint64_t> next_request_ = 1;
  uint64_t reshared_ = 0;
  double shared_at_ = 0;            // when rates were last looked at
  CpuSet cores_;  // of all lanes
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace flexcomp
