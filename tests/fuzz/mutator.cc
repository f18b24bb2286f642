#include "mutator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <vector>

#include "base/crc32.h"
#include "program_tree.h"

namespace fuzz {
namespace {

constexpr size_t kCrcAt = 12, kSizeAt = 16, kPlansAt = 24, kHeader = 32;

size_t Below(Random& random, size_t count) { return random() % count; }
bool Once(Random& random, size_t in) { return Below(random, in) == 0; }

template <typename T>
const T& Any(const std::vector<T>& items, Random& random) {
  return items[Below(random, items.size())];
}

// One of each name is as likely as one of any other: a program has hundreds of steps and one number of threads.
template <typename T>
const T* AnyByName(const std::vector<T>& items, Random& random) {
  std::map<std::string_view, std::vector<const T*>> by_name;
  for (const T& item : items) by_name[item.name].push_back(&item);
  if (by_name.empty()) return nullptr;
  return Any(std::next(by_name.begin(), static_cast<ptrdiff_t>(Below(random, by_name.size())))->second, random);
}

uint64_t NumberAt(const std::string& bytes, size_t at, size_t nbytes) {
  uint64_t number = 0;
  std::memcpy(&number, bytes.data() + at, nbytes);
  return number;
}

uint64_t OtherNumber(const std::string& bytes, const Tree& tree, const Leaf& leaf, Random& random) {
  static constexpr uint64_t kNotable[] = {0, 1, 2, 3, 4, 64, 4095, 4096, 1 << 20, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX,
                                          uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 40, uint64_t{1} << 56, uint64_t{1} << 63};
  static constexpr uint64_t kUnits[] = {1, 1, 2, 4, 8, 32, 64, 64, 128, 256, 1024, 4096, 4096};
  const uint64_t old = NumberAt(bytes, leaf.offset, leaf.nbytes);
  std::vector<const Leaf*> others;
  switch (Below(random, 6)) {
    case 0:
      return kNotable[Below(random, std::size(kNotable))];
    case 1:
      return old ^ (uint64_t{1} << Below(random, 8 * leaf.nbytes));
    case 2:
    case 3:
      for (const Leaf& other : tree.leaves)
        if (other.kind == leaf.kind && std::string_view(other.name) == leaf.name) others.push_back(&other);
      return NumberAt(bytes, Any(others, random)->offset, leaf.nbytes);
    case 4:
      for (const Leaf& other : tree.leaves)
        if (other.nbytes == leaf.nbytes && other.kind != Kind::str) others.push_back(&other);
      return NumberAt(bytes, Any(others, random)->offset, leaf.nbytes);
    default: {
      const uint64_t step = kUnits[Below(random, std::size(kUnits))] * (1 + Below(random, 4));
      return Once(random, 2) ? old + step : old - step;
    }
  }
}

void ReplaceString(std::string& bytes, const Leaf& leaf, const std::string& text) {
  const auto length = static_cast<uint32_t>(text.size());
  std::memcpy(bytes.data() + leaf.offset - 4, &length, 4);
  bytes.replace(leaf.offset, leaf.nbytes, text);
}

std::string OtherString(const std::string& bytes, const Tree& tree, const Leaf& leaf, Random& random) {
  static const std::string kNotable[] = {"", "_library_bin", std::string("_library_bin\0", 13), "\xff", "main", std::string(300, 'x')};
  std::string text = bytes.substr(leaf.offset, leaf.nbytes);
  std::vector<const Leaf*> others;
  for (const Leaf& other : tree.leaves)
    if (other.kind == Kind::str && std::string_view(other.name) == leaf.name) others.push_back(&other);
  switch (Below(random, 4)) {
    case 0:
      return kNotable[Below(random, std::size(kNotable))];
    case 1:
      return text.substr(0, Below(random, text.size() + 1));
    case 2:
      if (!text.empty()) text[Below(random, text.size())] ^= static_cast<char>(1 << Below(random, 8));
      return text;
    default: {
      const Leaf& other = *Any(others, random);
      return bytes.substr(other.offset, other.nbytes);
    }
  }
}

// Calls with each leaf of this name, in their order, and its number.
template <typename Function>
void ForLeaves(const Tree& tree, std::string_view name, const Function& function) {
  size_t number = 0;
  for (const Leaf& leaf : tree.leaves)
    if (leaf.name == name) function(leaf, number++);
}

// What heads say of their plans' lists and bytes becomes what these have.
void Fit(std::string& bytes) {
  const auto tree = Parse(bytes);
  if (!tree) return;
  const auto set = [&](const Leaf& leaf, uint64_t number) { std::memcpy(bytes.data() + leaf.offset, &number, leaf.nbytes); };
  ForLeaves(*tree, "program.plans_at", [&](const Leaf& leaf, size_t) { set(leaf, tree->plans.front()); });
  ForLeaves(*tree, "rung.nbytes", [&](const Leaf& leaf, size_t i) { set(leaf, tree->plans[i + 1] - tree->plans[i]); });
  struct Count {
    std::string_view head, list;
  };
  for (const Count& of : {
           Count{"rung.steps", "plan.steps"},
           {"rung.operations", "plan.operations"},
           {"rung.runs", "tape.runs"},
           {"rung.first_steps", "plan.first_steps"},
       })
    ForLeaves(*tree, of.head, [&](const Leaf& leaf, size_t i) {
      size_t count = 0;
      for (const List& list : tree->lists)
        if (list.name == of.list && list.count_at >= tree->plans[i] && list.count_at < tree->plans[i + 1])
          count += list.edges.size() - 1;
      set(leaf, count);
    });
}

enum class Change {
  takes_out,
  doubles,
  swaps
};

// Takes item `i` out, doubles it at `k`, or swaps the two.
void ChangeItems(std::string& bytes, const std::vector<size_t>& edges, Change change, size_t i, size_t k) {
  const auto item = [&](size_t n) { return bytes.substr(edges[n], edges[n + 1] - edges[n]); };
  switch (change) {
    case Change::takes_out:
      bytes.erase(edges[i], edges[i + 1] - edges[i]);
      break;
    case Change::doubles:
      bytes.insert(edges[k], item(i));
      break;
    case Change::swaps: {
      const auto [low, high] = std::minmax(i, k);
      const std::string first = item(low), second = item(high);
      bytes.replace(edges[high], second.size(), first);
      bytes.replace(edges[low], first.size(), second);
    }
  }
}

bool ChangeList(std::string& bytes, const Tree& tree, const List& list, Random& random) {
  const size_t items = list.edges.size() - 1;
  if (items == 0) return false;
  const size_t i = Below(random, items), k = Below(random, items);
  const auto change = static_cast<Change>(Below(random, 3));
  if (change == Change::swaps && i == k) return false;
  if (std::string_view(list.name) == "body.rungs") ChangeItems(bytes, tree.plans, change, i, k);
  ChangeItems(bytes, list.edges, change, i, k);
  const auto count = static_cast<uint32_t>(items + (change == Change::doubles) - (change == Change::takes_out));
  std::memcpy(bytes.data() + list.count_at, &count, 4);
  Fit(bytes);
  return true;
}

void ChangeBytes(std::string& bytes, Random& random) {
  if (Once(random, 8)) bytes.push_back(static_cast<char>(random()));
  if (bytes.size() > kHeader && Once(random, 8)) bytes.resize(kHeader + Below(random, bytes.size() - kHeader));
  const size_t from = bytes.size() > kHeader ? kHeader : 0;
  if (bytes.size() > from) bytes[from + Below(random, bytes.size() - from)] ^= static_cast<char>(1 << Below(random, 8));
}

// What a change of bytes changed: the numbers and strings that it hit, if the program is the same otherwise.
std::string WhatChanged(const std::string& before, const std::string& after, const Tree& tree) {
  const auto changed = Parse(after);
  std::string what;
  for (size_t i = 0; i < tree.leaves.size(); ++i) {
    const Leaf& leaf = tree.leaves[i];
    const bool alike = changed && changed->leaves.size() == tree.leaves.size() && changed->leaves[i].offset == leaf.offset &&
                       changed->leaves[i].nbytes == leaf.nbytes && std::string_view(changed->leaves[i].name) == leaf.name;
    if (!alike) return "bytes";
    if (before.compare(leaf.offset, leaf.nbytes, after, leaf.offset, leaf.nbytes) != 0) what = leaf.name;
  }
  return what.empty() ? "bytes" : what;
}

// False: nothing changed.
bool TryMutate(std::string& bytes, Random& random, std::string& what) {
  const auto tree = Parse(bytes);
  if (!tree || Once(random, 32)) {
    const std::string before = bytes;
    ChangeBytes(bytes, random);
    what = tree ? WhatChanged(before, bytes, *tree) : "bytes";
    return true;
  }
  if (Once(random, 4)) {
    const List* list = AnyByName(tree->lists, random);
    what = list->name;
    return ChangeList(bytes, *tree, *list, random);
  }
  const Leaf& leaf = *AnyByName(tree->leaves, random);
  what = leaf.name;
  if (what == "program.crc" || what == "program.size" || what == "rung.crc") return false;
  const std::string before = bytes;
  if (leaf.kind == Kind::str) {
    ReplaceString(bytes, leaf, OtherString(bytes, *tree, leaf, random));
    Fit(bytes);
  } else if (leaf.kind == Kind::literal) {
    bytes[leaf.offset + Below(random, leaf.nbytes)] ^= static_cast<char>(1 << Below(random, 8));
  } else {
    const uint64_t number = OtherNumber(bytes, *tree, leaf, random);
    std::memcpy(bytes.data() + leaf.offset, &number, leaf.nbytes);
  }
  return bytes != before;
}

}  // namespace

std::string Mutate(std::string& program, Random& random) {
  std::string what;
  for (int attempt = 0; attempt < 16; ++attempt)
    if (TryMutate(program, random, what)) return what;
  ChangeBytes(program, random);
  return "bytes";
}

void Seal(std::string& program) {
  if (program.size() < kHeader) return;
  const uint64_t size = program.size();
  std::memcpy(program.data() + kSizeAt, &size, 8);
  const uint64_t plans_at = std::clamp<uint64_t>(NumberAt(program, kPlansAt, 8), kHeader, size);
  if (const auto tree = Parse(program)) {
    std::vector<uint32_t> sums;
    uint64_t at = plans_at;
    ForLeaves(*tree, "rung.nbytes", [&](const Leaf& leaf, size_t) {
      const uint64_t nbytes = std::min(NumberAt(program, leaf.offset, 8), size - at);
      sums.push_back(flexcomp::Crc32(0, program.data() + at, nbytes));
      at += nbytes;
    });
    ForLeaves(*tree, "rung.crc", [&](const Leaf& leaf, size_t i) { std::memcpy(program.data() + leaf.offset, &sums[i], 4); });
  }
  const uint32_t crc = flexcomp::Crc32(0, program.data() + kSizeAt, plans_at - kSizeAt);
  std::memcpy(program.data() + kCrcAt, &crc, 4);
}

}  // namespace fuzz
