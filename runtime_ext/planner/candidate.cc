#include "candidate.h"

#include <algorithm>

#include "pieces.h"
#include "slicing.h"

namespace flexcomp::planner {
namespace {

std::vector<char> Pinned(const Problem& problem, const std::vector<Step>& steps, const std::vector<int64_t>& room,
                         const Choice& choice) {
  PinTask task;
  task.pages.resize(steps.size());
  std::vector<Piece> pieces;
  PiecesOf(problem, steps, &pieces);
  for (const Piece& piece : pieces) task.pages[piece.step] = piece.pages();
  for (const Step& step : steps) {
    const Layer& layer = problem.layers[step.layer];
    task.seconds.push_back(layer.seconds * static_cast<double>(step.count) / static_cast<double>(layer.blocks()));
    task.room.push_back(room[step.layer] / kPage);
  }
  task.capacity = choice.arena - choice.core;
  task.bandwidth = problem.storage.bandwidth / kPage;
  task.overhead = problem.storage.overhead_s * task.bandwidth;
  return ChoosePins(choice.pins, task);
}

// Neighbouring pinned slices of one layer become one step: they need no cutting.
void MergePinned(std::vector<Step>* steps, std::vector<char>* pinned) {
  size_t done = 0;
  bool before = false;  // whether the step before is pinned
  for (size_t index = 0; index < steps->size(); ++index) {
    const bool stays = (*pinned)[index];
    if (stays && before && (*steps)[done - 1].layer == (*steps)[index].layer) {
      (*steps)[done - 1].count += (*steps)[index].count;
    } else {
      (*steps)[done] = (*steps)[index];
      (*pinned)[done++] = stays;
    }
    before = stays;
  }
  steps->resize(done);
  pinned->resize(done);
}

void Assemble(const Problem& problem, const Layout& layout, const std::vector<Piece>& pieces, const std::vector<Place>& places,
              const std::vector<char>& pinned, Candidate* candidate) {
  Plan& plan = candidate->plan;
  plan.segments.clear();
  plan.need.assign(plan.steps.size(), 0);
  int64_t top = layout.top();
  for (size_t index = 0; index < pieces.size(); ++index) {
    const Piece& piece = pieces[index];
    const Place& place = places[index];
    const int64_t address = place.first * kPage;
    plan.segments.push_back({piece.step, piece.source, piece.nbytes, address, place.after, pinned[piece.step],
                             piece.end - piece.step, place.ahead});
    for (int64_t step = piece.step; step < piece.end; ++step) {
      if (problem.layers[plan.steps[step].layer].weighted()) plan.need[step] = static_cast<int64_t>(index) + 1;
    }
    top = std::max(top, address + piece.nbytes);
  }
  candidate->arena = (top + kPage - 1) / kPage * kPage;
}

}  // namespace

bool MakeCandidate(const Problem& problem, const Layout& layout, const Choice& choice, Candidate* candidate) {
  const size_t layers = problem.layers.size();
  std::vector<Step>& steps = candidate->plan.steps;

  // 2 and 3: the core, and slices that fit its gaps
  std::vector<int64_t> room(layers), limits(layers);
  const int64_t most = (choice.within ? choice.within : choice.arena) * kPage;
  for (size_t layer = 0; layer < layers; ++layer) {
    room[layer] = layout.Room(layer, choice.core);
    const int64_t wanted = std::min(room[layer], most) / choice.in_flight;
    limits[layer] = std::min(room[layer], std::max(problem.layers[layer].finest, wanted));
  }
  if (!SliceToRoom(problem, limits, &steps)) return false;
  candidate->effort = static_cast<int64_t>(steps.size());

  // 4: what stays, at the top of the arena in the order of the steps, and what is read together
  std::vector<char> pinned = Pinned(problem, steps, room, choice);
  MergePinned(&steps, &pinned);
  std::vector<Piece> pieces, streamed;
  PiecesOf(problem, steps, &pieces);
  if (choice.joined) Join(steps, limits, choice.joined, pinned, &pieces);
  int64_t top = choice.arena;
  for (const Piece& piece : pieces) {
    if (pinned[piece.step]) {
      top -= piece.pages();
    } else {
      streamed.push_back(piece);
    }
  }

  // 5: the others
  std::vector<PageSet> free(steps.size() + 1);
  for (size_t step = 0; step <= steps.size(); ++step) {
    layout.FreePages(step < steps.size() ? steps[step].layer : layers - 1, top, &free[step]);
  }
  std::vector<Place> found, places;
  if (!Preloading(&free, streamed, choice.chooser, choice.within).Run(&found)) return false;
  auto next = found.begin();
  for (const Piece& piece : pieces) {
    if (pinned[piece.step]) {
      places.push_back({0, top});
      top += piece.pages();
    } else {
      places.push_back(*next++);
    }
  }
  Assemble(problem, layout, pieces, places, pinned, candidate);
  return true;
}

}  // namespace flexcomp::planner
