// Which rung a session uses, and how it changes.
#include <tvm/ffi/error.h>

#include <mutex>
#include <utility>

#include "base/error.h"
#include "session.h"

namespace flexcomp {

size_t Session::ChooseRung(uint64_t budget) const {
  const std::vector<Rung>& rungs = program_->rungs;
  if (budget < rungs.front().budget)
    RaiseError("BudgetError", "a budget of ", budget, " bytes was asked for, the smallest that ", program_->model,
               " was built for is ", rungs.front().budget, " bytes");
  size_t chosen = 0;
  while (chosen + 1 < rungs.size() && rungs[chosen + 1].budget <= budget) ++chosen;
  return chosen;
}

Places Session::PlacesOf(size_t rung) const noexcept {
  const uint64_t border = program_->rungs[rung].working;
  return lane_ ? Places(lane_.base, arena_.base(), border) : Places(arena_.base(), arena_.base() + border, border);
}

uint64_t Session::OwnNbytes(size_t rung) const noexcept {
  return program_->rungs[rung].arena - (lane_ ? program_->rungs[rung].working : 0);
}

void Session::Use(size_t rung) noexcept {
  rung_ = wanted_ = states_rung_ = rung;
  abandoned_ = false;
  calls_.Prepare(*program_, program_->rungs[rung], PlacesOf(rung));
  OpenLoads();
}

void Session::OpenLoads() noexcept {
  const Rung& rung = program_->rungs[rung_];
  loader_->Open(rung.loads, PlacesOf(rung_), FreshPages(arena_.base(), OwnNbytes(rung_)), &preparer_);
}

bool Session::MakeRoom(size_t rung) {
  const uint64_t nbytes = OwnNbytes(rung);
  bool has_room = true;
  Arena next;
  if (nbytes > arena_.nbytes()) {
    try {
      next = Arena(nbytes);
    } catch (const tvm::ffi::Error&) {
      // Where address space is short, there may be room for one of them.
      has_room = !running_;
      if (has_room) {
        loader_->Abort();  // it may be reading for the next inference
        if (!arena_.Grow(nbytes, CarriedAlong(rung))) throw;
        Use(rung);
      }
    }
  }
  next_arena_ = std::move(next);
  return has_room;
}

void Session::SwitchToWanted() noexcept {
  if (wanted_ == rung_ && !abandoned_) return;
  loader_->Abort();  // it may be reading for the next inference
  const uint64_t nbytes = OwnNbytes(wanted_);
  if (nbytes <= arena_.nbytes()) {
    arena_.Shrink(nbytes, CarriedAlong(wanted_));
  } else if (nbytes <= next_arena_.nbytes()) {
    next_arena_.TakeFrom(arena_, CarriedAlong(wanted_));
    arena_ = std::exchange(next_arena_, {});
  } else if (!arena_.Grow(nbytes, CarriedAlong(wanted_))) {
    wanted_ = rung_;
    arena_.Shrink(OwnNbytes(rung_), CarriedAlong(rung_));
  }
  Use(wanted_);
}

bool Session::Abandon() noexcept {
  // A thread that copies what it reads would ask for the memory again.
  if (!file_->queued()) return false;
  loader_->Halt();  // before the memory goes: what it begins later would bring some back
  const Carried states = CarriedAlong(states_rung_);
  if (!arena_.Discard(states.from, states.nbytes)) return false;
  rung_ = wanted_;
  abandoned_ = true;
  return true;
}

const Rung& Session::SetBudget(uint64_t budget) {
  RequireThisProcess();
  const size_t chosen = ChooseRung(budget);
  checker_.Check(chosen);
  std::unique_lock lock(state_mutex_);
  RequireOpen();
  const bool has_room = MakeRoom(chosen);
  wanted_ = chosen;
  if (abandoned_ && has_room) rung_ = chosen;
  if (running_ && chosen < rung_) {
    interrupt_ = true;
    loader_->Interrupt();
  }
  // Until the memory is back, or another call wants something else.
  state_changed_.wait(lock, [&] { return !running_ || rung_ <= chosen || wanted_ != chosen; });
  if (!running_ && loader_ && !abandoned_ && (wanted_ == rung_ || !loader_->Busy() || !Abandon())) SwitchToWanted();
  return program_->rungs[chosen];
}

}  // namespace flexcomp
