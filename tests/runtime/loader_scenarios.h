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

struct Scenario {
  const char* name;
  std::vector<const Rung*> rungs;  // ascending
  int inferences, switches, faults;
  bool queued;
  bool warm = false;  // the first of them computes nothing
  bool lane = false;  // somebody else may use the arena between them, but what stays in it
  bool delivered = false;  // a device, which may refuse to
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
};

}  // namespace scenarios
