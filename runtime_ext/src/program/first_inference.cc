// The first inference of a rung: some layers are computed from weights as stored, which are then prepared for the
// second inference (NNV12, sections 3.1 and 3.5).
#include <utility>

#include "program/program.h"

namespace flexcomp {

FileRange PagesOf(const Layer& layer) {
  const LayerWeights& weights = *layer.weights;
  return {weights.offset / kPage * kPage, RoundUp(weights.offset + weights.nbytes(), kPage)};
}

Step FirstStep(const Cold& cold, const Rung& rung, const Program& program) {
  const Step& step = rung.steps[cold.step];
  const Layer& layer = program.layers[cold.layer];
  const uint64_t at = cold.at + (layer.weights->offset - PagesOf(layer).begin);
  return {cold.layer, 0, layer.weights->blocks, step.need, static_cast<int64_t>(at), layer.scratch_nbytes > 0 ? step.scratch_at : -1};
}

Rung RoomForFirst(const Program& program) {
  Rung room;
  for (const RungHead& rung : program.rungs) {
    if (rung.cold == 0) continue;
    room.value_at.reserve(program.values.size());
    room.steps.reserve(rung.steps);
    room.loads.reserve(rung.loads);
  }
  return room;
}

void PlanFirst(const Rung& rung, const Program& program, Rung& first) noexcept {
  first.budget = rung.budget;
  first.arena = rung.arena;
  first.working = rung.working;
  first.value_at.assign(rung.value_at.begin(), rung.value_at.end());
  first.steps.assign(rung.steps.begin(), rung.steps.end());
  first.loads.assign(rung.loads.begin(), rung.loads.end());
  for (const Cold& cold : rung.cold) {
    first.steps[cold.step] = FirstStep(cold, rung, program);
    const FileRange pages = PagesOf(program.layers[cold.layer]);
    uint64_t nbytes = pages.nbytes();
    for (Load& load : first.loads)
      if (load.prepared && load.prepared->layer == rung.steps[cold.step].layer)
        load = {.source = pages.begin, .nbytes = std::exchange(nbytes, 0), .target = cold.at, .after = 0, .pinned = true, .ahead = false};
  }
}

}  // namespace flexcomp
