#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "pool/shares.h"

namespace flexcomp {
namespace {

constexpr size_t kMostModels = 256;
constexpr size_t kMostRungs = 1024;

}  // namespace

void CheckShareModels(std::span<const ShareModel> models) {
  if (models.empty() || models.size() > kMostModels)
    RaiseError("InputError", "shares are of 1 to ", kMostModels, " models, not ", models.size());
  double cost = 0;
  for (size_t i = 0; i < models.size(); ++i) {
    const ShareModel& model = models[i];
    if (model.rungs.empty() || model.rungs.size() > kMostRungs)
      RaiseError("InputError", "model ", i, " has ", model.rungs.size(), " rungs: 1 to ", kMostRungs, " are possible");
    if (model.lane >= models.size()) RaiseError("InputError", "model ", i, " is in lane ", model.lane, " of ", models.size());
    if (!std::isfinite(model.weight) || model.weight < 0)
      RaiseError("InputError", "the weight of model ", i, " is ", model.weight, ": it must be a number that is not negative");
    double most = 0;
    for (size_t j = 0; j < model.rungs.size(); ++j) {
      const ShareRung& rung = model.rungs[j];
      if (rung.working > kMostShareBytes || rung.kept > kMostShareBytes)
        RaiseError("InputError", "rung ", j, " of model ", i, " is larger than ", kMostShareBytes, " bytes");
      if (!std::isfinite(rung.seconds) || rung.seconds < 0)
        RaiseError("InputError", "rung ", j, " of model ", i, " takes ", rung.seconds, " seconds");
      most = std::max(most, rung.seconds);
    }
    cost += model.weight * most;
  }
  if (!std::isfinite(cost)) RaiseError("InputError", "the weights are too large: together the models would cost ", cost);
}

}  // namespace flexcomp
