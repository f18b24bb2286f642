// A pool, and shares, as other languages see them.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_options.h"
#include "base/json_text.h"
#include "base/translated.h"
#include "pool/pool.h"
#include "pool/shares_json.h"

namespace flexcomp {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

#define FLEXCOMP_POOL_KIND "flexcomp.pool.1"

PoolOptions PoolOptionsOf(const ffi::String& text) {
  JsonOptions options(text);
  PoolOptions made;
  options.Take("budget_bytes", made.budget);
  options.Take("lanes", made.lanes);
  options.Take("threads", made.threads);
  options.Take("queue", made.most_waiting);
  const std::string strategy = options.Get<std::string>("strategy").value_or("exact");
  RequireShareStrategy(strategy);
  made.by_swapnet = strategy == "swapnet";
  options.RequireKnown();
  return made;
}

std::optional<double> Seconds(std::optional<double> milliseconds) {
  return milliseconds ? std::optional(*milliseconds * 1e-3) : std::nullopt;
}

ModelOptions ModelOptionsOf(const ffi::String& text) {
  JsonOptions options(text);
  ModelOptions made;
  options.Take("urgency", made.urgency);
  made.rate = options.Get<double>("rate");
  made.deadline_s = Seconds(options.Get<double>("deadline_ms"));
  options.Take("keep_bytes", made.keep);
  options.RequireKnown();
  return made;
}

RequestOptions RequestOptionsOf(const ffi::String& text) {
  JsonOptions options(text);
  RequestOptions made;
  made.deadline_s = Seconds(options.Get<double>("deadline_ms"));
  options.Take("late", made.late);
  options.Take("collected", made.collected);
  options.Take("here", made.here);
  options.RequireKnown();
  return made;
}

ffi::String Text(const json::Object& object) { return JsonText(object); }

class PoolModule final : public TranslatedModule {
 public:
  explicit PoolModule(const PoolOptions& options) : owner_(new Pool(options)), pool_(*owner_) {}

  const char* kind() const final { return FLEXCOMP_POOL_KIND; }
  int GetPropertyMask() const final { return ffi::Module::kRunnable; }

 private:
  ffi::Optional<ffi::Function> Find(const ffi::String& name) final {
    const ffi::Module self = ffi::GetRef<ffi::Module>(this);  // functions keep the pool alive
    if (name == "add")
      return ffi::Function::FromTyped([self, this](const ffi::String& model, const ffi::String& options, const ffi::Module& program,
                                                   const ffi::String& library, const ffi::String& weights, const ffi::String& session) {
        ffi::String error;
        const auto given = json::Parse(session, &error).try_cast<json::Object>();
        if (!error.empty() || !given) Raise("InputError", "session options must be a JSON object");
        return static_cast<int64_t>(pool_.Add(model, ModelOptionsOf(options), program, library, weights, *given));
      });
    if (name == "remove") return ffi::Function::FromTyped([self, this](const ffi::String& model) { pool_.Remove(model); });
    if (name == "set_budget")
      return ffi::Function::FromTyped([self, this](int64_t budget) {
        if (budget < 0) RaiseError("BudgetError", "a budget of ", budget, " bytes was asked for");
        pool_.SetBudget(static_cast<uint64_t>(budget));
      });
    if (name == "ticket") return ffi::Function::FromTyped([self, this] { return static_cast<int64_t>(pool_.Ticket()); });
    if (name == "submit")
      return ffi::Function::FromPacked([self, this](ffi::PackedArgs args, ffi::Any* result) { *result = Submit(args); });
    if (name == "run") return ffi::Function::FromPacked([self, this](ffi::PackedArgs args, ffi::Any* result) { *result = Run(args); });
    if (name == "wait") return ffi::Function::FromTyped([self, this](int64_t ticket) { return Said(pool_.Wait(Number(ticket))); });
    if (name == "cancel") return ffi::Function::FromTyped([self, this](int64_t ticket) { return pool_.Cancel(Number(ticket)); });
    if (name == "forget") return ffi::Function::FromTyped([self, this](int64_t ticket) { pool_.Forget(Number(ticket)); });
    if (name == "collect") return ffi::Function::FromTyped([self, this] { return static_cast<int64_t>(pool_.Collect()); });
    if (name == "names") return ffi::Function::FromTyped([self, this] { return JsonText(pool_.Names()); });
    if (name == "describe")
      return ffi::Function::FromTyped([self, this](const ffi::String& model) { return JsonText(pool_.Describe(model)); });
    if (name == "shape_of")
      return ffi::Function::FromPacked([self, this](ffi::PackedArgs args, ffi::Any* found) { *found = ShapeOf(args); });
    if (name == "plan") return ffi::Function::FromTyped([self, this] { return Text(pool_.Plan()); });
    if (name == "stats") return ffi::Function::FromTyped([self, this] { return Text(pool_.Stats()); });
    if (name == "stats_in_passing") return ffi::Function::FromTyped([self, this] { return Text(pool_.Stats(false)); });
    if (name == "broken") return ffi::Function::FromTyped([self, this](const ffi::String& model) { return ffi::String(pool_.Broken(model)); });
    if (name == "close") return ffi::Function::FromTyped([self, this] { pool_.Close(); });
    return std::nullopt;
  }

  static uint64_t Number(int64_t given) noexcept { return static_cast<uint64_t>(given); }

  // Answers are numbers wherever possible, because making a number cannot fail. A failure here would lose the outcome.
  static constexpr int64_t kGone = 0, kWaits = 1, kDone = 2;

  // The milliseconds of waiting, or JSON of a refusal; None: the request was cancelled.
  static ffi::Any Said(const Answer& answer) {
    if (answer.cancelled) return nullptr;
    if (answer.refusal) return Said(*answer.refusal);
    return answer.completion.wait_s * 1e3;
  }

  static ffi::Any Said(const Refusal& refusal) {
    json::Object refused;
    refused.Set("reason", refusal.reason);
    refused.Set("message", refusal.message);
    refused.Set("retry_after_s", refusal.retry_after_s);
    return Text(refused);
  }

  // Of (number of a model, options, tensors...), from argument `first` on.
  struct Asked {
    Asked(ffi::PackedArgs args, int first) {
      if (args.size() < first + 2) Raise("InputError", "a request takes a model's number, options and tensors");
      const auto number = args[first].try_cast<int64_t>();
      const auto text = args[first + 1].try_cast<ffi::String>();
      if (!number || *number < 0 || *number > UINT32_MAX || !text) Raise("InputError", "a request takes a model's number, and options as text");
      model = static_cast<uint32_t>(*number);
      options = RequestOptionsOf(*text);
      for (int i = first + 2; i < args.size(); ++i) {
        const auto tensor = args[i].try_cast<ffi::Tensor>();
        if (!tensor) RaiseError("InputError", "argument ", i, " is not a tensor");
        tensors.emplace_back(*tensor);
      }
    }

    uint32_t model = 0;
    RequestOptions options;
    std::vector<ffi::Any> tensors;
  };

  // shape_of(model, shapes of the inputs...): the number of the shape, or None where there is no such model.
  ffi::Any ShapeOf(ffi::PackedArgs args) {
    const auto number = args.size() > 0 ? args[0].try_cast<int64_t>() : std::nullopt;
    if (!number || *number < 0 || *number > UINT32_MAX) Raise("InputError", "shape_of takes a model's number and shapes");
    const auto shape = pool_.ShapeOf(static_cast<uint32_t>(*number), args.Slice(1));
    return shape ? ffi::Any(*shape) : ffi::Any(nullptr);
  }

  // submit(ticket, model, options, tensors...): kWaits, kDone, kGone, or JSON of a refusal.
  ffi::Any Submit(ffi::PackedArgs args) {
    Asked asked(args, 1);
    const auto ticket = args[0].try_cast<int64_t>();
    if (!ticket || *ticket <= 0) Raise("InputError", "submit takes a ticket");
    const Pool::Submitted submitted = pool_.Submit(Number(*ticket), asked.model, asked.options, std::move(asked.tensors));
    switch (submitted.admission) {
      case Pool::Admission::kGone:
        return kGone;
      case Pool::Admission::kRefused:
        return Said(submitted.refusal);
      case Pool::Admission::kWaits:
        return kWaits;
      case Pool::Admission::kDone:
        return kDone;
    }
    return kGone;
  }

  // run(model, options, tensors...): as wait does, or as submit does where there is no such model.
  ffi::Any Run(ffi::PackedArgs args) {
    Asked asked(args, 0);
    const auto answer = pool_.Run(asked.model, asked.options, std::move(asked.tensors));
    return answer ? Said(*answer) : ffi::Any(kGone);
  }

  Pool::Owner owner_;
  Pool& pool_;
};

ffi::Module CreatePool(const ffi::String& options) {
  return Translated([&] { return ffi::Module(ffi::make_object<PoolModule>(PoolOptionsOf(options))); });
}

ffi::String PoolShares(const ffi::String& request) {
  return Translated([&] { return ffi::String(SharesOf(request)); });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  KeptOutOfMemory();
  DefineOnce(FLEXCOMP_POOL_KIND ".create", CreatePool);
  DefineOnce(FLEXCOMP_POOL_KIND ".shares", PoolShares);
}

}  // namespace
}  // namespace flexcomp
