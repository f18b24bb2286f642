// Functions for a client that reaches a device only through function calls: files, the machine, inferences in a row.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "program/program.h"
#include "session/session.h"

namespace flexcomp {

// Writes `bytes` at `offset` of a file, which is made, or emptied if `offset` is 0. In pieces, a file larger than the
// device's memory arrives. Throws StorageError.
void WritePiece(const std::string& path, uint64_t offset, std::string_view bytes);

// Waits until the file is in storage and forgets its pages, so that the next read comes from storage. Throws
// StorageError.
void SettleFile(const std::string& path);

// JSON: machine, cpus (that this process may use), memory_bytes, memory_available_bytes (null if not known), and
// missing_features, which the program needs and the processor lacks.
std::string DescribeMachine(const Program& program);

// How many inferences to run: `most`, or fewer, if `fewest` are done and `seconds` have passed.
struct Repetition {
  int64_t fewest, most;
  double seconds;
};

// Runs inferences in place, one right after the other, each on the same random floats (other inputs: zero).
// JSON: {"runs": [state after each], "traces": [of each, if the session traces]}.
std::string RunRepeatedly(Session& session, const Repetition& repetition);

}  // namespace flexcomp
