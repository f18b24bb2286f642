#include "cuda/stream_order.h"

#include <algorithm>

namespace flexcomp::cuda {

StreamOrder::StreamOrder(Device& device, const Shapes& shapes) : device_(device) {
  const uint64_t steps = shapes.Most([](const Program& program) { return MostOf(program).steps; });
  const uint64_t operations = shapes.Most([](const Program& program) { return MostOf(program).operations; });
  waited_for_.resize(steps);
  try {
    Create(device_, steps_, steps);
    Create(device_, loads_, operations);
  } catch (...) {
    Destroy();
    throw;
  }
}

StreamOrder::~StreamOrder() { Destroy(); }

void StreamOrder::Create(Device& device, Moments& moments, size_t count) {
  moments.numbers = std::make_unique<std::atomic<uint64_t>[]>(count);
  moments.events.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    Event event;
    device.Do("cuEventCreate", [&](const Driver& driver) { return driver.EventCreate(&event, kNoTiming); });
    moments.events.push_back(event);
  }
}

void StreamOrder::Destroy() noexcept {
  for (const Moments* moments : {&steps_, &loads_})
    for (const Event event : moments->events)
      device_.Insist("cuEventDestroy", [&](const Driver& driver) { return driver.EventDestroy(event); });
}

void StreamOrder::Use(const Tapes& tapes) noexcept {
  std::fill(waited_for_.begin(), waited_for_.end(), false);
  for (const Tape* tape : {&tapes.first, &tapes.second, &tapes.steady})
    for (const Operation& operation : tape->operations)
      if (const uint32_t steps = operation.StepsBefore(static_cast<uint32_t>(tape->steps.size())); steps > 0) waited_for_[steps - 1] = true;
  looked_at_ = 0;
}

Refusal StreamOrder::Moments::Record(Device& device, Stream stream, uint32_t index) noexcept {
  const Refusal refusal =
      device.Try("cuEventRecord", [&](const Driver& driver) { return driver.EventRecord(events[index], stream); });
  if (!refusal) numbers[index].store(++last, std::memory_order_relaxed);  // seen with the counter that rises next
  return refusal;
}

Refusal StreamOrder::Moments::Await(Device& device, Stream stream, uint32_t index, uint64_t number) noexcept {
  if (number <= awaited) return {};
  // If the event has been recorded again meanwhile, this waits for more issued work than necessary.
  const Refusal refusal =
      device.Try("cuStreamWaitEvent", [&](const Driver& driver) { return driver.StreamWaitEvent(stream, events[index], 0); });
  if (!refusal) awaited = number;
  return refusal;
}

Refusal StreamOrder::Moments::AwaitHere(Device& device, uint32_t index, uint64_t number) noexcept {
  if (number <= awaited) return {};
  const Refusal refusal =
      device.Try("cuEventSynchronize", [&](const Driver& driver) { return driver.EventSynchronize(events[index]); });
  if (!refusal) awaited = number;
  return refusal;
}

StreamOrder::Moment StreamOrder::NewestLoad(uint32_t step, uint32_t need) noexcept {
  if (step == 0) looked_at_ = 0;
  Moment newest;
  for (; looked_at_ < need; ++looked_at_)
    if (const uint64_t number = loads_.numbers[looked_at_].load(std::memory_order_relaxed); number > newest.number)
      newest = {looked_at_, number};
  return newest;
}

Refusal StreamOrder::BeforeStep(uint32_t step, uint32_t need) noexcept {
  const Moment newest = NewestLoad(step, need);
  return loads_.Await(device_, device_.compute(), newest.index, newest.number);
}

Refusal StreamOrder::AwaitLoads(uint32_t step, uint32_t need) noexcept {
  const Moment newest = NewestLoad(step, need);
  return loads_.AwaitHere(device_, newest.index, newest.number);
}

Refusal StreamOrder::AfterStep(uint32_t step) noexcept {
  return waited_for_[step] ? steps_.Record(device_, device_.compute(), step) : Refusal{};
}

Refusal StreamOrder::BeforeCopy(uint32_t steps) noexcept {
  if (steps == 0) return {};
  return steps_.Await(device_, device_.copy(), steps - 1, steps_.numbers[steps - 1].load(std::memory_order_relaxed));
}

Refusal StreamOrder::AfterLoad(uint32_t load) noexcept {
  // A measurement of storage has loads of its own, after which nothing comes.
  return load < loads_.events.size() ? loads_.Record(device_, device_.copy(), load) : Refusal{};
}

Refusal StreamOrder::AwaitSteps(uint32_t steps) noexcept {
  if (steps == 0) return {};
  return steps_.AwaitHere(device_, steps - 1, steps_.numbers[steps - 1].load(std::memory_order_relaxed));
}

}  // namespace flexcomp::cuda
