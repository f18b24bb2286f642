#include "candidate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "pieces.h"
#include "slicing.h"

namespace flexcomp::planner {
namespace {

constexpr size_t kRemembered = 32;  // ways to slice and pin

Stays StaysOf(const Problem& problem, const std::vector<Step>& steps, const std::vector<int64_t>& room, const Choice& choice) {
  PinTask task;
  task.pages.resize(steps.size());
  task.costs.resize(steps.size());
  task.kept.resize(steps.size());
  task.bandwidth = problem.storage.bandwidth / kPage;
  const double overhead = problem.storage.overhead_s * task.bandwidth;
  std::vector<Piece> pieces;
  PiecesOf(problem, steps, &pieces);
  std::vector<int64_t> stored(steps.size()), more(steps.size());
  for (size_t step = 0; step < steps.size(); ++step) task.owner.push_back(step);
  if (problem.shares) {
    const std::vector<size_t> alike = FirstAlike(pieces, std::vector<char>(steps.size()));
    for (size_t at = 0; at < pieces.size(); ++at) task.owner[pieces[at].step] = static_cast<size_t>(pieces[alike[at]].step);
  }
  for (const Piece& piece : pieces) {
    const int64_t count = piece.pages();
    const auto pages = static_cast<double>(count);
    const Layer& layer = problem.layers[steps[piece.step].layer];
    task.costs[piece.step] = pages * problem.LoadCost(steps, piece.step) + overhead;
    task.pages[piece.step] = count;
    if (!choice.stored || !layer.stored.block_nbytes) continue;
    const int64_t fewer = StoredPages(layer.stored, steps[piece.step].first, steps[piece.step].count);
    if (fewer >= count) continue;
    stored[piece.step] = task.pages[piece.step] = fewer;
    more[piece.step] = count - fewer;
    task.kept[piece.step] = pages * layer.prepare_s * problem.storage.bandwidth;
  }
  for (const Step& step : steps) {
    const Layer& layer = problem.layers[step.layer];
    task.seconds.push_back(layer.seconds * static_cast<double>(step.count) / static_cast<double>(layer.blocks()));
    task.room.push_back(room[step.layer] / kPage);
  }
  task.capacity = choice.arena - choice.core;
  Stays stays{ChoosePins(choice.pins, task), std::vector<int64_t>(steps.size())};
  // The remaining room is for prepared weights, which need not be prepared each time.
  int64_t rest = task.capacity;
  bool any = false;
  for (size_t step = 0; step < steps.size(); ++step) {
    rest -= stays.pinned[step] ? task.pages[step] : 0;
    const bool may = stays.pinned[task.owner[step]] && stored[step];
    task.pages[step] = may ? more[step] : 0;
    task.costs[step] = may ? task.kept[step] : 0.0;
    task.kept[step] = 0.0;
    any |= may;
  }
  std::vector<char> prepared(steps.size());
  if (any) {
    task.capacity = rest;
    prepared = ChoosePins(choice.pins, task);
  }
  const std::vector<char> owners = stays.pinned;
  for (size_t step = 0; step < steps.size(); ++step) {
    const size_t owner = task.owner[step];
    stays.pinned[step] = owners[owner];
    if (!owners[owner] || !stored[step] || prepared[owner]) continue;
    stays.pinned[step] = 0;
    stays.kept[step] = stored[step];
  }
  return stays;
}

// Neighbouring pinned slices of one layer become one step: pinned layers need no cutting.
void MergePinned(std::vector<Step>* steps, Stays* stays) {
  size_t done = 0;
  bool before = false;  // whether the step before is pinned
  for (size_t index = 0; index < steps->size(); ++index) {
    const bool pinned = stays->pinned[index];
    if (pinned && before && (*steps)[done - 1].layer == (*steps)[index].layer) {
      (*steps)[done - 1].count += (*steps)[index].count;
    } else {
      (*steps)[done] = (*steps)[index];
      stays->kept[done] = stays->kept[index];
      stays->pinned[done++] = pinned;
    }
    before = pinned;
  }
  steps->resize(done);
  stays->pinned.resize(done);
  stays->kept.resize(done);
}

void Assemble(const Problem& problem, const Layout& layout, const std::vector<Piece>& pieces, const std::vector<Place>& places,
              const std::vector<char>& pinned, const std::vector<int64_t>& kept_at, Candidate* candidate) {
  Plan& plan = candidate->plan;
  plan.segments.clear();
  plan.again.clear();
  plan.need.assign(plan.steps.size(), 0);
  std::vector<int64_t> loads;  // by piece
  int64_t top = layout.top();
  for (size_t index = 0; index < pieces.size(); ++index) {
    const Piece& piece = pieces[index];
    const Place& place = places[index];
    const int64_t address = place.first * kPage;
    loads.push_back(place.again < 0 ? static_cast<int64_t>(plan.segments.size()) : loads[place.again]);
    if (place.again < 0) {
      plan.segments.push_back({piece.step, piece.source, piece.nbytes, address, place.after, pinned[piece.step],
                               piece.end - piece.step, place.ahead, kept_at[piece.step], piece.form});
    }
    for (int64_t step = piece.step; step < piece.end; ++step) {
      if (!problem.layers[plan.steps[step].layer].weighted()) continue;
      plan.need[step] = loads.back() + 1;
      if (place.again >= 0) plan.again.push_back({step, loads.back()});
    }
    top = std::max(top, address + piece.nbytes);
  }
  top = std::max(top, candidate->arena);
  candidate->arena = plan.arena = (top + kPage - 1) / kPage * kPage;
}

// A plan of these steps that streams these pieces is no faster, whatever the placement.
double LeastSeconds(const Problem& problem, const std::vector<Step>& steps, const std::vector<Piece>& streamed,
                    const std::vector<int64_t>& kept) {
  const Storage& storage = problem.storage;
  const double bandwidth = storage.cache ? storage.bandwidth * (1 + (storage.cached - 1)) : storage.bandwidth;
  double reading = 0.0, computing = 0.0;
  for (const Piece& piece : streamed) {
    const auto nbytes = static_cast<double>(piece.nbytes);
    if (kept[piece.step]) {
      reading += nbytes * problem.layers[steps[piece.step].layer].prepare_s;
    } else {
      reading += storage.overhead_s + nbytes * problem.LoadCost(steps, piece.step) / bandwidth;
    }
  }
  for (const Step& step : steps) {
    const Layer& layer = problem.layers[step.layer];
    const double part = layer.seconds * static_cast<double>(step.count) / static_cast<double>(layer.blocks());
    computing += part + (step.first ? layer.slice_s : 0.0);
  }
  const double helped = (reading + (storage.together - 1) * computing) / storage.together;
  return std::max(computing, std::min(reading, helped)) * (1 - 1e-9);
}

}  // namespace

const Making::Sliced& Making::SlicedFor(int64_t number, const Layout& layout, const Choice& choice) {
  const Key key{number, choice.arena, choice.core, choice.segments_at_once, choice.pins, choice.within, choice.stored};
  const auto found = sliced_.find(key);
  if (found != sliced_.end()) return found->second;
  const size_t layers = problem_.layers.size();
  std::vector<int64_t> room(layers);
  Sliced sliced;
  sliced.limits.resize(layers);
  const int64_t most = (choice.within ? choice.within : choice.arena) * kPage;
  for (size_t layer = 0; layer < layers; ++layer) {
    room[layer] = layout.Room(layer, choice.core);
    const int64_t wanted = std::min(room[layer], most) / choice.segments_at_once;
    sliced.limits[layer] = std::min(room[layer], std::max(problem_.layers[layer].finest, wanted));
  }
  if (problem_.shares) {  // equal slices can be shared
    std::vector<int64_t>& limits = sliced.limits;
    for (size_t layer = 0; layer < layers; ++layer) {
      int64_t& least = limits[problem_.layers[layer].twin];
      least = std::min(least, limits[layer]);
    }
    for (size_t layer = 0; layer < layers; ++layer) limits[layer] = limits[problem_.layers[layer].twin];
  }
  sliced.fits = SliceToRoom(problem_, sliced.limits, &sliced.steps);
  if (sliced.fits) {
    sliced.effort = static_cast<int64_t>(sliced.steps.size());
    sliced.stays = StaysOf(problem_, sliced.steps, room, choice);
    MergePinned(&sliced.steps, &sliced.stays);
  }
  if (sliced_.size() >= kRemembered) sliced_.clear();
  return sliced_.emplace(key, std::move(sliced)).first->second;
}

Made Making::Make(int64_t number, const Layout& layout, const Choice& choice, double limit, Candidate* candidate) {
  Draft draft;
  if (!Begin(number, layout, choice, &draft)) return Made::kUnplaceable;
  candidate->effort = draft.effort;
  candidate->least = draft.least;
  candidate->nbytes = draft.nbytes;
  if (draft.least > limit) return Made::kHopeless;
  return Finish(layout, choice, draft, candidate) ? Made::kPlan : Made::kUnplaceable;
}

bool Making::Begin(int64_t number, const Layout& layout, const Choice& choice, Draft* draft) {
  // 2, 3, and the weights that stay: slices that fit the gaps of the core
  const Sliced& sliced = SlicedFor(number, layout, choice);
  if (!sliced.fits) return false;
  draft->steps = sliced.steps;
  draft->stays = sliced.stays;
  draft->effort = sliced.effort;
  const std::vector<char>& pinned = draft->stays.pinned;
  const std::vector<int64_t>& kept = draft->stays.kept;

  // 4: places of weights that stay, at the top of the arena in the order of the steps, and joined pieces
  std::vector<Piece>& pieces = draft->pieces;
  PiecesOf(problem_, draft->steps, &pieces);
  if (choice.joined) {
    std::vector<char> apart(pinned);
    for (size_t step = 0; step < apart.size(); ++step) apart[step] |= kept[step] > 0;
    Join(draft->steps, sliced.limits, choice.joined, apart, &pieces);
  }
  // Shared weights stay once.
  std::vector<size_t>& alike = draft->alike;
  alike.resize(pieces.size());
  std::iota(alike.begin(), alike.end(), size_t{0});
  if (problem_.shares) alike = FirstAlike(pieces, pinned);
  draft->top = choice.arena;
  draft->streamed.clear();
  draft->streamed_at.clear();
  std::vector<Piece> once;  // streamed, each shared piece once: for the lower bound
  for (size_t at = 0; at < pieces.size(); ++at) {
    const Piece& piece = pieces[at];
    if (alike[at] == at) draft->top -= pinned[piece.step] ? piece.pages() : kept[piece.step];
    if (pinned[piece.step]) continue;
    draft->streamed.push_back(piece);
    draft->streamed_at.push_back(at);
    if (alike[at] == at) once.push_back(piece);
  }
  draft->least = LeastSeconds(problem_, draft->steps, once, kept);
  draft->nbytes = 0;
  for (const Piece& piece : once) draft->nbytes += kept[piece.step] ? 0 : piece.nbytes;
  return true;
}

bool Making::Finish(const Layout& layout, const Choice& choice, const Draft& draft, Candidate* candidate) {
  const std::vector<char>& pinned = draft.stays.pinned;
  const std::vector<int64_t>& kept = draft.stays.kept;
  const std::vector<Piece>& pieces = draft.pieces;
  const std::vector<size_t>& alike = draft.alike;
  std::vector<Step>& steps = candidate->plan.steps;
  steps = draft.steps;
  candidate->effort = draft.effort;
  candidate->least = draft.least;

  // 5: the others
  free_.resize(steps.size() + 1);
  for (size_t step = 0; step <= steps.size(); ++step) {
    layout.FreePages(step < steps.size() ? steps[step].layer : problem_.layers.size() - 1, draft.top, &free_[step]);
  }
  std::vector<Place> found, places;
  Preloading preloading(&free_, &moved_, draft.streamed, choice.chooser, choice.within, problem_.shares);
  if (!preloading.Run(&found)) return false;
  auto next = found.begin();
  std::vector<int64_t> kept_at(steps.size(), -1);
  candidate->arena = 0;
  int64_t top = draft.top;
  for (size_t at = 0; at < pieces.size(); ++at) {
    const Piece& piece = pieces[at];
    const bool first = alike[at] == at;
    if (pinned[piece.step]) {
      places.push_back({0, first ? top : 0, false, first ? -1 : static_cast<int64_t>(alike[at])});
      top += first ? piece.pages() : 0;
      continue;
    }
    places.push_back(*next++);
    Place& place = places.back();
    if (place.again >= 0) place.again = static_cast<int64_t>(draft.streamed_at[place.again]);
    if (!kept[piece.step]) continue;
    if (!first) {
      kept_at[piece.step] = kept_at[pieces[alike[at]].step];
      continue;
    }
    kept_at[piece.step] = top * kPage;
    top += kept[piece.step];
    candidate->arena = top * kPage;  // so far
  }
  Assemble(problem_, layout, pieces, places, pinned, kept_at, candidate);
  candidate->nbytes = 0;
  for (const Segment& segment : candidate->plan.segments) candidate->nbytes += segment.pinned || segment.kept() ? 0 : segment.nbytes;
  return true;
}

}  // namespace flexcomp::planner
