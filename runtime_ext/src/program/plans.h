// The plans of a program, each decoded at its first use.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <memory_resource>
#include <optional>

#include "program/program.h"

namespace flexcomp {

class Plans {
 public:
  // Finds the memory for all of them: budgets shrink where there is none.
  explicit Plans(const Program& program);

  // As Program::Decode.
  const Rung& Decode(size_t rung, const Program& program);
  const Rung& At(size_t rung) const noexcept { return *places_[rung].rung; }

 private:
  struct Place {
    Place(std::byte* room, size_t nbytes) : memory(room, nbytes) {}

    std::pmr::monotonic_buffer_resource memory;
    std::optional<Rung> rung;
  };

  std::unique_ptr<std::byte[]> room_;
  std::deque<Place> places_;
};

}  // namespace flexcomp
