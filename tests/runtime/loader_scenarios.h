// What the loader's protocol is explored with: the loads and steps of plans, and who does what with them.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace scenarios {

using flexcomp::Load;

struct Step {
  uint32_t need;
  std::vector<int> loads;  // whose weights it reads
};
struct Rung {
  std::vector<Load> loads;
  std::vector<Step> steps;
  std::vector<Load> first{};  // of the first inference, if they are others
};

inline Load LoadOf(int number, int place, uint32_t after, bool pinned, bool ahead) {
  return {static_cast<uint64_t>(number), 8, static_cast<uint64_t>(place) * 8, after, pinned, ahead};
}
// Read to the place `read`, which loads may share.
inline Load Made(int number, int read, int place, uint32_t after, bool pinned, bool ahead = false) {
  Load load = LoadOf(number, read, after, pinned, ahead);
  load.prepared = {0, 0, 1, static_cast<uint64_t>(place) * 8};
  return load;
}
// Read to the place `apart`, where nothing else lies until it is prepared, and stays.
inline Load Apart(int number, int apart, int read, int place) {
  Load load = Made(number, read, place, 0, true);
  load.apart = int64_t{apart} * 8;
  return load;
}
// Read to a place of its own, once.
inline Load Kept(int number, int read, int place, uint32_t after, bool ahead = false) {
  Load load = Made(number, read, place, after, false, ahead);
  load.kept = true;
  return load;
}
// Prepared, for the second inference, of what the first one leaves in the place `cold` and uses for `after` steps.
inline Load Cold(int number, int raw, int read, int place, int cold, uint32_t after) {
  Load load = Made(raw, read, place, 0, true);
  load.prepared->first = static_cast<uint32_t>(number);
  load.cold = int64_t{cold} * 8;
  load.cold_after = after;
  return load;
}
// Of a first inference: it needs no bytes.
inline Load None() {
  Load load = LoadOf(0, 0, 0, true, false);
  load.nbytes = 0;
  return load;
}
inline Load Pinned(int number, int place) { return LoadOf(number, place, 0, true, false); }
inline Load Ahead(int number, int place, uint32_t after) { return LoadOf(number, place, after, false, true); }
inline Load Streamed(int number, int place, uint32_t after) { return LoadOf(number, place, after, false, false); }

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
inline const Rung kOneApart{{Apart(0, 2, 1, 0)}, {{1, {0}}}};

inline const Rung kKept{{Kept(0, 2, 0, 0), Kept(1, 3, 0, 1), Pinned(2, 1)}, {{1, {0}}, {2, {1}}, {3, {2}}}};
inline const Rung kKeptMixed{{Kept(0, 2, 0, 0), Streamed(1, 1, 1), Pinned(2, 3)}, {{1, {0}}, {2, {1}}, {3, {2}}}};
inline const Rung kOneKept{{Kept(0, 1, 0, 0)}, {{1, {0}}}};
inline const Rung kKeptAhead{{Kept(0, 2, 0, 1, true), Streamed(1, 1, 1)}, {{1, {0}}, {2, {1}}}};

// The raw weights 10 lie in place 2; two loads prepare them, the second of them over the raw ones.
inline const Rung kCold{{Cold(0, 10, 3, 0, 2, 1), Cold(1, 10, 3, 2, 2, 1), Streamed(2, 1, 0)},
                        {{2, {0, 1}}, {3, {2}}},
                        {LoadOf(10, 2, 0, true, false), None(), Streamed(2, 1, 0)}};
inline const Rung kColdBehind{{Streamed(0, 1, 0), Cold(1, 10, 3, 2, 2, 2)},
                              {{1, {0}}, {2, {1}}},
                              {Streamed(0, 1, 0), LoadOf(10, 2, 0, true, false)}};
inline const Rung kColdAhead{{Cold(0, 10, 3, 2, 2, 1), Ahead(1, 1, 2), Pinned(2, 0)},
                             {{1, {0}}, {2, {1}}, {3, {2}}},
                             {LoadOf(10, 2, 0, true, false), Ahead(1, 1, 2), Pinned(2, 0)}};
inline const Rung kAllCold{{Pinned(0, 0), Cold(1, 10, 3, 2, 2, 2)}, {{1, {0}}, {2, {1}}}, {Pinned(0, 0), LoadOf(10, 2, 0, true, false)}};
inline const Rung kOneCold{{Cold(0, 10, 1, 0, 0, 1)}, {{1, {0}}}, {LoadOf(10, 0, 0, true, false)}};

struct Scenario {
  const char* name;
  std::vector<const Rung*> rungs;  // ascending
  int inferences, switches, faults;
  bool queued;
  bool warm = false;  // the first of them computes nothing
  bool lane = false;  // somebody else may use the arena between them, but what stays in it
  bool delivered = false;  // a device, which may refuse to
  bool warm_second = false;  // the second computes nothing
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
    {"faults, apart", {&kApart}, 2, 0, 1, true},
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
};

}  // namespace scenarios
