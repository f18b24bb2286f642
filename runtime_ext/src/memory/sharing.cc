#include "memory/sharing.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"

namespace flexcomp {

Sharing::Sharing(const Rung& rung, const Program& program, const Shareables& shareables, std::vector<Place> places)
    : places_(std::move(places)) {
  if (places_.empty()) return;
  loads_.assign(rung.loads, 0);
  layers_.assign(program.layers.size(), 0);
  std::map<uint64_t, Piece> shared;     // by their ends
  std::vector<uint64_t> edges = {rung.working};
  const std::vector<Resting> resting = FindResting(rung, program, shareables);
  for (const Place& place : places_) {
    const auto found = std::ranges::find(resting, place.shareable, &Resting::shareable);
    if (found == resting.end()) RaiseError("InputError", "the weights ", place.shareable, " do not stay whole on the rung of ", rung.budget, " bytes");
    for (const uint32_t load : found->loads) loads_[load] = 1;
    for (size_t layer = 0; layer < layers_.size(); ++layer) layers_[layer] |= shareables.of_layer[layer] == place.shareable;
    gone_.insert(gone_.end(), found->pages.begin(), found->pages.end());
    for (const Resting::Part& part : found->parts) {
      shared[part.at + part.nbytes] = {part.at, place.at, part.offset};
      edges.insert(edges.end(), {part.at, part.at + part.nbytes});
    }
  }
  std::ranges::sort(gone_, {}, &FileRange::begin);
  for (const FileRange& range : gone_) {
    freed_ += range.nbytes();
    edges.push_back(range.end);
  }
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  for (const uint64_t edge : edges) {
    const auto part = shared.upper_bound(edge);
    if (part != shared.end() && part->second.begin <= edge)
      pieces_.push_back({edge, part->second.elsewhere, part->second.offset + (edge - part->second.begin)});
    else
      pieces_.push_back({edge, nullptr, KeptOffset(edge, rung.working)});
  }
}

std::byte* Sharing::PlaceOf(uint64_t shareable) const noexcept {
  const auto found = std::ranges::find(places_, shareable, &Place::shareable);
  return found == places_.end() ? nullptr : found->at;
}

uint64_t Sharing::KeptOffset(uint64_t address, uint64_t border) const noexcept {
  uint64_t offset = address - border;
  for (const FileRange& range : gone_)
    if (range.begin < address) offset -= std::min(address, range.end) - range.begin;
  return offset;
}

}  // namespace flexcomp
