// JSON as text, whole or not at all.
#pragma once

#include <tvm/ffi/extra/json.h>

#include <cstddef>
#include <new>
#include <string>

namespace flexcomp {

// Names and values that are strings.
inline size_t StringsOf(const tvm::ffi::json::Value& value) {
  namespace json = tvm::ffi::json;
  size_t count = 0;
  if (const auto object = value.as<json::Object>()) {
    for (const auto& [name, member] : *object) count += 1 + StringsOf(member);
  } else if (const auto array = value.as<json::Array>()) {
    for (const auto& member : *array) count += StringsOf(member);
  } else if (value.as<tvm::ffi::String>()) {
    count = 1;
  }
  return count;
}

// Throws bad_alloc where there is no memory for a string of the value: json::Stringify goes on without the rest of that
// string, and its end.
inline tvm::ffi::String JsonText(const tvm::ffi::json::Value& value) {
  const tvm::ffi::String text = tvm::ffi::json::Stringify(value);
  size_t quotes = 0;
  for (const char* at = text.data(); at != text.data() + text.size(); ++at) {
    if (*at == '\\' && at + 1 != text.data() + text.size()) ++at;
    else quotes += *at == '"';
  }
  if (quotes != 2 * StringsOf(value)) throw std::bad_alloc();
  return text;
}

}  // namespace flexcomp
