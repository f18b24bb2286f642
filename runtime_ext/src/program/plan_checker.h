// Plans are decoded and checked before they are executed for the first time, not all when a program is read.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "program/program.h"

namespace flexcomp {

class PlanChecker {
 public:
  // Finds the memory that checking takes: budgets shrink where there is none. `program` must outlive it.
  explicit PlanChecker(const Program& program);

  // Decodes the plan, and CheckPlan, unless the rung has passed it. Any thread may call it. Throws ArtifactError.
  void Check(size_t rung);

 private:
  const Program& program_;
  std::mutex mutex_;
  std::vector<bool> checked_;
  Rung first_;  // the one that is checked
  size_t room_nbytes_ = 0;
  std::unique_ptr<std::byte[]> room_;
};

}  // namespace flexcomp
