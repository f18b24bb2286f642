// Networks in a pool, as callers see them.
#pragma once

#include <flexcomp.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "api/tensors.h"
#include "pool/pool.h"
#include "program/shapes.h"

namespace flexcomp::api {

class Member {
 public:
  // `described` have the network's tensors and rungs. No member yet: calls fail with the kind Closed.
  Member(std::shared_ptr<Pool> pool, Shapes&& described) noexcept : pool_(std::move(pool)), shapes_(std::move(described)) {}
  // From now on one; `number` is the pool's.
  void Join(uint32_t number) noexcept { number_ = number; }

  const Shapes& shapes() const noexcept { return shapes_; }
  Pool& pool() const noexcept { return *pool_; }
  const std::shared_ptr<Pool>& owner() const noexcept { return pool_; }

  // One inference in its turn. Throws errors of the kinds RefusedError, CancelledError, Closed, and those of inferences.
  void Run(const Bound& inputs, const Bound& outputs);
  // The same without waiting, as request number `ticket` of the pool.
  void Submit(uint64_t ticket, const RequestOptions& options, const Bound& inputs, const Bound& outputs);
  void Cancel();  // the inference in progress
  void Remove();  // throws as Pool::Remove, and Closed if it is no member any more

  tvm::ffi::json::Object Said() const;  // as Pool::StatsOf
  flexcomp_stats Stats() const;
  flexcomp_member_stats Counts() const;
  size_t rung() const;

 private:
  const std::shared_ptr<Pool> pool_;
  std::atomic<uint32_t> number_ = 0;  // no model of a pool has 0
  const Shapes shapes_;
};

// Throws the error for a request that was cancelled or refused.
void RequireRun(const Answer& answer);

}  // namespace flexcomp::api
