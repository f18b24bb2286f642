// Options as a caller gives them: the members of a JSON object, all of which must be known.
#pragma once

#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace flexcomp {

// Throws InputError for whatever is wrong. null: not given.
class JsonOptions {
 public:
  // `what`: the object, for messages.
  explicit JsonOptions(const std::string& text, const char* what = "options") {
    tvm::ffi::String error;
    const auto object = tvm::ffi::json::Parse(text, &error).try_cast<tvm::ffi::json::Object>();
    if (!error.empty() || !object) RaiseError("InputError", what, " must be a JSON object");
    unknown_ = *object;
  }

  template <typename T>
  std::optional<T> Get(const char* name) {
    const auto value = Find(name);
    return value ? std::optional(As<T>(name, *value)) : std::nullopt;
  }
  // Sets `option` where one is given. Numbers are natural; what is larger than any of them is the largest.
  template <typename T>
  void Take(const char* name, T& option) {
    const auto value = Find(name);
    if (!value) return;
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      option = static_cast<T>(std::min<uint64_t>(Natural(name, *value), std::numeric_limits<T>::max()));
    else
      option = As<T>(name, *value);
  }
  std::optional<tvm::ffi::Any> Find(const char* name) {
    const auto value = unknown_.Get(tvm::ffi::String(name));
    if (!value.has_value()) return std::nullopt;
    unknown_.erase(tvm::ffi::String(name));
    return *value == nullptr ? std::nullopt : std::optional(*value);
  }
  // To be called when all options were asked for.
  void RequireKnown() const {
    for (const auto& [name, value] : unknown_) RaiseError("InputError", "unknown option \"", std::string(name.cast<tvm::ffi::String>()), "\"");
  }

  static uint64_t Natural(const char* name, const tvm::ffi::Any& value) {
    const auto number = As<int64_t>(name, value);
    if (number < 0) RaiseError("InputError", "option \"", name, "\" must not be negative, but is ", number);
    return static_cast<uint64_t>(number);
  }

 private:
  template <typename T>
  static T As(const char* name, const tvm::ffi::Any& value) {
    if (auto cast = value.try_cast<T>()) return *std::move(cast);
    RaiseError("InputError", "option \"", name, "\" is of the wrong type");
  }

  tvm::ffi::json::Object unknown_;  // members that nobody asked for
};

}  // namespace flexcomp
