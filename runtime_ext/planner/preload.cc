#include "preload.h"

#include <algorithm>
#include <map>
#include <utility>

namespace flexcomp::planner {

void Window::Begin(const PageSet& free, int64_t count, int64_t within) {
  all_.Clear();
  all_.Append(0, within ? within : INT64_MAX);
  now_.Intersection(all_, free, count);
}

void Window::Narrow(const PageSet& by, int64_t count) {
  next_.Intersection(now_, by, count);
  now_.swap(next_);
}

int64_t Window::Backwards(const std::vector<PageSet>& free, int64_t start, int64_t earliest, int64_t count) {
  if (now_.empty()) return -1;
  int64_t after = start;
  for (; after > earliest; --after) {
    next_.Intersection(now_, free[after - 1], count);
    if (next_.empty()) break;
    now_.swap(next_);
  }
  return after;
}

int64_t Window::EarliestPlace(const std::vector<PageSet>& free, const Piece& piece, int64_t earliest, int64_t within) {
  Begin(free[piece.step], piece.pages(), within);
  for (int64_t step = piece.step + 1; step < piece.end && !empty(); ++step) Narrow(free[step], piece.pages());
  return Backwards(free, piece.step, earliest, piece.pages());
}

bool Preloading::Run(std::vector<Place>* places) {
  std::vector<Place> own;
  if (!PlaceAll(&own)) return false;
  size_t early = 0;
  while (early < own.size() && own[early].after == 0) ++early;
  std::vector<Place> moved = own;
  moved_ = free_;
  if (MoveAhead(&moved_, early, &moved)) {
    own.swap(moved);
  } else {
    Prolong(early, &own);
  }
  places->clear();
  auto next = own.begin();
  for (int64_t again : again_) places->push_back(again < 0 ? *next++ : Place{0, 0, false, again});
  return true;
}

bool Preloading::PlaceAll(std::vector<Place>* places) {
  const std::vector<Piece> given = std::exchange(pieces_, {});
  std::map<std::array<int64_t, 3>, std::pair<size_t, size_t>> brought;  // by their keys: indices into `given`, pieces_
  int64_t earliest = 0;
  for (const Piece& piece : given) {
    const auto held = hold_ ? brought.find(piece.key()) : brought.end();
    if (held != brought.end()) {
      Piece& holder = pieces_[held->second.second];
      const Place& place = (*places)[held->second.second];
      if (IsFree(holder.end, piece.end, place, piece.pages())) {
        Occupy(holder.end, piece.end, place, piece.pages());
        holder.end = piece.end;
        again_.push_back(static_cast<int64_t>(held->second.first));
        continue;
      }
    }
    int64_t after = window_.EarliestPlace(free_, piece, earliest, within_);
    if (after < 0 && within_ > 0) after = window_.EarliestPlace(free_, piece, earliest, 0);
    if (after < 0) return false;
    earliest = after;
    places->push_back({after, Choose(piece.pages())});
    Occupy(after, piece.end, places->back(), piece.pages());
    if (hold_) brought[piece.key()] = {again_.size(), pieces_.size()};
    pieces_.push_back(piece);
    again_.push_back(-1);
  }
  return true;
}

bool Preloading::IsFree(int64_t start, int64_t end, const Place& place, int64_t count) const {
  for (int64_t step = start; step < end; ++step)
    if (!free_[step].Contains(place.first, place.first + count)) return false;
  return true;
}

void Preloading::Occupy(int64_t start, int64_t end, const Place& place, int64_t count) {
  for (int64_t step = start; step < end; ++step) free_[step].Remove(place.first, place.first + count);
}

// The first `early` pieces placed anew, each as early as possible; false if one no longer fits.
bool Preloading::MoveAhead(std::vector<PageSet>* free, size_t early, std::vector<Place>* places) {
  const int64_t steps = static_cast<int64_t>(free->size()) - 1;
  for (size_t index = 0; index < early; ++index) {
    const int64_t first = (*places)[index].first, end = first + pieces_[index].pages();
    for (int64_t step = 0; step < pieces_[index].end; ++step) (*free)[step].Add(first, end);
  }
  bool ahead = true;
  int64_t after = 0;  // no load starts before its predecessor
  for (size_t index = 0; index < early; ++index) {
    const Piece& piece = pieces_[index];
    const int64_t count = piece.pages();
    int64_t found = -1;
    if (ahead) {
      window_.Begin((*free)[steps], count, within_);
      for (int64_t step = 0; step < piece.end && !window_.empty(); ++step) window_.Narrow((*free)[step], count);
      found = window_.Backwards(*free, steps, std::max(after, piece.end), count);
      if (found < 0) {
        ahead = false;
        after = 0;
      }
    }
    if (!ahead) {
      found = window_.EarliestPlace(*free, piece, after, 0);
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

// The first `early` places unchanged, loaded as early in the previous inference as each place is free.
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
