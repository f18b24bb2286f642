#include "pool/shares_json.h"

#include <tvm/ffi/extra/json.h>

#include <algorithm>

#include "base/error.h"
#include "base/json_text.h"
#include "pool/shares.h"

namespace flexcomp {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

template <typename T>
T As(const json::Value& value, const char* what) {
  if (auto cast = value.try_cast<T>()) return *std::move(cast);
  RaiseError("InputError", "shares: ", what, " is missing or of the wrong type");
}

template <typename T>
T Member(const json::Object& object, const char* name) {
  return As<T>(object.Get(ffi::String(name)).value_or(json::Value(nullptr)), name);
}

uint64_t Natural(int64_t number, const char* what) {
  if (number < 0) RaiseError("InputError", "shares: ", what, " must not be negative, but is ", number);
  return static_cast<uint64_t>(number);
}

ShareModel ModelOf(const json::Object& object) {
  ShareModel model;
  model.weight = Member<double>(object, "weight");
  model.lane = static_cast<uint32_t>(std::min<uint64_t>(Natural(Member<int64_t>(object, "lane"), "a lane"), UINT32_MAX));
  for (const json::Value& value : Member<json::Array>(object, "rungs")) {
    const auto rung = As<json::Array>(value, "a rung");
    if (rung.size() != 3) RaiseError("InputError", "shares: a rung is working bytes, kept bytes and a time");
    model.rungs.push_back({Natural(As<int64_t>(rung[0], "a number of bytes"), "a number of bytes"),
                           Natural(As<int64_t>(rung[1], "a number of bytes"), "a number of bytes"),
                           As<double>(rung[2], "a time")});
  }
  return model;
}

}  // namespace

void RequireShareStrategy(const std::string& strategy) {
  if (strategy != "exact" && strategy != "swapnet")
    RaiseError("InputError", "the strategy \"", strategy, "\" is not known: it is one of exact, swapnet");
}

std::string SharesOf(const std::string& request) {
  ffi::String error;
  const json::Value parsed = json::Parse(request, &error);
  const auto object = parsed.try_cast<json::Object>();
  if (!error.empty() || !object) Raise("InputError", "shares are asked for by a JSON object");
  std::vector<ShareModel> models;
  for (const json::Value& model : Member<json::Array>(*object, "models")) models.push_back(ModelOf(As<json::Object>(model, "a model")));
  const uint64_t budget = Natural(Member<int64_t>(*object, "budget_bytes"), "the budget");
  const std::string strategy = Member<ffi::String>(*object, "strategy");
  RequireShareStrategy(strategy);
  const Shares shares = strategy == "exact" ? ShareExactly(models, budget) : ShareBySwapNet(models, budget);
  json::Array rungs;
  for (const uint32_t rung : shares.rungs) rungs.push_back(int64_t{rung});
  json::Object answer;
  answer.Set("least_bytes", static_cast<int64_t>(shares.least));
  answer.Set("bytes", static_cast<int64_t>(shares.nbytes));
  answer.Set("cost", shares.cost);
  answer.Set("points", static_cast<int64_t>(shares.points));
  answer.Set("rungs", rungs);
  return std::string(JsonText(answer));
}

}  // namespace flexcomp
