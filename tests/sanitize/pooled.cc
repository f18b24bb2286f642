#include "pooled.h"

#include <dlfcn.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "files.h"
#include "pool/pool.h"

namespace {

namespace ffi = tvm::ffi;
using Clock = std::chrono::steady_clock;
using Random = std::mt19937_64;

constexpr int kNames = 4;
constexpr uint64_t kLeast = 600 << 10, kMost = 6 << 20;

struct Allocator {
  void AllocData(DLTensor* tensor) { tensor->data = std::aligned_alloc(64, (ffi::GetDataSize(*tensor) + 63) / 64 * 64); }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

class Pooled {
 public:
  Pooled(char** args, uint64_t seed, uint32_t lanes, const std::string& kind)
      : kernels_(args[1]), weights_(args[2]), x_(ReadFloats(args[3])), y_(ReadFloats(args[4])), seed_(seed) {
    if (::dlopen(args[1], RTLD_NOW) == nullptr) throw std::runtime_error(::dlerror());
    const auto create = ffi::Function::GetGlobalRequired(kind + ".create");
    program_ = create(ffi::Bytes(ReadAll(args[0]))).cast<ffi::Module>();
    pool_.emplace(flexcomp::PoolOptions{kMost, lanes, 1, 8});
    Random random(seed);
    for (int i = 0; i < kNames; ++i) Add(i, random);
  }

  bool Run(double seconds) {
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    std::vector<std::thread> threads;
    uint64_t number = 0;
    for (const Kind& kind : kKinds)
      for (int i = 0; i < kind.threads; ++i)
        threads.emplace_back([this, &kind, end, seed = seed_ + ++number] {
          Random random(seed);
          while (Clock::now() < end && !failed_) Try(kind, random);
        });
    for (std::thread& thread : threads) thread.join();
    pool_->Close();
    for (size_t i = 0; i < kKinds.size(); ++i) std::cout << kKinds[i].name << ": " << counts_[i] << '\n';
    return !failed_;
  }

 private:
  struct Kind {
    const char* name;
    int threads, pause_us;
    void (Pooled::*act)(Random&);
  };
  static const std::array<Kind, 5> kKinds;

  void Try(const Kind& kind, Random& random) {
    try {
      (this->*kind.act)(random);
      ++counts_[static_cast<size_t>(&kind - kKinds.data())];
    } catch (const ffi::Error& error) {
      // A model may have been removed just now, and a budget be too small for one more.
      const std::string message = error.message();
      const bool removed = error.kind() == "InputError" && (message.find("removed") != message.npos || message.find("no model") != message.npos);
      if (!removed && error.kind() != "BudgetError") Fail(std::string(kind.name) + ": " + error.kind() + ": " + message);
    } catch (const std::exception& error) {
      Fail(std::string(kind.name) + ": " + error.what());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<uint64_t>(kind.pause_us)));
  }

  void Fail(const std::string& what) {
    std::cerr << what + "\n"
              << std::flush;
    failed_ = true;
  }

  static std::string NameOf(int number) { return "model" + std::to_string(number); }

  // Some under the same weights are one network, and those with a bandwidth of their own are held apart.
  void Add(int number, Random& random) {
    flexcomp::ModelOptions options;
    options.urgency = 1 + static_cast<double>(random() % 4);
    if (random() % 2 == 0) options.rate = 1 + static_cast<double>(random() % 20);
    if (random() % 3 == 0) options.deadline_s = 0.5;
    ffi::json::Object session;
    session.Set("threads", int64_t{1});
    session.Set("read_bandwidth", 400e6);
    const std::string weights = number % 2 == 0 ? weights_ : weights_ + ".other";
    numbers_[static_cast<size_t>(number)] = pool_->Add(NameOf(number), options, *program_, kernels_, weights, session);
  }

  ffi::Tensor TensorOf(const std::vector<float>& values) const {
    auto tensor = ffi::Tensor::FromNDAlloc(Allocator(), ffi::Shape({static_cast<int64_t>(values.size())}), DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
    std::copy(values.begin(), values.end(), static_cast<float*>(tensor.data_ptr()));
    return tensor;
  }

  void Infer(Random& random) {
    const ffi::Tensor x = TensorOf(x_), y = TensorOf(std::vector<float>(y_.size()));
    flexcomp::RequestOptions options;
    if (random() % 3 == 0) options.deadline_s = 0.05;
    options.late = random() % 2 == 0;
    const uint64_t ticket = pool_->Ticket();
    const auto forget = [this](const uint64_t* each) { pool_->Forget(*each); };
    const std::unique_ptr<const uint64_t, decltype(forget)> request(&ticket, forget);
    if (pool_->Submit(ticket, numbers_[random() % kNames], options, {x, y}).admission != flexcomp::Pool::Admission::kWaits) return;
    bool cancelled = false;
    if (random() % 8 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));  // the request may run
      cancelled = pool_->Cancel(ticket);
    }
    const flexcomp::Answer answer = pool_->Wait(ticket);
    if (answer.cancelled != cancelled) throw std::runtime_error("a request was cancelled by nobody, or was not");
    if (cancelled) return;
    const auto* out = static_cast<const float*>(y.data_ptr());
    for (size_t i = 0; !answer.refusal && i < y_.size(); ++i)
      if (!(std::abs(out[i] - y_[i]) <= 1e-5f + 1e-4f * std::abs(y_[i]))) throw std::runtime_error("a wrong output");
  }

  void SetBudget(Random& random) { pool_->SetBudget(kLeast + random() % (kMost - kLeast)); }

  void Exchange(Random& random) {
    const int number = static_cast<int>(random() % kNames);
    pool_->Remove(NameOf(number));
    Add(number, random);
  }

  void Ask(Random&) {
    const auto stats = pool_->Stats();
    const auto claimed = stats["claimed_bytes"].cast<int64_t>();
    if (claimed < 0 || claimed > static_cast<int64_t>(kMost)) throw std::runtime_error("more is claimed than there ever was");
  }

  void Plan(Random&) { pool_->Plan(); }

  const std::string kernels_, weights_;
  const std::vector<float> x_, y_;
  const uint64_t seed_;
  std::optional<ffi::Module> program_;
  std::optional<flexcomp::Pool> pool_;
  std::array<std::atomic<uint32_t>, kNames> numbers_{};  // of the models, by name
  std::array<std::atomic<uint64_t>, 5> counts_{};
  std::atomic<bool> failed_{false};
};

const std::array<Pooled::Kind, 5> Pooled::kKinds = {{
    {"requests", 4, 500, &Pooled::Infer},
    {"pool budgets set", 1, 8000, &Pooled::SetBudget},
    {"models exchanged", 1, 40000, &Pooled::Exchange},
    {"pools looked at", 1, 2000, &Pooled::Ask},
    {"plans", 1, 8000, &Pooled::Plan},
}};

}  // namespace

bool RunPooled(char** args, double seconds, uint64_t seed, const std::string& kind) {
  Pooled pooled(args, seed, 1 + static_cast<uint32_t>(seed % 2), kind);
  return pooled.Run(seconds);
}
