// States: tensors that stay in a session from one inference to the next.
#include <utility>
#include <vector>

#include "session/port_check.h"
#include "session/session.h"

namespace flexcomp {
namespace {

// Makes `type` that of a tensor with fewer elements along one axis, the first ones of the state.
StateBlocks LeadingPart(TensorType& type, const DLTensor& tensor) {
  const uint64_t whole = type.nbytes;
  uint64_t count = 1;
  for (size_t axis = 0; tensor.ndim == static_cast<int32_t>(type.shape.size()) && axis < type.shape.size(); ++axis) {
    const int64_t given = tensor.shape[axis], has = type.shape[axis];
    if (given > 0 && given < has) {
      type.shape[axis] = given;
      type.nbytes = whole / static_cast<uint64_t>(has) * static_cast<uint64_t>(given);
      for (size_t before = 0; before < axis; ++before) type.strides[before] = type.strides[before] / has * given;
      return {count, type.nbytes / count, whole / count};
    }
    count *= static_cast<uint64_t>(has);
  }
  return {1, whole, whole};
}

}  // namespace

Carried Session::States() const noexcept {
  if (current().states.empty()) return {};
  const uint32_t value = current().states.front().value;
  const PlacedRung held = PlacedNow();
  const uint64_t at = held.PlaceOf(static_cast<uint64_t>(held.rung.value_at[value]));
  return {at, at, current().values[value].nbytes};
}

Carried Session::StatesTo(const PlacedRung& next) const noexcept {
  if (!states_written_ || current().states.empty()) return {};
  Carried states = States();
  states.to = next.PlaceOf(static_cast<uint64_t>(next.rung.value_at[next.program.states.front().value]));
  return states;
}

std::span<std::byte> Session::RoomBesideStates() const noexcept {
  const Carried states = States();
  const uint64_t behind = states.from + states.nbytes;
  if (states.from > nbytes_ - behind) return {memory_->base(), states.from};
  return {memory_->base() + behind, nbytes_ - behind};
}

template <typename Function>
void Session::ForStates(const Function& function) {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  const std::lock_guard state_lock(state_mutex_);  // a switch may be about to carry states elsewhere
  RequireOpen();
  processor_->RequireAlive();
  Attach();
  for (size_t i = 0; i < current().states.size(); ++i)
    function(i, memory_->base() + States().from + current().states[i].offset);
}

std::vector<StateBlocks> Session::CheckStates(std::span<const DLTensor* const> tensors, bool parts) const {
  std::vector<StateBlocks> blocks(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i] != nullptr) {
      TensorType type = program().states[i].type;
      blocks[i] = parts ? LeadingPart(type, *tensors[i]) : StateBlocks{1, type.nbytes, type.nbytes};
      CheckTensor(program().states[i].input, type, *tensors[i], program().on_cuda);
    }
  return blocks;
}

void Session::GetStates(std::span<const DLTensor* const> tensors, bool parts) {
  const std::vector<StateBlocks> blocks = CheckStates(tensors, parts);
  ForStates([&](size_t i, const std::byte* place) {
    for (uint64_t k = 0; k < blocks[i].count; ++k)
      memory_->Read(DataOf(*tensors[i]) + k * blocks[i].nbytes, place + k * blocks[i].stride, blocks[i].nbytes);
  });
}

void Session::SetStates(std::span<const DLTensor* const> tensors, bool parts) {
  const std::vector<StateBlocks> blocks = CheckStates(tensors, parts);
  ForStates([&](size_t i, std::byte* place) {
    states_written_ = true;
    for (uint64_t k = 0; k < blocks[i].count; ++k)
      memory_->Write(place + k * blocks[i].stride, DataOf(*tensors[i]) + k * blocks[i].nbytes, blocks[i].nbytes);
  });
}

void Session::ResetStates() {
  ForStates([&](size_t i, std::byte* place) {
    if (states_written_) memory_->Clear(place, current().states[i].type.nbytes);
  });
}

void Session::TakeBack() noexcept {
  if (exchanged_ == 0) return;
  // The steps ran with the same tensors, and kernels that only exchange cannot fail; but a device may refuse a launch.
  const ProcessorScope scope(*processor_);
  const std::span<const Call> calls = now().calls.calls();
  for (uint32_t i = std::exchange(exchanged_, 0); i-- > 0;)
    for (int tries = 2; calls[i].exchanges && tries > 0; --tries) {
      if (processor_->Step(i, 0, calls[i].kernel, calls[i].args, calls[i].count) == 0) break;
      void* raised = nullptr;
      TVMFFIErrorMoveFromRaised(&raised);
      if (raised != nullptr) TVMFFIObjectDecRef(raised);
      if (tries == 1) processor_->Lose();  // states are neither here nor there
    }
}

void Session::CommitStates() noexcept {
  exchanged_ = 0;
  const auto& value_at = current().plan(rung_).value_at;
  const Places places = PlacesOf(rung_);
  for (const auto& state : current().states)
    if (!state.exchanged()) memory_->Copy(places.At(value_at[state.value]) + state.offset, places.At(value_at[state.result]), state.type.nbytes);
}

}  // namespace flexcomp
