// Changes programs as somebody might who knows their format: numbers to other plausible ones, items of lists added, taken out
// and moved, names of other things.
#pragma once

#include <random>
#include <string>

namespace fuzz {

using Random = std::mt19937_64;

// Changes one thing. Returns its name in the grammar, such as "step.count"; "bytes" where it was no part of it.
std::string Mutate(std::string& program, Random& random);

// Gives the program the size and the checksums that belong to its bytes.
void Seal(std::string& program);

}  // namespace fuzz
