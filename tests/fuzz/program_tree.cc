#include "program_tree.h"

#include <cstdlib>
#include <cstring>
#include <string>

namespace fuzz {
namespace {

enum class Repeat : uint8_t {
  once,
  list,
  values,
  rungs
};

struct Term {
  Kind kind;
  const char* name;
  int rule;
  Repeat repeat;
  const char* constant;
};

// By rule: the alternatives. The first rule is the whole.
const std::vector<std::vector<std::vector<Term>>> kRules = {
#include "grammar.inc"
};

size_t SizeOf(Kind kind) {
  switch (kind) {
    case Kind::u8:
      return 1;
    case Kind::u16:
      return 2;
    case Kind::u32:
    case Kind::i32:
      return 4;
    default:
      return 8;
  }
}

class Parser {
 public:
  explicit Parser(std::string_view bytes) : bytes_(bytes) {}

  std::optional<Tree> Parse() {
    if (!Rule(0) || at_ != bytes_.size()) return std::nullopt;
    return std::move(tree_);
  }

 private:
  bool Rule(int index) {
    const auto& alternatives = kRules[static_cast<size_t>(index)];
    for (const auto& terms : alternatives) {
      if (alternatives.size() > 1) {
        const bool chosen = at_ < bytes_.size() && static_cast<unsigned char>(bytes_[at_]) == std::atoi(terms[0].constant);
        if (!chosen) continue;
      }
      for (const Term& term : terms)
        if (!Repeated(term)) return false;
      return true;
    }
    return false;
  }

  bool Repeated(const Term& term) {
    if (term.repeat == Repeat::once) return One(term);
    size_t count = term.repeat == Repeat::rungs ? rungs_ : values_;
    const size_t number = tree_.lists.size();
    if (term.repeat == Repeat::list) {
      if (bytes_.size() - at_ < 4) return false;
      uint32_t items;
      std::memcpy(&items, bytes_.data() + at_, 4);
      count = items;
      tree_.lists.push_back({at_, term.name, {}});
      at_ += 4;
      if (std::string_view(term.name) == "body.values") values_ = count;
      if (std::string_view(term.name) == "body.rungs") rungs_ = count;
    }
    for (size_t i = 0; i < count; ++i) {
      if (term.repeat == Repeat::list) tree_.lists[number].edges.push_back(at_);
      if (term.repeat == Repeat::rungs) tree_.plans.push_back(at_);
      if (!One(term)) return false;
    }
    if (term.repeat == Repeat::rungs) tree_.plans.push_back(at_);
    if (term.repeat == Repeat::list) tree_.lists[number].edges.push_back(at_);
    return true;
  }

  bool One(const Term& term) {
    if (term.kind == Kind::rule) return Rule(term.rule);
    size_t nbytes = SizeOf(term.kind);
    if (term.kind == Kind::literal) nbytes = std::strlen(term.constant);
    if (term.kind == Kind::str) {
      if (bytes_.size() - at_ < 4) return false;
      uint32_t length;
      std::memcpy(&length, bytes_.data() + at_, 4);
      at_ += 4;
      nbytes = length;
    }
    if (bytes_.size() - at_ < nbytes) return false;
    tree_.leaves.push_back({at_, nbytes, term.kind, term.name});
    at_ += nbytes;
    return true;
  }

  std::string_view bytes_;
  size_t at_ = 0, values_ = 0, rungs_ = 0;
  Tree tree_;
};

}  // namespace

std::optional<Tree> Parse(std::string_view program) { return Parser(program).Parse(); }

}  // namespace fuzz
