#include "watch/memory_source.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace flexcomp {
namespace {

constexpr uint64_t kNoLimit = uint64_t{1} << 60;  // version 1 writes a number just below 2^63 for none
constexpr double kHighPressure = 10, kLowPressure = 1;

bool Exists(const std::string& path) { return std::ifstream(path).good(); }

// Throws ExecutionError.
std::string Read(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) RaiseError("ExecutionError", "cannot read ", path, errno != 0 ? ": " + ErrnoText(errno) : "");
  return text.str();
}

// The number that a file holds; "max" is none.
uint64_t NumberIn(const std::string& path) {
  const std::string text = Read(path);
  if (text.starts_with("max")) return kNoLimit;
  char* end = nullptr;
  const uint64_t number = std::strtoull(text.c_str(), &end, 10);
  if (end == text.c_str()) RaiseError("ExecutionError", path, " does not hold a number");
  return number;
}

// The second word of the line that begins with this one; 0: there is no such line.
uint64_t FieldOf(const std::string& text, std::string_view name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ' ') return std::strtoull(line.c_str() + name.size(), nullptr, 10);
  return 0;
}

}  // namespace

const ControlGroup::Files ControlGroup::kVersions[] = {
    {{"/memory.max", "/memory.high"}, "/memory.current", "inactive_file"},
    {{"/memory.limit_in_bytes", ""}, "/memory.usage_in_bytes", "total_inactive_file"},
};

ControlGroup::ControlGroup(const std::string& folder, std::string_view root) {
  std::string group = folder;
  while (group.size() > 1 && group.ends_with('/')) group.pop_back();
  const std::string inside = std::string(root) + "/";
  do {
    for (const Files& files : kVersions)
      if (Exists(group + std::string(files.limits[0]))) groups_.push_back({group, &files});
    group.resize(std::min(group.rfind('/'), group.size()));
  } while (group.starts_with(inside));
  if (groups_.empty()) RaiseError("InputError", folder, " is no memory control group: it has neither memory.max nor memory.limit_in_bytes");
}

ControlGroup ControlGroup::Own(const std::string& table, std::string_view root) {
  std::istringstream lines(Read(table));
  std::string found;
  for (std::string line; std::getline(lines, line);) {  // number:controllers:path
    const size_t first = line.find(':'), second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",", path = line.substr(second + 1);
    if (controllers.find(",memory,") != controllers.npos)
      found = std::string(root) + "/memory" + path;
    else if (controllers == ",," && found.empty())
      found = std::string(root) + path;
  }
  if (found.empty()) Raise("InputError", "this process is in no memory control group");
  return ControlGroup(found, root);
}

std::optional<uint64_t> ControlGroup::Allowed(const Budgeted& now) const {
  uint64_t allowed = kNoLimit;
  for (const Group& group : groups_) allowed = std::min(allowed, Left(group, now.resident));
  return allowed;
}

uint64_t ControlGroup::Left(const Group& group, uint64_t resident) {
  uint64_t limit = NumberIn(group.folder + std::string(group.files->limits[0]));
  const std::string second = group.folder + std::string(group.files->limits[1]);
  if (second != group.folder && Exists(second)) limit = std::min(limit, NumberIn(second));
  const std::string usage = group.folder + std::string(group.files->usage), stat = group.folder + "/memory.stat";
  if (limit >= kNoLimit || !Exists(usage)) return std::min(limit, kNoLimit);
  // Only the part of the budget that is in memory is in the usage: counting all would make room that is not there.
  const uint64_t used = NumberIn(usage), free = (Exists(stat) ? FieldOf(Read(stat), group.files->droppable) : 0) + resident;
  const uint64_t others = used > free ? used - free : 0;
  return limit > others ? limit - others : 0;
}

Pressure::Pressure(const std::string& path) : path_(path) {
  if (!Exists(path_)) RaiseError("InputError", "this system does not report memory pressure: there is no ", path_);
}

std::optional<uint64_t> Pressure::Allowed(const Budgeted& now) const {
  const std::string text = Read(path_);
  const size_t found = text.starts_with("some avg10=") ? text.find('=') : text.npos;
  if (found == text.npos) RaiseError("ExecutionError", path_, " does not look like pressure information");
  const double waiting = std::strtod(text.c_str() + found + 1, nullptr);
  const auto next = std::ranges::upper_bound(now.budgets, now.used);
  const auto first = std::ranges::lower_bound(now.budgets, now.used);
  if (waiting >= kHighPressure) return first == now.budgets.begin() ? now.used : *(first - 1);
  if (waiting <= kLowPressure)
    return static_cast<uint64_t>(std::ceil(static_cast<double>(next == now.budgets.end() ? now.used : *next) * kGrowthMargin)) + 1;
  return std::nullopt;
}

}  // namespace flexcomp
