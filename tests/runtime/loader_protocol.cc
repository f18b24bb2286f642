// Every order in which the loader, an inference and somebody who changes the budget may take their steps.
//
// The loader is the runtime's own code. The session that uses it is told again in a few lines, after session.cc. Storage
// answers early or late, and fails where that is asked for; so does a device. What has to hold: a step finds the weights that
// were loaded for it, as long as it computes; nothing else is written where a read is in flight, and nothing read where there
// is no arena; every part is prepared once, and by an inference only if it waits for that;
// inferences begin anew only if the budget shrank, and fail only if storage or a device did; everybody comes to an end.
//
// Weights are numbers. A step wipes out what it read unless that is pinned: what is there is there because it was read anew.
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <span>
#include <vector>

#include "explorer.h"
#include "loader_scenarios.h"
#include "storage/delivery.h"
#include "storage/loader.h"

using explore::At;
using explore::Choose;
using explore::Require;
using explore::Until;
using flexcomp::Atomic;
using flexcomp::ByteSource;
using flexcomp::Delivery;
using flexcomp::InFlight;
using flexcomp::Loader;
using flexcomp::Operation;
using flexcomp::WeightsFile;
using namespace scenarios;

namespace {

// The weights that a load reads: its number and 1; that are prepared of load j: j + 1.
constexpr uint64_t kNothing = 0, kInFlight = 200;
constexpr uint64_t kPreparing = 256;               // and a bit for each part that is done
constexpr uint32_t kParts = 2;                     // of a preparation

// All that the threads share.
struct World {
  // The arena.
  bool mapped = false;
  uint64_t places[kPlaces] = {};
  // Storage.
  bool queued = false;
  int faults = 0;  // that may still happen
  // Of the session, as in session.cc.
  bool locked = false;
  Atomic<bool> interrupt{false};
  bool running = false, abandoned = false;
  bool cancelled = false, told = false;  // told: the loader knows
  bool stays = false;  // what a cancelled inference found filled
  bool cold = false;  // a first inference runs
  int wanted = 0, rung = 0;
  uint32_t awaited = 0;  // operations
  // What has happened.
  int shrunk = 0, restarts = 0, failed = 0, errors = 0, ended = 0, switched = 0, cancels = 0;
};

const Scenario* scenario;
std::vector<std::unique_ptr<Deck>> decks;  // of its rungs
World* world;
Loader* loader;

void Wipe() {
  for (uint64_t& place : world->places) place = kNothing;
}

class Source final : public ByteSource {
 public:
  void Begin(uint64_t offset, std::byte* target, size_t) noexcept override {
    Require(!world->running || !world->told || scenario->delivered, "a cancel is lost");
    At("begin a read");
    Require(world->mapped, "a read begins without an arena");
    Require(!world->abandoned, "a read begins into memory that was given back");
    uint64_t* const place = reinterpret_cast<uint64_t*>(target);
    *place = kInFlight;
    reads_.Push({offset / 8 + 1, place});
  }
  bool Ready() noexcept override { return Choose("is the read over?", 2) == 1; }
  int End() noexcept override {
    const int outcome = At("end a read", nullptr, world->faults > 0 ? 3 : 1);
    const Read read = reads_.Oldest();
    reads_.Pop();
    // Reads that were in flight when the memory was given back have pages of their own.
    if (read.place != nullptr) {
      Require(*read.place == kInFlight, "something was written where a read was in flight");
      *read.place = outcome == 0 ? read.weights : kNothing;
    }
    if (outcome == 0) return 0;
    --world->faults;
    ++world->failed;
    return outcome == 1 ? EIO : ECANCELED;
  }
  int ReadNow(uint64_t, std::byte*, size_t) noexcept override { return ENOTSUP; }  // loaders do not
  int Check() const noexcept override { return 0; }
  bool direct() const noexcept override { return true; }
  bool queued() const noexcept override { return world->queued; }

  bool idle() const noexcept { return reads_.size() == 0; }
  void Detach() noexcept {
    InFlight<Read> left;
    for (; reads_.size() > 0; reads_.Pop()) left.Push({reads_.Oldest().weights, nullptr});
    reads_ = left;
  }

 private:
  struct Read {
    uint64_t weights = 0;
    uint64_t* place = nullptr;
  };
  InFlight<Read> reads_;
};

Source* source;

uint64_t& Brought(const Load& load) { return world->places[decks[world->rung]->At(load.prepared() ? load.place : load.read)]; }

class Making final : public flexcomp::Preparer {
 public:
  uint32_t PartsOf(const Operation& operation) const noexcept override {
    world->places[operation.to / 8] = kPreparing;
    return kParts;
  }
  int Prepare(const Operation& operation, uint32_t part) noexcept override {
    uint64_t &read = world->places[operation.from / 8], &brought = world->places[operation.to / 8];
    const uint64_t bit = uint64_t{1} << part;
    const bool fails = At("prepare a part", nullptr, world->faults > 0 ? 2 : 1) == 1;
    const auto index = static_cast<uint64_t>(&operation - loader->tape().operations.data());
    Require(std::strcmp(explore::fibers[explore::current].name, "infer") != 0 || index < world->awaited,
            "an inference prepares what it does not wait for");
    Require(!world->abandoned, "something is prepared in memory that was given back");
    Require((brought & (kPreparing | bit)) == kPreparing && read == operation.layer, "a part is prepared that is not to be");
    At("go on preparing");
    Require(!world->abandoned, "memory was given back in which something is prepared");
    Require(read == operation.layer && (brought & kPreparing) != 0, "something was written where something is prepared");
    if (fails) return --world->faults, ++world->failed, 1;
    if ((brought |= bit) != (kPreparing | ((1 << kParts) - 1))) return 0;
    brought = operation.first;
    if (operation.count == 0) read = kNothing;
    return 0;
  }
  std::string Fault(const Operation&) override { return {}; }
};

Making* making;

// Memory of a device, told as if the reads reached it.
class Delivering final : public Delivery {
 public:
  bool Free(uint32_t) noexcept override { return !Refuses("free places"); }
  std::byte* Begin(std::byte* place, uint64_t) noexcept override { return Refuses("begin a delivery") ? nullptr : place; }
  bool End(uint32_t) noexcept override { return !Refuses("deliver"); }
  void Drop() noexcept override {}
  bool Complete(uint32_t) noexcept override { return !Refuses("complete a load"); }
  void Settle() noexcept override {}
  [[noreturn]] void Throw() const override { TVM_FFI_THROW(ExecutionError) << "refused"; }

 private:
  static bool Refuses(const char* what) noexcept {
    if (world->faults == 0 || At(what, nullptr, 2) == 0) return false;
    return --world->faults, ++world->failed, true;
  }
};

// ------------------------------------------------------------------------------------------- the session

const Rung& rung() { return *scenario->rungs[world->rung]; }
const Deck& deck() { return *decks[world->rung]; }
const flexcomp::Tapes& tapes() { return deck().tapes; }

bool StartsEmpty() { return loader->tape().operations.data() == tapes().first.operations.data(); }

// Returns the way to take, of so many.
int Lock(int options = 1) {
  const int option = Until("lock", [] { return !world->locked; }, options);
  world->locked = true;
  return option;
}
void Unlock() { world->locked = false; }

void Activate() {
  world->mapped = true;
  Wipe();
  loader->Open(tapes(), flexcomp::Places(reinterpret_cast<std::byte*>(world->places)), static_cast<uint64_t>(deck().working) * 8, {},
               making);
}

void SwitchToWanted() {
  if (world->wanted == world->rung && !world->abandoned) return;
  loader->GiveUp();
  Require(source->idle(), "a read is in flight into an arena that goes");
  world->mapped = world->abandoned = false;
  world->rung = world->wanted;
  Activate();
}

bool Abandon() {
  if (!source->queued()) return false;
  loader->Halt();
  At("discard the arena");
  source->Detach();
  Wipe();
  world->rung = world->wanted;
  return world->abandoned = true;
}

void SetBudget() {
  const int chosen = Lock(static_cast<int>(scenario->rungs.size()));
  world->wanted = chosen;
  if (world->abandoned) world->rung = chosen;
  if (world->running && chosen < world->rung) {
    world->interrupt = true;
    ++world->shrunk;
    loader->Interrupt();
  }
  const auto switched = [chosen] { return !world->running || world->rung <= chosen; };
  if (!switched()) {
    Unlock();
    Until("wait for the switch", [&switched] { return !world->locked && switched(); });
    world->locked = true;
  }
  if (!world->running && !world->abandoned && (world->wanted == world->rung || !loader->Busy() || !Abandon())) SwitchToWanted();
  Unlock();
}

void Compute(const Step& step) {
  const std::vector<Load>& loads = world->cold ? rung().first : rung().loads;
  const auto there = [&] {
    for (const int load : step.loads) {
      const Load& one = loads[load];
      const auto weights = static_cast<uint64_t>(world->cold ? one.number : load);
      if (!one.none && Brought(one) != weights + 1) return false;
    }
    return true;
  };
  Require(there(), "a step begins without its weights");
  At("compute");
  Require(there(), "the weights of a step change while it computes");
  for (const int load : step.loads)
    if (!loads[load].pinned) Brought(loads[load]) = kNothing;
}

bool RunSteps() {
  for (uint32_t i = 0; i < rung().steps.size(); ++i) {
    const Step& step = rung().steps[i];
    if (world->interrupt.load(std::memory_order_relaxed)) return false;
    const uint32_t need = loader->tape().need[i];
    world->awaited = need;
    if (!loader->Await(need)) return false;
    world->awaited = 0;
    Compute(step);
    loader->Computed(i + 1);
  }
  return true;
}

void Cancel() {
  for (; world->cancels < scenario->cancels; ++world->cancels) {
    Lock();
    if (world->running) {
      world->cancelled = world->interrupt = true;
      loader->Interrupt();
      world->told = true;
    }
    Unlock();
  }
}

enum class Outcome {
  kDone,
  kInterrupted,
  kFailed
};

bool Fill() {
  loader->StartFilling();
  world->awaited = static_cast<uint32_t>(loader->tape().operations.size());
  const bool done = loader->Await(world->awaited);
  world->awaited = 0;
  return done;
}

bool Infer() {
  world->cold = StartsEmpty() && !rung().first.empty();
  loader->Start();
  return RunSteps();
}

Outcome Try(bool filling) {
  if (filling && loader->Filled()) return Outcome::kDone;
  bool done = false, failed = false;
  try {
    done = filling ? Fill() : Infer();
  } catch (const tvm::ffi::Error&) {
    failed = true;  // nothing happens in here: exceptions belong to threads, not to fibers
  }
  if (!failed && !done) {
    Lock();
    if (world->wanted < world->rung) Abandon();
    Unlock();
  }
  bool finished = false;
  try {
    finished = done && loader->Finish();
  } catch (const tvm::ffi::Error&) {
    failed = true;
  }
  if (failed) loader->GiveUp();
  else if (!finished) loader->GiveUpLater();
  return failed ? Outcome::kFailed
         : done ? Outcome::kDone
                : Outcome::kInterrupted;
}

void EndGivingUp() {
  loader->EndGivingUp();
  Require(loader->Filled() || !world->stays || world->shrunk > 0 || scenario->delivered, "what stays is given up for nothing");
  world->stays = false;
}

// Under the lock.
void GoOn() {
  world->interrupt = false;
  loader->GoOn();
}

void Run(bool filling) {
  Lock();
  SwitchToWanted();
  world->running = true;
  world->cancelled = world->told = false;
  GoOn();
  Unlock();
  EndGivingUp();
  const bool filled = loader->Filled();
  auto outcome = Outcome::kInterrupted;
  for (int tries = 0; outcome == Outcome::kInterrupted; ++tries) {
    Lock();
    if (world->cancelled) {
      world->stays = filled;
      Unlock();
      break;
    }
    if (tries > 0) Require(++world->restarts <= world->shrunk, "an inference began anew for no reason");
    GoOn();
    loader->EndGivingUp();
    SwitchToWanted();
    Unlock();
    outcome = Try(filling);
    if (outcome == Outcome::kInterrupted && !world->cancelled) EndGivingUp();
  }
  if (outcome == Outcome::kFailed) Require(++world->errors <= world->failed, "an inference failed for no reason");
  Lock();
  world->running = false;
  SwitchToWanted();
  if (world->interrupt) loader->GiveUpLater();
  Unlock();
}

// All but what stays, wherever nothing was loaded into: of a load that stays this may be what it reads, or what it is made into.
void WorkElsewhere() {
  loader->GiveUp();
  Require(source->idle(), "a read is in flight into what somebody else uses");
  Require(world->failed > 0 || world->cancels > 0 || !StartsEmpty(), "what was read is given up for nothing");
  for (int place = 0; place < deck().working; ++place) world->places[place] = kNothing;
}

void RunAll() {
  for (; world->ended < scenario->inferences; ++world->ended) {
    if (scenario->lane) loader->ReadAhead(Choose("read ahead?", 2) == 1);
    Run((scenario->warm && world->ended == 0) || (scenario->warm_second && world->ended == 1));
    if (scenario->lane && Choose("work elsewhere?", 2) == 1) WorkElsewhere();
  }
  Until("close", [] { return world->switched == scenario->switches && world->cancels == scenario->cancels; });
  loader->~Loader();
}

void Switch() {
  for (; world->switched < scenario->switches; ++world->switched) SetBudget();
}

template <typename T, typename... Args>
T* Make(Args&&... args) {
  return new (explore::Allocate(sizeof(T))) T(std::forward<Args>(args)...);
}

bool allocating = false;  // into the state

explore::Explored Explore(const Scenario& now) {
  explore::fiber_count = 0;
  explore::shared_nbytes = 0;
  std::memset(explore::shared, 0, sizeof(explore::shared));
  scenario = &now;
  decks.clear();
  for (const Rung* rung : now.rungs) decks.push_back(std::make_unique<Deck>(*rung));
  allocating = true;
  world = Make<World>();
  world->queued = now.queued;
  world->rung = world->wanted = static_cast<int>(now.rungs.size()) - 1;
  auto own = std::make_unique<Source>();
  source = own.get();
  making = Make<Making>();
  auto* file = Make<WeightsFile>("weights", std::move(own));
  loader = Make<Loader>(*file, flexcomp::CpuSet(), false);
  if (now.delivered) loader->Deliver(Make<Delivering>());
  Activate();
  allocating = false;
  auto* infer = Make<void (*)()>(RunAll);
  auto* change = Make<void (*)()>(Switch);
  explore::Start("infer", *infer);
  explore::Start("budget", *change);
  if (now.cancels > 0) explore::Start("cancel", *Make<void (*)()>(Cancel));
  world->faults = now.faults;
  return explore::Explore([] {
    Require(source->idle(), "a read outlives the loader");
    Require(!world->locked && world->ended == scenario->inferences, "somebody has not ended");
  });
}

// Anew when an Atomic that was taken for a fiber's own turns out not to be. Who changes which is known from one scenario to the
// next: all of them begin with the same objects.
explore::Explored ExploreAll(const Scenario& now) {
  explore::Explored explored;
  do {
    explore::Disown();
    explore::shared_after_all = false;
    explored = Explore(now);
  } while (explore::shared_after_all);
  return explored;
}

}  // namespace

void* operator new(size_t nbytes) { return allocating ? explore::Allocate(nbytes) : std::malloc(nbytes); }
void operator delete(void* data) noexcept {
  const char* const at = static_cast<char*>(data);
  if (at < explore::shared || at >= explore::shared + explore::kSharedNbytes) std::free(data);
}
void operator delete(void* data, size_t) noexcept { operator delete(data); }

// Time stands still: it would make every state a new one.
extern "C" int clock_gettime(clockid_t, timespec* time) noexcept {
  *time = {};
  return 0;
}

int main(int count, char** names) {
  if (count > 2) explore::broken = std::atoi(names[2]);
  explore::Explored all;
  for (const int others : {0, 1, 2}) {  // without a budget that changes, more belongs to one of them
    std::memset(explore::users, 0, sizeof(explore::users));
    for (const Scenario& one : kScenarios) {
      if ((one.switches > 0) + (one.cancels > 0) != others || (count > 1 && std::strcmp(names[1], one.name) != 0)) continue;
      std::printf("%s: ", one.name);
      std::fflush(stdout);
      const explore::Explored explored = ExploreAll(one);
      std::printf("%zu states, %zu steps\n", explored.states, explored.steps);
      all.states += explored.states;
      all.steps += explored.steps;
    }
  }
  std::printf("%zu states, %zu steps\n", all.states, all.steps);
}
