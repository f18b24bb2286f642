// One session from its opening to its end, again and again in forked processes, with one call of the C library failing in each.
//
// driver LIBRARY WEIGHTS X Y OPTIONS BUDGET... reads numbers from standard input. X and Y are files of floats, input and
// expected output; OPTIONS is the JSON that sessions are opened with. For 0 it prints how many calls there are; for n, and each
// way in which the n-th call can fail, a line of fields between tabs:
//   n, variant, call, verdict, step, message
// Verdicts: right (nobody noticed), error (clear, once, and what was asked for done the next time), unfired (there are fewer
// calls this time), wrong, unclear, crash, hang.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "interposer.h"

namespace {

namespace ffi = tvm::ffi;

constexpr unsigned kSecondsToHang = 30;

// What a forked process leaves behind.
struct Outcome {
  uint64_t count = 0;
  int errors = 0;
  volatile FaultedCall call = {};  // its name lies in the library that both processes have
  char verdict[16] = "right", step[32] = "", message[400] = "";
};
Outcome* outcome = nullptr;
std::mutex mutex;

void Note(const char* verdict, const std::string& step, const std::string& message) {
  std::snprintf(outcome->verdict, sizeof(outcome->verdict), "%s", verdict);
  std::snprintf(outcome->step, sizeof(outcome->step), "%s", step.c_str());
  std::snprintf(outcome->message, sizeof(outcome->message), "%s", message.c_str());
  for (char& c : outcome->message)
    if (c == '\n' || c == '\t') c = ' ';
}

void End() {
  fault_disarm();
  outcome->count = fault_count();
  ::_exit(0);
}

[[noreturn]] void Fail(const char* verdict, const std::string& step, const std::string& message) {
  Note(verdict, step, message);
  End();
  std::abort();
}

const std::set<std::string> kOurs = {"ArtifactError", "BudgetError", "ExecutionError", "InputError", "StorageError", "TargetError"};

// Calls of this thread count as long as it lives.
struct Window {
  Window() { fault_step(true); }
  ~Window() { fault_step(false); }
};

// One error is allowed in the whole life of the process; then the same once more must succeed.
template <typename Action>
auto Attempt(const char* step, const Action& action, bool loading = false) {
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

std::vector<float> ReadFloats(const char* path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<float> values(static_cast<size_t>(file.tellg()) / sizeof(float));
  file.seekg(0).read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

struct Scenario {
  std::string library, weights, options;
  std::vector<float> x, y;
  std::vector<int64_t> budgets;  // ascending

  bool Right(const float* given) const {
    for (size_t i = 0; i < y.size(); ++i)
      if (!(std::abs(given[i] - y[i]) <= 1e-5f + 1e-4f * std::abs(y[i]))) return false;
    return true;
  }

  ffi::Any Call(const char* step, const ffi::Module& module, const char* name, std::vector<ffi::AnyView> args = {}) const {
    const ffi::String function(name);
    return Attempt(step, [&] {
      ffi::Any result;
      (*module->GetFunction(function)).CallPacked(args.data(), static_cast<int32_t>(args.size()), &result);
      return result;
    });
  }

  void Run(const char* step, const ffi::Module& session) const {
    std::vector<float> in = x, out(y.size(), std::numeric_limits<float>::quiet_NaN());
    int64_t shape[] = {static_cast<int64_t>(x.size())};
    const auto tensor = [&](std::vector<float>& values) {
      return DLTensor{values.data(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, nullptr, 0};
    };
    DLTensor from = tensor(in), to = tensor(out);
    Call(step, session, "run", {&from, &to});
    if (!Right(out.data())) Fail("wrong", step, "the output is wrong");
  }

  void RunInPlace(const char* step, const ffi::Module& session) const {
    bool right = false;
    const ffi::Function fill = ffi::Function::FromPacked([&](ffi::PackedArgs places, ffi::Any*) {
      std::memcpy(places[0].cast<DLTensor*>()->data, x.data(), x.size() * sizeof(float));
    });
    const ffi::Function drain = ffi::Function::FromPacked(
        [&](ffi::PackedArgs places, ffi::Any*) { right = Right(static_cast<float*>(places[0].cast<DLTensor*>()->data)); });
    Call(step, session, "run_in_place", {fill, drain});
    if (!right) Fail("wrong", step, "the output is wrong");
  }

  void Play(uint64_t n, int variant) const {
    const ffi::Any weights_path = ffi::String(weights), json = ffi::String(options);
    const ffi::String path(library);
    // The first time the dynamic linker has most to do, and what it leaves half done is not ours.
    const auto linked = ffi::Module::LoadFromFile(path);
    fault_arm(n, variant, &outcome->call);
    const auto program = Attempt("load", [&] { return ffi::Module::LoadFromFile(path); }, true);
    Call("info", program, "info");
    const auto session = Call("open", program, "open", {weights_path, json}).cast<ffi::Module>();
    Run("first run", session);
    Run("second run", session);
    RunInPlace("run in place", session);
    for (const int64_t budget : {budgets.front(), budgets.back(), budgets[1], budgets.front()}) {
      Call("switch", session, "set_budget", {budget});
      Run("run after a switch", session);
      Run("next run", session);
    }
    // As a watch does.
    std::thread caller([&] {
      fault_step(false);
      for (int i = 0; i < 4; ++i) Run("run beside a watch", session);
    });
    for (int i = 0; i < 2; ++i)
      for (const int64_t budget : {budgets.back(), budgets.front(), budgets[1]}) {
        Call("stats in a watch", session, "stats");
        Call("resident_arena in a watch", session, "resident_arena");
        Call("switch in a watch", session, "set_budget", {budget});
      }
    caller.join();
    Run("last run", session);
    Call("trace", session, "trace");
    Call("close", session, "close");
    try {
      (*session->GetFunction("stats"))();
      Fail("wrong", "after close", "no error");
    } catch (const ffi::Error& error) {
      if (error.kind() != "ExecutionError") Fail("wrong", "after close", error.message());
    }
  }
};

// Runs the scenario in a process of its own.
void Play(const Scenario& scenario, uint64_t n, int variant) {
  new (outcome) Outcome();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kSecondsToHang);
    fault_step(false);
    scenario.Play(n, variant);
    End();
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    Note("hang", outcome->step, outcome->message);
  else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    Note("crash", outcome->step, WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "it ended itself");
  else if (n > 0 && outcome->call.name == nullptr)
    Note("unfired", "", "");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 9) return 2;
  // On one core threads that wait sleep at once, and many processes can be tried at a time.
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(::sched_getcpu(), &core);
  if (::sched_setaffinity(0, sizeof(core), &core) != 0) return 2;
  Scenario scenario{argv[1], argv[2], argv[5], ReadFloats(argv[3]), ReadFloats(argv[4]), {}};
  for (int i = 6; i < argc; ++i) scenario.budgets.push_back(std::atoll(argv[i]));
  outcome = static_cast<Outcome*>(::mmap(nullptr, sizeof(Outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (uint64_t n; std::cin >> n;) {
    if (n == 0) {
      Play(scenario, 0, 0);
      if (std::strcmp(outcome->verdict, "right") != 0) {
        std::fprintf(stderr, "%s: %s: %s\n", outcome->verdict, outcome->step, outcome->message);
        return 1;
      }
      std::printf("%llu\n", static_cast<unsigned long long>(outcome->count));
    } else {
      for (int variant = 0, variants = 1; variant < variants; ++variant) {
        Play(scenario, n, variant);
        variants = outcome->call.variants;
        const char* name = outcome->call.name;
        std::printf("%llu\t%d\t%s\t%s\t%s\t%s\n", static_cast<unsigned long long>(n), variant, name != nullptr ? name : "",
                    outcome->verdict, outcome->step, outcome->message);
      }
    }
    std::fflush(stdout);
  }
  return 0;
}
