// Everything that threads can ask of sessions, at once, for a while: for a build with -fsanitize=thread.
//
// everything PROGRAM KERNELS WEIGHTS X Y SECONDS SEED [KIND]
//
// PROGRAM is an encoded program, KERNELS the library of its kernels, X and Y an input and its output. A few sessions, each
// opened in its own way, are used by threads that run inferences and cancel them, set budgets, follow one that others change, ask for
// states and traces, measure the storage, and open sessions anew while others use them. Prints how often each was done; exits with
// 1 if an output or an error was wrong. With KIND, that of programs' modules, they use a pool of
// models instead (pooled.cc). Races are the sanitizer's to report.
#include <dlfcn.h>
#include <tvm/ffi/error.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "files.h"
#include "pooled.h"
#include "program/program.h"
#include "session/session.h"

namespace {

using flexcomp::Session;
using Clock = std::chrono::steady_clock;
using Random = std::mt19937_64;

constexpr size_t kSessions = 3;

// A session, and whether somebody closed it.
struct Open {
  explicit Open(std::unique_ptr<Session> opened, bool traced) : session(std::move(opened)), traced(traced) {}

  std::unique_ptr<Session> session;
  bool traced;
  std::atomic<bool> closing{false};
  std::atomic<uint64_t> allowed{UINT64_MAX};  // what watching threads are told
};

class Everything {
 public:
  Everything(char** args, uint64_t seed)
      : encoded_(ReadAll(args[0])),
        program_(std::make_shared<const flexcomp::Program>(flexcomp::ReadProgram(encoded_))),
        kernels_(args[1]), weights_(args[2]), x_(ReadFloats(args[3])), y_(ReadFloats(args[4])), seed_(seed) {
    if (::dlopen(kernels_.c_str(), RTLD_NOW) == nullptr) throw std::runtime_error(::dlerror());
    Random random(seed);
    for (auto& place : places_) place = OpenOne(random);
  }

  bool Run(double seconds) {
    std::vector<std::thread> threads;
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    uint64_t number = 0;
    for (const Kind& kind : kKinds)
      for (int i = 0; i < kind.threads; ++i)
        threads.emplace_back([this, &kind, end, seed = seed_ + ++number] {
          Random random(seed);
          while (Clock::now() < end && !failed_) Try(kind, random);
        });
    for (std::thread& thread : threads) thread.join();
    for (auto& place : places_) place->session->Close();
    for (size_t i = 0; i < kKinds.size(); ++i) std::cout << kKinds[i].name << ": " << counts_[i] << '\n';
    return !failed_;
  }

 private:
  using Place = std::shared_ptr<Open>;

  struct Kind {
    const char* name;
    int threads;
    int pause_us;  // the longest
    void (Everything::*act)(Open&, Random&);
  };
  static const std::array<Kind, 8> kKinds;

  void Try(const Kind& kind, Random& random) {
    const Place place = At(random() % kSessions);
    try {
      (this->*kind.act)(*place, random);
      ++counts_[static_cast<size_t>(&kind - kKinds.data())];
    } catch (const tvm::ffi::Error& error) {
      const bool closed = place->closing && error.kind() == "ExecutionError";
      const bool disturbed = kind.act == &Everything::ReadRate && error.kind() == "ExecutionError";
      if (!closed && !disturbed && error.kind() != "CancelledError") Fail(std::string(kind.name) + ": " + error.kind() + ": " + error.message());
    } catch (const std::exception& error) {
      Fail(std::string(kind.name) + ": " + error.what());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<uint64_t>(kind.pause_us)));
  }

  void Fail(const std::string& what) {
    const std::lock_guard lock(mutex_);
    std::cerr << what << std::endl;
    failed_ = true;
  }

  Place At(size_t index) {
    const std::lock_guard lock(mutex_);
    return places_[index];
  }

  uint64_t Budget(Random& random) const { return program_->rungs[random() % program_->rungs.size()].budget; }

  Place OpenOne(Random& random) {
    flexcomp::SessionOptions options;
    options.library_path = kernels_;
    options.budget = Budget(random);
    options.threads = static_cast<int>(1 + random() % 3);
    options.trace = random() % 2 == 0;
    options.storage.direct = random() % 3 != 0;
    options.storage.verify = random() % 4 == 0;
    if (random() % 2 == 0) options.storage.read_bandwidth = 200e6;
    return std::make_shared<Open>(std::make_unique<Session>(program_, weights_, options), options.trace);
  }

  void Infer(Open& open, Random&) {
    std::vector<float> x = x_, y(y_.size());
    int64_t shape = static_cast<int64_t>(x.size());
    const auto tensor = [&](std::vector<float>& values) {
      return DLTensor{values.data(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, &shape, nullptr, 0};
    };
    const DLTensor input = tensor(x), output = tensor(y);
    const DLTensor *inputs[] = {&input}, *outputs[] = {&output};
    open.session->Run(inputs, outputs);
    for (size_t i = 0; i < y.size(); ++i)
      if (!(std::abs(y[i] - y_[i]) <= 1e-5f + 1e-4f * std::abs(y_[i]))) throw std::runtime_error("a wrong output");
  }

  void SetBudget(Open& open, Random& random) { open.session->SetBudget(Budget(random)); }

  // As a watch does: whatever is allowed now, if it is another rung than the one in use.
  void Follow(Open& open, Random& random) {
    if (random() % 4 == 0) open.allowed = Budget(random);
    const uint64_t allowed = open.allowed;
    if (program_->rungs[open.session->state().rung].budget > allowed) open.session->SetBudget(allowed);
  }

  void Cancel(Open& open, Random&) { open.session->Cancel(); }

  void Ask(Open& open, Random&) {
    const Session::State state = open.session->state();
    if (state.rung >= program_->rungs.size()) throw std::runtime_error("a rung that there is not");
  }

  void Trace(Open& open, Random&) {
    if (open.traced && open.session->trace().steps.size() > 100) throw std::runtime_error("a trace of another program");
  }

  void ReadRate(Open& open, Random& random) {
    if (!(open.session->ReadRate(4096 << random() % 5, 1 << 18) > 0)) throw std::runtime_error("no rate");
  }

  // Opens another session in its place; whoever still has the old one is told that it is closed.
  void Reopen(Open&, Random& random) {
    Place fresh = OpenOne(random);
    {
      const std::lock_guard lock(mutex_);
      std::swap(places_[random() % kSessions], fresh);
    }
    fresh->closing = true;
    fresh->session->Close();
  }

  const std::string encoded_;
  std::shared_ptr<const flexcomp::Program> program_;
  const std::string kernels_, weights_;
  const std::vector<float> x_, y_;
  const uint64_t seed_;
  std::mutex mutex_;
  std::array<Place, kSessions> places_;
  std::array<std::atomic<uint64_t>, 8> counts_{};
  std::atomic<bool> failed_{false};
};

const std::array<Everything::Kind, 8> Everything::kKinds = {{
    {"inferences", 4, 1000, &Everything::Infer},
    {"budgets set", 2, 10000, &Everything::SetBudget},
    {"budgets followed", 1, 10000, &Everything::Follow},
    {"cancelled", 1, 10000, &Everything::Cancel},
    {"states", 1, 1000, &Everything::Ask},
    {"traces", 1, 2000, &Everything::Trace},
    {"storage measured", 1, 20000, &Everything::ReadRate},
    {"sessions opened", 1, 20000, &Everything::Reopen},
}};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8 && argc != 9) return 2;
  try {
    if (argc == 9) return RunPooled(argv + 1, std::strtod(argv[6], nullptr), std::strtoull(argv[7], nullptr, 10), argv[8]) ? 0 : 1;
    Everything everything(argv + 1, std::strtoull(argv[7], nullptr, 10));
    return everything.Run(std::strtod(argv[6], nullptr)) ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
