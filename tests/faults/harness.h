// What scenarios are made of: steps, of which one in the whole life of a process may fail, with a clear error, and then succeeds.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "interposer.h"

namespace faults {

namespace ffi = tvm::ffi;

// What a forked process leaves behind.
struct Outcome {
  uint64_t count = 0;
  int errors = 0;
  volatile FaultedCall call = {};  // its name lies in the library that both processes have
  char verdict[16] = "right", step[32] = "", message[400] = "";
  char doing[32] = "";  // the step that began last, in any thread
};
inline Outcome* outcome = nullptr;
inline std::mutex mutex;

inline void Note(const char* verdict, const std::string& step, const std::string& message) {
  std::snprintf(outcome->verdict, sizeof(outcome->verdict), "%s", verdict);
  std::snprintf(outcome->step, sizeof(outcome->step), "%s", step.c_str());
  std::snprintf(outcome->message, sizeof(outcome->message), "%s", message.c_str());
  for (char& c : outcome->message)
    if (c == '\n' || c == '\t') c = ' ';
}

inline void End() {
  fault_disarm();
  outcome->count = fault_count();
  ::_exit(0);
}

[[noreturn]] inline void Fail(const char* verdict, const std::string& step, const std::string& message) {
  Note(verdict, step, message);
  End();
  std::abort();
}

inline const std::set<std::string> kOurs = {"ArtifactError", "BudgetError", "ExecutionError", "InputError", "StorageError", "TargetError"};

// Calls of this thread count as long as it lives.
struct Window {
  Window() { fault_step(true); }
  ~Window() { fault_step(false); }
};

// One error is allowed in the whole life of the process; then the same once more must succeed.
template <typename Action>
auto Attempt(const char* step, const Action& action, bool loading = false) {
  std::snprintf(outcome->doing, sizeof(outcome->doing), "%s", step);
  for (;;) {
    std::string kind, message;
    try {
      const Window window;
      return action();
    } catch (const ffi::Error& error) {
      fault_step(false);
      kind = error.kind(), message = error.message();
    } catch (const std::exception& error) {
      fault_step(false);
      message = error.what();
    }
    const std::lock_guard lock(mutex);
    if (outcome->call.name == nullptr) Fail("wrong", step, "without any fault: " + kind + ": " + message);
    // Opening a library is not ours: it is told in the words of libtvm_ffi.
    if (message.empty() || (!loading && !kOurs.contains(kind))) Fail("unclear", step, kind + ": " + message);
    if (outcome->errors++ > 0) Fail("unclear", step, "a second error: " + kind + ": " + message);
    Note("error", step, kind + ": " + message);
  }
}

inline std::vector<float> ReadFloats(const char* path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<float> values(static_cast<size_t>(file.tellg()) / sizeof(float));
  file.seekg(0).read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

// A network, and one inference of it.
struct Scenario {
  std::string library, weights, options;
  std::vector<float> x, y;
  std::vector<int64_t> budgets;  // ascending

  virtual ~Scenario() = default;
  // What all that are played have in common, before their processes are forked.
  virtual void Prepare() {}
  // Lets the `n`-th call fail from its beginning on.
  virtual void Play(uint64_t n, int variant) const = 0;

  bool Right(const float* given) const {
    for (size_t i = 0; i < y.size(); ++i)
      if (!(std::abs(given[i] - y[i]) <= 1e-5f + 1e-4f * std::abs(y[i]))) return false;
    return true;
  }

  void RequireRight(const char* step, const float* given) const {
    if (!Right(given)) Fail("wrong", step, "the output is wrong");
  }

  ffi::Any Call(const char* step, const ffi::Module& module, const char* name, std::vector<ffi::AnyView> args = {}) const {
    const ffi::String function(name);
    return Attempt(step, [&] {
      ffi::Any result;
      (*module->GetFunction(function)).CallPacked(args.data(), static_cast<int32_t>(args.size()), &result);
      return result;
    });
  }

  // A closed module says that it is.
  void RequireClosed(const ffi::Module& module) const {
    try {
      (*module->GetFunction("stats"))();
      Fail("wrong", "after close", "no error");
    } catch (const ffi::Error& error) {
      if (error.kind() != "ExecutionError") Fail("wrong", "after close", error.message());
    }
  }
};

}  // namespace faults
