// A program as its grammar sees it: where each number, string and list lies. The grammar itself comes from
// flexcomp/program/program_bytes.py, through grammar.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace fuzz {

enum class Kind : uint8_t {
  u8,
  u16,
  u32,
  u64,
  i32,
  i64,
  f64,
  str,
  literal,
  rule
};

struct Leaf {
  size_t offset, nbytes;  // of a string without its length
  Kind kind;
  const char* name;  // "step.count"
};

struct List {
  size_t count_at;  // the u32 before the items
  const char* name;
  std::vector<size_t> edges;  // where items begin, and where the last one ends
};

struct Tree {
  std::vector<Leaf> leaves;
  std::vector<List> lists;
  std::vector<size_t> plans;  // as the edges of a list
};

// Nothing if the bytes are not such a program; what its numbers say is not looked at, but for counts and tags.
std::optional<Tree> Parse(std::string_view program);

}  // namespace fuzz
