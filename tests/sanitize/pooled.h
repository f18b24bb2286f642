// Everything that threads can ask of a pool, at once.
#pragma once

#include <cstdint>
#include <string>

// PROGRAM, KERNELS, WEIGHTS, X, Y as of `everything`. Prints how often each thing was done; false: an output or an error was wrong.
bool RunPooled(char** args, double seconds, uint64_t seed, const std::string& kind);
