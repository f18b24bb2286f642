// How much memory the system allows: a memory control group's limit, or the pressure of the whole system.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flexcomp {

// A budget grows only if this much more than its need is allowed.
constexpr double kGrowthMargin = 1.05;

// A network, or several, as a source sees them.
struct Budgeted {
  std::span<const uint64_t> budgets;  // to choose from: ascending, at least one
  uint64_t used = 0;                  // the one in use
  uint64_t resident = 0;              // bytes of its memory that are there
};

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Bytes that the budget may have now; none: no change. Throws ExecutionError where the system does not say.
  virtual std::optional<uint64_t> Allowed(const Budgeted& now) const = 0;
};

// The limits of a group and its ancestors below `root`, version 1 or 2, less other memory in them. From memory.high on the system slows
// a group down and takes memory away: that is a limit, too. Page cache that can be dropped counts as free.
class ControlGroup final : public MemorySource {
 public:
  // Throws InputError if `folder` is no memory control group.
  explicit ControlGroup(const std::string& folder, std::string_view root = "/sys/fs/cgroup");
  // That of this process. Throws InputError if it is in none with a limit.
  static ControlGroup Own(const std::string& table = "/proc/self/cgroup", std::string_view root = "/sys/fs/cgroup");

  std::optional<uint64_t> Allowed(const Budgeted& now) const final;

 private:
  struct Files {
    std::string_view limits[2], usage, droppable;  // the last: of memory.stat
  };
  struct Group {
    std::string folder;
    const Files* files;
  };
  static const Files kVersions[];

  static uint64_t Left(const Group& group, uint64_t resident);

  std::vector<Group> groups_;
};

// PSI: one budget down while tasks wait for memory, up while none does, by percentages of the last ten seconds.
class Pressure final : public MemorySource {
 public:
  // Throws InputError if there is no such file.
  explicit Pressure(const std::string& path = "/proc/pressure/memory");

  std::optional<uint64_t> Allowed(const Budgeted& now) const final;

 private:
  std::string path_;
};

}  // namespace flexcomp
