// The weights that a caller's options name.
#pragma once

#include <flexcomp.h>

#include <atomic>
#include <memory>
#include <string>

#include "session/session.h"
#include "storage/weights_source.h"

namespace flexcomp::api {

class ChosenWeights {
 public:
  // `otherwise`: the file of options that name nothing; empty: they must. Throws InputError, Unsupported.
  ChosenWeights(const flexcomp_options& options, const std::string& otherwise);

  const WeightsSource& source() const noexcept { return source_; }
  // From now on a caller's reader runs within callbacks of this session. Before anybody has a handle of the session.
  void BelongTo(const Session& session) const noexcept;

 private:
  WeightsSource source_;
  std::shared_ptr<std::atomic<const Session*>> session_;  // only for a caller's reader
};

}  // namespace flexcomp::api
