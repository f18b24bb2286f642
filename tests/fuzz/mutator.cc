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

constexpr size_t kCrcAt = 12, kSizeAt = 16, kHeader = 24;

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
      return old ^ uint64_t{1} << Below(random, 8 * leaf.nbytes);
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

// Takes an item out, doubles one, or swaps two.
bool ChangeList(std::string& bytes, const List& list, Random& random) {
  const size_t items = list.edges.size() - 1;
  if (items == 0) return false;
  const auto item = [&](size_t i) { return bytes.substr(list.edges[i], list.edges[i + 1] - list.edges[i]); };
  const size_t i = Below(random, items), k = Below(random, items);
  uint32_t count = static_cast<uint32_t>(items);
  switch (Below(random, 3)) {
    case 0:
      bytes.erase(list.edges[i], list.edges[i + 1] - list.edges[i]);
      --count;
      break;
    case 1:
      bytes.insert(list.edges[k], item(i));
      ++count;
      break;
    default: {
      if (i == k) return false;
      const auto [low, high] = std::minmax(i, k);
      const std::string first = item(low), second = item(high);
      bytes.replace(list.edges[high], second.size(), first);
      bytes.replace(list.edges[low], first.size(), second);
    }
  }
  std::memcpy(bytes.data() + list.count_at, &count, 4);
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
    return ChangeList(bytes, *list, random);
  }
  const Leaf& leaf = *AnyByName(tree->leaves, random);
  what = leaf.name;
  if (what == "program.crc" || what == "program.size") return false;
  const std::string before = bytes;
  if (leaf.kind == Kind::str) {
    ReplaceString(bytes, leaf, OtherString(bytes, *tree, leaf, random));
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
  const uint32_t crc = flexcomp::Crc32(0, program.data() + kSizeAt, program.size() - kSizeAt);
  std::memcpy(program.data() + kCrcAt, &crc, 4);
}

}  // namespace fuzz
