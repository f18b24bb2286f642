#include "preload.h"

#include <algorithm>

namespace flexcomp::planner {

bool Preloading::Run(std::vector<Place>* places) {
  if (!PlaceAll(places)) return false;
  size_t early = 0;
  while (early < places->size() && (*places)[early].after == 0) ++early;
  std::vector<Place> moved = *places;
  std::vector<PageSet> free = free_;
  if (MoveAhead(&free, early, &moved)) {
    places->swap(moved);
  } else {
    Prolong(early, places);
  }
  return true;
}

bool Preloading::PlaceAll(std::vector<Place>* places) {
  places->clear();
  int64_t earliest = 0;
  for (const Piece& piece : pieces_) {
    int64_t after = EarliestPlace(free_, piece, earliest, within_ > 0);
    if (after < 0 && within_ > 0) after = EarliestPlace(free_, piece, earliest, false);
    if (after < 0) return false;
    earliest = after;
    const int64_t first = Choose(piece.pages());
    for (int64_t step = after; step < piece.end; ++step) free_[step].Remove(first, first + piece.pages());
    places->push_back({after, first});
  }
  return true;
}

// The first `early` pieces placed anew, each as early as possible; false if they no longer fit.
bool Preloading::MoveAhead(std::vector<PageSet>* free, size_t early, std::vector<Place>* places) {
  const int64_t steps = static_cast<int64_t>(free->size()) - 1;
  for (size_t index = 0; index < early; ++index) {
    const int64_t first = (*places)[index].first, end = first + pieces_[index].pages();
    for (int64_t step = 0; step < pieces_[index].end; ++step) (*free)[step].Add(first, end);
  }
  bool ahead = true;
  int64_t after = 0;  // no load starts before the one in front of it
  for (size_t index = 0; index < early; ++index) {
    const Piece& piece = pieces_[index];
    const int64_t count = piece.pages();
    int64_t found = -1;
    if (ahead) {
      Begin((*free)[steps], count, within_ > 0);
      for (int64_t step = 0; step < piece.end && !window_.empty(); ++step) Narrow((*free)[step], count);
      found = Backwards(*free, steps, std::max(after, piece.end), count);
      if (found < 0) {
        ahead = false;
        after = 0;
      }
    }
    if (!ahead) {
      found = EarliestPlace(*free, piece, after, false);
      if (found < 0 || (early < places->size() && found > (*places)[early].after)) return false;
    }
    after = found;
    const int64_t first = Choose(count);
    for (int64_t step = ahead ? 0 : after; step < piece.end; ++step) (*free)[step].Remove(first, first + count);
    for (int64_t step = after; ahead && step <= steps; ++step) (*free)[step].Remove(first, first + count);
    (*places)[index] = {after, first, ahead};
  }
  return true;
}

// The first `early` places as they are, as long before the inference as they are free.
void Preloading::Prolong(size_t early, std::vector<Place>* places) const {
  const int64_t steps = static_cast<int64_t>(free_.size()) - 1;
  int64_t before = 0;
  for (size_t index = 0; index < early; ++index) {
    const int64_t first = (*places)[index].first, end = first + pieces_[index].pages();
    int64_t after = steps + 1;
    while (after > std::max(before, pieces_[index].end) && free_[after - 1].Contains(first, end)) --after;
    if (after > steps) break;
    before = after;
    (*places)[index] = {after, first, true};
  }
}

int64_t Preloading::EarliestPlace(const std::vector<PageSet>& free, const Piece& piece, int64_t earliest, bool within) {
  const int64_t count = piece.pages();
  Begin(free[piece.step], count, within);
  for (int64_t step = piece.step + 1; step < piece.end && !window_.empty(); ++step) Narrow(free[step], count);
  return Backwards(free, piece.step, earliest, count);
}

int64_t Preloading::Backwards(const std::vector<PageSet>& free, int64_t start, int64_t earliest, int64_t count) {
  if (window_.empty()) return -1;
  int64_t after = start;
  for (; after > earliest; --after) {
    next_.Intersection(window_, free[after - 1], count);
    if (next_.empty()) break;
    window_.swap(next_);
  }
  return after;
}

void Preloading::Begin(const PageSet& free, int64_t count, bool within) {
  all_.Clear();
  all_.Append(0, within ? within_ : INT64_MAX);
  window_.Intersection(all_, free, count);
}

void Preloading::Narrow(const PageSet& by, int64_t count) {
  next_.Intersection(window_, by, count);
  window_.swap(next_);
}

// The first page of a place for `count` pages in window_.
int64_t Preloading::Choose(int64_t count) {
  const std::vector<PageRange>& ranges = window_.ranges();
  if (chooser_ == Chooser::kLowest) return ranges.front().first;
  if (chooser_ == Chooser::kHighest) return ranges.back().end - count;
  int64_t first = ranges.front().first;
  for (const PageRange& range : ranges) {
    if (range.end - count >= head_) {
      first = std::max(range.first, head_);
      break;
    }
  }
  head_ = first + count;
  return first;
}

}  // namespace flexcomp::planner
