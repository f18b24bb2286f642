// The order of work on a device: copies of weights and steps are on two streams, with events between them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "program/program.h"
#include "program/shapes.h"

namespace flexcomp::cuda {

// Events of steps and loads, as many as the largest rung of any shape has.
class StreamOrder {
 public:
  // Throws ExecutionError.
  StreamOrder(Device& device, const Shapes& shapes);
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // From now on steps and loads are those of these tapes; none is under way.
  void Use(const Tapes& tapes) noexcept;

  // By the thread that gives steps to the compute stream: later work is after the first `need` loads; step `step` was
  // given.
  Refusal BeforeStep(uint32_t step, uint32_t need) noexcept;
  Refusal AfterStep(uint32_t step) noexcept;
  // Waits until the first `need` loads are over: nothing else has to, then, before the step.
  Refusal AwaitLoads(uint32_t step, uint32_t need) noexcept;

  // By the thread that gives loads to the copy stream: later work is after the first `steps` steps; load `load` was
  // given.
  Refusal BeforeCopy(uint32_t steps) noexcept;
  Refusal AfterLoad(uint32_t load) noexcept;
  // Waits until the first `steps` steps are over.
  Refusal AwaitSteps(uint32_t steps) noexcept;

 private:
  // Moments of one stream, numbered in the order of recording. Work after one of them is after the earlier ones, too.
  struct Moments {
    std::vector<Event> events;
    std::unique_ptr<std::atomic<uint64_t>[]> numbers;  // of the last moment of each event; 0: none
    uint64_t last = 0;
    uint64_t awaited = 0;  // the other stream, or the loader, is after this one

    Refusal Record(Device& device, Stream stream, uint32_t index) noexcept;
    Refusal Await(Device& device, Stream stream, uint32_t index, uint64_t number) noexcept;
    Refusal AwaitHere(Device& device, uint32_t index, uint64_t number) noexcept;  // the calling thread does
  };
  struct Moment {
    uint32_t index = 0;
    uint64_t number = 0;  // 0: none
  };
  Moment NewestLoad(uint32_t step, uint32_t need) noexcept;  // of loads that were not looked at
  static void Create(Device& device, Moments& moments, size_t count);
  void Destroy() noexcept;

  Device& device_;
  Moments steps_, loads_;
  std::vector<bool> waited_for_;  // of the steps: by some load
  uint32_t looked_at_ = 0;        // loads before this one, in this inference
};

}  // namespace flexcomp::cuda
