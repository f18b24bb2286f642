#include "api/weights_source.h"

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "api/sessions.h"
#include "api/structs.h"
#include "base/error.h"

namespace flexcomp::api {
namespace {

Reader MemoryReader(const void* data, uint64_t nbytes) {
  const auto copy = [data](uint64_t offset, std::byte* target, uint64_t count) {
    std::memcpy(target, static_cast<const std::byte*>(data) + offset, count);
    return static_cast<int64_t>(count);
  };
  return {copy, nbytes, true, "memory"};
}

}  // namespace

ChosenWeights::ChosenWeights(const flexcomp_options& options, const std::string& otherwise) {
  if (options.source == nullptr) {
    if (options.weights == nullptr && otherwise.empty())
      Raise("InputError", "a network that is linked with the program has no weights next to it: options must name them");
    source_ = options.weights == nullptr ? otherwise : options.weights;
    return;
  }
  if (options.weights != nullptr) Raise("InputError", "options give the weights twice: the members \"weights\" and \"source\"");
  const flexcomp_source given = Taken(options.source, sizeof(flexcomp_source), "source");
  switch (given.kind) {
    case FLEXCOMP_DESCRIPTOR:
      source_ = DescriptorRange{given.descriptor, given.offset, given.nbytes};
      return;
    case FLEXCOMP_MEMORY:
      RequirePointer(given.data, "data");
      source_ = MemoryReader(given.data, given.nbytes);
      return;
    case FLEXCOMP_READER:
      if (given.read == nullptr) Raise("InputError", "argument \"read\" is NULL");
      session_ = std::make_shared<std::atomic<const Session*>>();
      source_ = Reader{
          [read = given.read, context = given.context, session = session_](uint64_t offset, std::byte* target, uint64_t nbytes) {
            const InCallback scope(*session, InCallback::kReader);
            const int64_t got = read(context, offset, target, nbytes);
            return scope.cancelled() ? -ECANCELED : got;
          },
          given.nbytes, false, "reader"};
      return;
    default:
      RaiseError("InputError", "there is no kind ", given.kind, " of sources");
  }
}

void ChosenWeights::BelongTo(const Session& session) const noexcept {
  if (session_) *session_ = &session;
}

}  // namespace flexcomp::api
