// What the loader's protocol is explored with: plans as loads and steps, their tapes, and who does what with them.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "program/tape.h"

namespace scenarios {

using flexcomp::Operation;
using flexcomp::Tape;

// Of a plan, or of its first inference; places are numbers, -1: none.
struct Load {
  int number, read;  // the bytes, and to where they are read
  int place;         // of the weights prepared from them
  int after;         // steps
  bool pinned, ahead;
  bool kept = false;        // read once, and prepared by every inference
  int apart = -1;           // instead of `read`, from where they are copied to be prepared
  int cold = -1;            // a first inference leaves them there,
  int cold_after = 0;       // and uses them for so many steps
  bool none = false;        // of a first inference: it needs no bytes

  bool prepared() const { return place >= 0; }
  bool early() const { return kept || (pinned && after == 0 && (!prepared() || apart >= 0)); }
};
struct Step {
  int need;                // loads
  std::vector<int> loads;  // whose weights it reads
};
struct Rung {
  std::vector<Load> loads;
  std::vector<Step> steps;
  std::vector<Load> first{};  // of the first inference, if they are others
};

constexpr int kPlaces = 6;

// The tapes of a rung, as program/tapes.cc makes them. Of an operation that prepares, `layer` are the weights that it takes, `first`
// those that it makes, and `count` says whether the former stay.
class Deck {
 public:
  explicit Deck(const Rung& rung) : rung_(rung), steps_(rung.steps.size()) {
    bool stays[kPlaces] = {};
    for (const Load& load : rung.loads)
      if (load.kept || load.pinned) stays[load.kept || !load.prepared() ? load.read : load.place] = true;
    for (const bool staying : {false, true}) {
      for (int place = 0; place < kPlaces; ++place)
        if (stays[place] == staying) at_[place] = places_++;
      if (!staying) working = places_;
    }
    const bool cold = !rung.first.empty();
    tapes.first = Write(cold ? rung.first : rung.loads, [&](const Load& load) {
      const int after = load.ahead ? 0 : load.after;
      if (!load.none) Whole(load, load.early() ? Operation::kAnytime : after, after);
    });
    const auto fill = [&](const Load& load) {
      if (load.kept) Add(Operation::Kind::kRead, 0, load.number, load.read);
      if (load.pinned) Whole(load, 0, 0);
    };
    tapes.fill = Write(rung.loads, fill, false);
    const auto steady = [&](const Load& load) {
      const int after = load.ahead ? Ahead(load.after) : load.after;
      if (load.kept) Prepare(load, after);
      if (!load.kept && !load.pinned) Whole(load, after, after);
    };
    int streamed = 0;
    while (streamed < static_cast<int>(rung.loads.size()) && (rung.loads[streamed].ahead || rung.loads[streamed].pinned)) ++streamed;
    if (cold) {
      tapes.second = Write(rung.loads, [&](const Load& load) {
        if (load.cold >= 0) Settle(load, load_ < streamed ? Ahead(load.cold_after) : load.after);
        steady(load);
      });
      const auto settle = [&](const Load& load) {
        if (load.cold >= 0) Settle(load, 0);
      };
      tapes.settle = Write(rung.loads, settle, false);
    }
    tapes.steady = Write(rung.loads, steady);
  }
  Deck(const Deck&) = delete;
  Deck& operator=(const Deck&) = delete;

  // Where a place is in the arena: of those from `working` on the contents stay.
  int At(int place) const { return at_[place]; }

  flexcomp::Tapes tapes;
  int working = 0;

 private:
  template <typename AddLoad>
  Tape Write(const std::vector<Load>& loads, const AddLoad& add, bool computes = true) {
    operations_[tape_].clear();
    std::vector<uint32_t> end{0};
    for (load_ = 0; load_ < static_cast<int>(loads.size()); ++load_) {
      add(loads[load_]);
      end.push_back(static_cast<uint32_t>(operations_[tape_].size()));
    }
    if (computes)
      for (const Step& step : rung_.steps) need_[tape_].push_back(end[step.need]);
    const int tape = tape_++;
    return {operations_[tape], computes ? std::span<const flexcomp::Step>(steps_) : std::span<const flexcomp::Step>(), need_[tape]};
  }
  int Ahead(int steps) const { return steps - static_cast<int>(rung_.steps.size()) - 1; }

  Operation& Add(Operation::Kind kind, int after, int from, int to) {
    return operations_[tape_].emplace_back(Operation{
        .kind = kind,
        .after = after,
        .from = uint64_t(kind == Operation::Kind::kRead ? from : At(from)) * 8,
        .to = uint64_t(At(to)) * 8,
        .nbytes = 8,
        .from_nbytes = 8,
        .load = uint32_t(load_),
    });
  }
  void Prepare(const Load& load, int after) {
    Operation& operation = Add(Operation::Kind::kPrepare, after, load.read, load.place);
    operation.layer = uint32_t(load.number) + 1;
    operation.first = uint32_t(load_) + 1;
    operation.count = load.kept;
  }
  void Whole(const Load& load, int read_after, int after) {
    Add(Operation::Kind::kRead, read_after, load.number, load.apart >= 0 ? load.apart : load.read);
    if (load.apart >= 0) Add(Operation::Kind::kCopy, after, load.apart, load.read);
    if (load.prepared()) Prepare(load, after);
  }
  void Settle(const Load& load, int after) {
    if (load.cold != load.read) Add(Operation::Kind::kCopy, after, load.cold, load.read);
    Prepare(load, after);
  }

  const Rung& rung_;
  std::vector<flexcomp::Step> steps_;
  std::vector<Operation> operations_[5];
  std::vector<uint32_t> need_[5];
  int tape_ = 0, load_ = 0, places_ = 0, at_[kPlaces] = {};
};

inline Load LoadOf(int number, int place, int after, bool pinned, bool ahead) { return {number, place, -1, after, pinned, ahead}; }
// Read to the place `read`, which loads may share.
inline Load Made(int number, int read, int place, int after, bool pinned, bool ahead = false) {
  return {number, read, place, after, pinned, ahead};
}
// Read to the place `apart`, where nothing else lies until it is prepared, and stays.
inline Load Apart(int number, int apart, int read, int place) {
  Load load = Made(number, read, place, 0, true);
  load.apart = apart;
  return load;
}
// Read to a place of its own, once.
inline Load Kept(int number, int read, int place, int after, bool ahead = false) {
  Load load = Made(number, read, place, after, false, ahead);
  load.kept = true;
  return load;
}
// Prepared, for the second inference, of the bytes that the first one leaves in the place `cold` and uses for `after` steps.
inline Load Cold(int raw, int read, int place, int cold, int after) {
  Load load = Made(raw, read, place, 0, true);
  load.cold = cold;
  load.cold_after = after;
  return load;
}
// Of a first inference: it needs no bytes.
inline Load None() {
  Load load = LoadOf(0, 0, 0, true, false);
  load.none = true;
  return load;
}
inline Load Pinned(int number, int place) { return LoadOf(number, place, 0, true, false); }
inline Load Ahead(int number, int place, int after) { return LoadOf(number, place, after, false, true); }
inline Load Streamed(int number, int place, int after) { return LoadOf(number, place, after, false, false); }

inline const Rung kAllAhead{{Ahead(0, 0, 1), Pinned(1, 1)}, {{1, {0}}, {2, {1}}}};
inline const Rung kTwoAhead{{Ahead(0, 0, 2), Ahead(1, 1, 2)}, {{1, {0}}, {2, {1}}}};
inline const Rung kRing{{Ahead(0, 0, 3), Streamed(1, 1, 0), Streamed(2, 0, 1)}, {{1, {0}}, {2, {1}}, {3, {2}}}};
inline const Rung kMixed{{Pinned(0, 0), Ahead(1, 1, 2), Pinned(2, 2)}, {{1, {0}}, {2, {1}}, {3, {2, 0}}}};
inline const Rung kStreamed{{Pinned(0, 0), Streamed(1, 1, 0)}, {{2, {0, 1}}, {0, {}}}};
inline const Rung kOneAhead{{Ahead(0, 0, 1)}, {{1, {0}}}};
inline const Rung kOnePinned{{Pinned(0, 0)}, {{1, {0}}}};
inline const Rung kAllPinned{{Pinned(0, 0), Pinned(1, 1)}, {{1, {0}}, {2, {1}}}};

inline const Rung kPrepared{{Made(0, 3, 0, 0, true), Made(1, 3, 1, 0, false), Made(2, 3, 2, 1, false)}, {{1, {0}}, {2, {1}}, {3, {2}}}};
inline const Rung kOnePrepared{{Made(0, 1, 0, 0, false)}, {{1, {0}}}};
inline const Rung kPreparedAhead{{Made(0, 3, 0, 1, false, true), Made(1, 3, 1, 0, false)}, {{1, {0}}, {2, {1}}}};
inline const Rung kAheadEarly{{Ahead(0, 0, 1), Streamed(1, 1, 0)}, {{1, {0}}, {2, {1}}}};
inline const Rung kOnePreparedAhead{{Made(0, 1, 0, 1, false, true)}, {{1, {0}}}};

inline const Rung kApart{{Apart(0, 2, 4, 0), Made(1, 4, 5, 0, false), Apart(2, 3, 4, 1)}, {{1, {0}}, {2, {1}}, {3, {2}}}};
inline const Rung kApartAndOne{{Apart(0, 2, 3, 0), Made(1, 3, 1, 0, false)}, {{1, {0}}, {2, {1}}}};
inline const Rung kOneApart{{Apart(0, 2, 1, 0)}, {{1, {0}}}};

inline const Rung kKept{{Kept(0, 2, 0, 0), Kept(1, 3, 0, 1), Pinned(2, 1)}, {{1, {0}}, {2, {1}}, {3, {2}}}};
inline const Rung kKeptMixed{{Kept(0, 2, 0, 0), Streamed(1, 1, 1), Pinned(2, 3)}, {{1, {0}}, {2, {1}}, {3, {2}}}};
inline const Rung kOneKept{{Kept(0, 1, 0, 0)}, {{1, {0}}}};
inline const Rung kKeptAhead{{Kept(0, 2, 0, 1, true), Streamed(1, 1, 1)}, {{1, {0}}, {2, {1}}}};

// The raw weights 10 lie in place 2; two loads prepare them, the second of them over the raw ones.
inline const Rung kCold{{Cold(10, 3, 0, 2, 1), Cold(10, 3, 2, 2, 1), Streamed(2, 1, 0)},
                        {{2, {0, 1}}, {3, {2}}},
                        {LoadOf(10, 2, 0, true, false), None(), Streamed(2, 1, 0)}};
inline const Rung kColdBehind{{Streamed(0, 1, 0), Cold(10, 3, 2, 2, 2)},
                              {{1, {0}}, {2, {1}}},
                              {Streamed(0, 1, 0), LoadOf(10, 2, 0, true, false)}};
inline const Rung kColdAhead{{Cold(10, 3, 2, 2, 1), Ahead(1, 1, 2), Pinned(2, 0)},
                             {{1, {0}}, {2, {1}}, {3, {2}}},
                             {LoadOf(10, 2, 0, true, false), Ahead(1, 1, 2), Pinned(2, 0)}};
inline const Rung kAllCold{{Pinned(0, 0), Cold(10, 3, 2, 2, 2)}, {{1, {0}}, {2, {1}}}, {Pinned(0, 0), LoadOf(10, 2, 0, true, false)}};
inline const Rung kOneCold{{Cold(10, 1, 0, 0, 1)}, {{1, {0}}}, {LoadOf(10, 0, 0, true, false)}};

struct Scenario {
  const char* name;
  std::vector<const Rung*> rungs;  // ascending
  int inferences, switches = 0, faults = 0;
  bool queued = true;
  bool warm = false;  // the first of them computes nothing
  bool lane = false;  // somebody else may use the arena between them, but what stays in it
  bool delivered = false;  // a device, which may refuse to
  bool warm_second = false;  // the second computes nothing
  int cancels = 0;
};

inline const Scenario kScenarios[] = {
    {"all read ahead", {&kAllAhead}, 6, 0, 0, true},
    {"two read ahead", {&kTwoAhead}, 6, 0, 0, true},
    {"ring", {&kRing}, 4, 0, 0, true},
    {"ahead between pinned", {&kMixed}, 4, 0, 0, true},
    {"nothing ahead", {&kStreamed}, 4, 0, 0, true},
    {"all pinned", {&kAllPinned}, 4, 0, 0, true},
    {"faults, all ahead", {&kAllAhead}, 4, 0, 1, true},
    {"faults, ring", {&kRing}, 3, 0, 1, true},
    {"faults, nothing ahead", {&kStreamed}, 3, 0, 2, true},
    {"faults, all pinned", {&kAllPinned}, 3, 0, 1, true},
    {"switches, all ahead and pinned", {&kAllAhead, &kAllPinned}, 2, 1, 0, true},
    {"switches, ring and all ahead", {&kRing, &kAllAhead}, 1, 1, 0, true},
    {"switches by copies", {&kTwoAhead, &kStreamed}, 2, 1, 0, false},
    {"back and forth", {&kOneAhead, &kOnePinned}, 1, 2, 0, true},
    {"back and forth by copies", {&kOneAhead, &kOnePinned}, 1, 2, 0, false},
    {"switches and faults", {&kOneAhead, &kOnePinned}, 2, 1, 1, true},
    {"prepared", {&kPrepared}, 4, 0, 0, true},
    {"faults, prepared", {&kPrepared}, 2, 0, 1, true},
    {"switches, prepared and pinned", {&kOnePinned, &kOnePrepared}, 1, 1, 0, true},
    {"switches by copies, prepared", {&kOnePinned, &kOnePrepared}, 1, 1, 0, false},
    {"prepared ahead", {&kPreparedAhead}, 5, 0, 0, true},
    {"switches, prepared ahead", {&kOnePinned, &kOnePreparedAhead}, 1, 1, 0, true},
    {"apart", {&kApart}, 3, 0, 0, true},
    {"faults, apart", {&kApartAndOne}, 2, 0, 1, true},
    {"switches, apart", {&kOnePinned, &kOneApart}, 1, 1, 0, true},
    {"filled, apart", {&kApart}, 2, 0, 0, true, true},
    {"kept", {&kKept}, 3, 0, 0, true},
    {"kept, and others", {&kKeptMixed}, 2, 0, 0, true},
    {"kept ahead", {&kKeptAhead}, 3, 0, 0, true},
    {"faults, kept", {&kKept}, 2, 0, 1, true},
    {"switches, kept", {&kOnePinned, &kOneKept}, 1, 1, 0, true},
    {"filled, all ahead and pinned", {&kMixed}, 6, 0, 0, true, true},
    {"filled, kept", {&kKept}, 3, 0, 0, true, true},
    {"filled, prepared", {&kPrepared}, 3, 0, 0, true, true},
    {"filled, kept ahead", {&kKeptAhead}, 6, 0, 0, true, true},
    {"faults, filled", {&kKeptMixed}, 2, 0, 1, true, true},
    {"switches, filled", {&kOnePinned, &kOneKept}, 2, 1, 0, true, true},
    {"lane, all ahead", {&kAllAhead}, 3, 0, 0, true, false, true},
    {"lane, ring", {&kRing}, 2, 0, 0, true, false, true},
    {"lane, ahead between pinned", {&kMixed}, 3, 0, 0, true, false, true},
    {"lane, all pinned", {&kAllPinned}, 4, 0, 0, true, false, true},
    {"lane, prepared ahead", {&kPreparedAhead}, 2, 0, 0, true, false, true},
    {"lane, kept ahead", {&kKeptAhead}, 2, 0, 0, true, false, true},
    {"lane, filled", {&kMixed}, 3, 0, 0, true, true, true},
    {"lane, by copies", {&kMixed}, 3, 0, 0, false, false, true},
    {"lane, faults", {&kMixed}, 2, 0, 1, true, false, true},
    {"refused, all ahead", {&kAllAhead}, 4, 0, 1, true, false, false, true},
    {"refused, ahead beside others", {&kAheadEarly}, 3, 0, 1, true, false, false, true},
    {"refused, filled", {&kMixed}, 3, 0, 1, true, true, false, true},
    {"refused, switches", {&kOneAhead, &kOnePinned}, 1, 1, 1, true, false, false, true},
    {"switches by copies, filled", {&kOnePinned, &kOneKept}, 2, 1, 0, false, true},
    {"cold", {&kCold}, 4, 0, 0, true},
    {"cold, behind others", {&kColdBehind}, 4, 0, 0, true},
    {"cold, ahead", {&kColdAhead}, 3, 0, 0, true},
    {"cold, all pinned", {&kAllCold}, 4, 0, 0, true},
    {"cold, by copies", {&kCold}, 3, 0, 0, false},
    {"faults, cold", {&kCold}, 3, 0, 1, true},
    {"faults, cold, all pinned", {&kAllCold}, 3, 0, 1, true},
    {"switches, cold", {&kOnePinned, &kOneCold}, 2, 1, 0, true},
    {"switches by copies, cold", {&kOnePinned, &kOneCold}, 2, 1, 0, false},
    {"filled, cold", {&kCold}, 3, 0, 0, true, true},
    {"filled behind, cold", {&kColdBehind}, 4, 0, 0, true, false, false, false, true},
    {"filled behind, all pinned", {&kAllCold}, 3, 0, 0, true, false, false, false, true},
    {"filled behind, ahead", {&kColdAhead}, 3, 0, 0, true, false, false, false, true},
    {"faults, filled behind", {&kOneCold}, 3, 0, 1, true, false, false, false, true},
    {"lane, cold", {&kColdBehind}, 3, 0, 0, true, false, true},
    {"lane, cold, all pinned", {&kAllCold}, 3, 0, 0, true, false, true},
    // What a third inference adds to a cancelled second one is explored of two ahead, of all pinned, and of cold ones.
    {.name = "cancelled, two ahead", .rungs = {&kTwoAhead}, .inferences = 3, .queued = true, .cancels = 1},
    {.name = "cancelled, ahead between pinned", .rungs = {&kMixed}, .inferences = 2, .queued = true, .cancels = 1},
    {.name = "cancelled, all pinned", .rungs = {&kAllPinned}, .inferences = 3, .queued = true, .cancels = 2},
    {.name = "cancelled, prepared ahead", .rungs = {&kOnePreparedAhead}, .inferences = 2, .queued = true, .cancels = 1},
    {.name = "cancelled, kept ahead", .rungs = {&kKeptAhead}, .inferences = 2, .queued = true, .cancels = 1},
    {.name = "cancelled, cold", .rungs = {&kAllCold}, .inferences = 3, .queued = true, .cancels = 1},
    {.name = "cancelled, by copies", .rungs = {&kOneAhead}, .inferences = 2, .queued = false, .cancels = 2},
    {.name = "cancelled, filled", .rungs = {&kOneKept}, .inferences = 3, .queued = true, .warm = true, .cancels = 1},
    {.name = "cancelled, filled again", .rungs = {&kOneKept}, .inferences = 2, .queued = true, .warm_second = true, .cancels = 1},
    {.name = "cancelled, nothing to fill", .rungs = {&kTwoAhead}, .inferences = 2, .queued = true, .warm = true, .cancels = 1},
    {.name = "cancelled, lane", .rungs = {&kOneKept}, .inferences = 2, .queued = true, .warm = true, .lane = true, .cancels = 1},
    {.name = "cancelled, faults", .rungs = {&kOneAhead}, .inferences = 3, .faults = 1, .queued = true, .cancels = 1},
    {.name = "cancelled, refused", .rungs = {&kOneAhead}, .inferences = 2, .faults = 1, .queued = true, .delivered = true, .cancels = 1},
    {.name = "cancelled, switches", .rungs = {&kOneAhead, &kOnePinned}, .inferences = 2, .switches = 1, .queued = true, .cancels = 1},
};

}  // namespace scenarios
