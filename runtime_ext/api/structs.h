// Structures that begin with their size, of callers who were compiled with an earlier or a later header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "api/status.h"
#include "base/error.h"

namespace flexcomp::api {

constexpr size_t kLargestStruct = 4096;  // a size that was never set is most likely larger

template <typename T>
void RequirePointer(const T* pointer, const char* name) {
  if (pointer == nullptr) RaiseError("InputError", "argument \"", name, "\" is NULL");
}

// `first` is the size of the structure in the first version of the header that had it.
inline void RequireSize(size_t size, size_t first, const char* name) {
  if (size < first || size > kLargestStruct)
    RaiseError("InputError", "the member \"size\" of \"", name, "\" is ", size, ", not the size of the structure: set it to sizeof");
}

// What a caller gives. Throws InputError, and Unsupported if it has members that this version does not know.
template <typename T>
T Taken(const T* given, size_t first, const char* name) {
  RequirePointer(given, name);
  RequireSize(given->size, first, name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (given->size > sizeof(T) && std::any_of(bytes + sizeof(T), bytes + given->size, [](unsigned char byte) { return byte != 0; }))
    RaiseError(kUnsupported, "\"", name, "\" has members that version ", FLEXCOMP_VERSION, " of flexcomp does not know");
  T taken{};
  std::memcpy(&taken, given, std::min(given->size, sizeof(T)));
  return taken;
}

// Gives a caller `made`, but for its size; members that this version does not know become zeros. Throws InputError.
template <typename T>
void Give(T* target, const T& made, size_t first, const char* name) {
  RequirePointer(target, name);
  RequireSize(target->size, first, name);
  const size_t size = target->size;
  auto* bytes = reinterpret_cast<unsigned char*>(target);
  std::memset(bytes + sizeof size, 0, size - sizeof size);
  std::memcpy(bytes + sizeof size, reinterpret_cast<const unsigned char*>(&made) + sizeof size, std::min(size, sizeof(T)) - sizeof size);
}

}  // namespace flexcomp::api
