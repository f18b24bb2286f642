// Plans are decoded and checked before their first execution, not all when a program is read.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "program/program.h"
#include "program/tapes.h"

namespace flexcomp {

class PlanChecker {
 public:
  // Allocates the memory for checking: budgets shrink where there is none. `program` must outlive the checker.
  // `queued` as for TapeRoom.
  PlanChecker(const Program& program, bool queued);

  // Decodes the plan, and checks its tapes, unless the rung has passed before. Any thread may call this. Throws ArtifactError.
  void Check(size_t rung);

 private:
  const Program& program_;
  const bool queued_;
  std::mutex mutex_;
  std::vector<bool> checked_;
  TapeRoom tapes_;  // of the rung that is checked
  size_t kept_nbytes_ = 0, room_nbytes_ = 0;
  std::unique_ptr<std::byte[]> room_;
};

}  // namespace flexcomp
