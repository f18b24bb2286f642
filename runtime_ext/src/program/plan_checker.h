// Plans are decoded and checked before their first execution, not all when a program is read.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "program/program.h"

namespace flexcomp {

class PlanChecker {
 public:
  // Allocates the memory for checking: budgets shrink where there is none. `program` must outlive the checker.
  explicit PlanChecker(const Program& program);

  // Decodes the plan, and CheckPlan, unless the rung has passed before. Any thread may call this. Throws ArtifactError.
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
