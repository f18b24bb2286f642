// Opening and closing sessions.
#include <flexcomp.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "api/budgets.h"
#include "api/members.h"
#include "api/opening.h"
#include "api/sessions.h"
#include "api/status.h"
#include "api/structs.h"
#include "api/weights_source.h"
#include "library/load.h"
#include "program/encoded.h"
#include "program/format.h"
#include "session/session.h"

namespace flexcomp::api {
namespace {

constexpr uint32_t kFlags = FLEXCOMP_VERIFY | FLEXCOMP_PAGE_CACHE | FLEXCOMP_NO_AFFINITY | FLEXCOMP_NO_WORK_STEALING | FLEXCOMP_TRACE;

constexpr size_t kFirstOptions = offsetof(flexcomp_options, source);  // the size of the first version

CpuSet CpusOf(const char* list) { return list == nullptr ? CpuSet() : CpuSet::Parse(list); }

SessionOptions OptionsOf(const flexcomp_options& given, const Shapes& shapes) {
  SessionOptions options;
  options.budget = BudgetOf(given.budget, shapes);
  options.threads = given.threads;
  options.cores.affinity = (given.flags & FLEXCOMP_NO_AFFINITY) == 0;
  options.cores.compute = CpusOf(given.compute_cpus);
  options.cores.loader = CpusOf(given.loader_cpus);
  options.help = (given.flags & FLEXCOMP_NO_WORK_STEALING) == 0;
  options.trace = (given.flags & FLEXCOMP_TRACE) != 0;
  options.storage.direct = (given.flags & FLEXCOMP_PAGE_CACHE) == 0;
  options.storage.verify = (given.flags & FLEXCOMP_VERIFY) != 0;
  options.storage.read_bandwidth = given.read_bandwidth;
  return options;
}

void RequireKind(std::string_view kind, const std::string& of) {
  const uint32_t format = FormatOf(kind);
  if (format >= kOldestFormat && format <= kFormat) return;
  const bool newer = format > kFormat;
  RaiseError(kUnsupported, of, " was built by ", newer ? "a newer" : "an older", " version of flexcomp: its program has format ", format,
             ", and flexcomp " FLEXCOMP_VERSION " runs formats ", kOldestFormat, " to ", kFormat,
             newer ? ": update flexcomp, or build the network with this version" : ": build the network again");
}

Shapes LinkedShapes(const flexcomp_network& linked) {
  if (linked.size < sizeof linked || linked.size > kLargestStruct) Raise("InputError", "the network is not one that flexcomp made");
  RequireKind(linked.kind, "the linked network");
  return DecodeShapes(tvm::ffi::Bytes(reinterpret_cast<const char*>(linked.program), linked.program_nbytes));
}

flexcomp_session* Open(Shapes shapes, const flexcomp_options& options, const SessionOptions& made,
                       const std::string& weights) {
  const ChosenWeights chosen(options, weights);
  Session::Owner opened(new Session(std::move(shapes), chosen.source(), made));
  chosen.BelongTo(*opened);
  return Keep(std::move(opened));
}

}  // namespace

Shapes ShapesOf(const LoadedLibrary& library, const std::string& given) {
  RequireKind(library.program->kind(), given);
  const auto blob = library.program->GetFunction("blob");
  if (!blob.has_value()) RaiseError("ArtifactError", given, " does not give its program: build it again");
  return DecodeShapes((*blob)().cast<tvm::ffi::Bytes>());
}

flexcomp_options TakenOptions(const flexcomp_options* options) {
  if (options == nullptr) return FLEXCOMP_OPTIONS_INIT;
  const flexcomp_options given = Taken(options, kFirstOptions, "options");
  if ((given.flags & ~kFlags) != 0) RaiseError("InputError", "there are no flags ", given.flags & ~kFlags, " of options");
  if (given.threads < 0) RaiseError("InputError", "cannot run on ", given.threads, " threads");
  if (!std::isfinite(given.read_bandwidth) || given.read_bandwidth < 0)
    RaiseError("InputError", "option \"read_bandwidth\" must be a number of bytes per second");
  return given;
}

}  // namespace flexcomp::api

using namespace flexcomp;

flexcomp_status flexcomp_open(const char* path, const flexcomp_options* given, flexcomp_session** session) {
  if (session != nullptr) *session = nullptr;
  return api::Guarded([&] {
    api::RequirePointer(session, "session");
    api::RequirePointer(path, "library");
    const flexcomp_options options = api::TakenOptions(given);
    const LoadedLibrary library = LoadLibrary(path);
    Shapes shapes = api::ShapesOf(library, path);
    SessionOptions made = api::OptionsOf(options, shapes);
    made.library_path = library.path;
    *session = api::Open(std::move(shapes), options, made, library.weights);
  });
}

flexcomp_status flexcomp_open_linked(const flexcomp_network* network, const flexcomp_options* given, flexcomp_session** session) {
  if (session != nullptr) *session = nullptr;
  return api::Guarded([&] {
    api::RequirePointer(session, "session");
    api::RequirePointer(network, "network");
    const flexcomp_options options = api::TakenOptions(given);
    Shapes shapes = api::LinkedShapes(*network);
    SessionOptions made = api::OptionsOf(options, shapes);
    made.linked = network;
    *session = api::Open(std::move(shapes), options, made, {});
  });
}

flexcomp_status flexcomp_close(flexcomp_session* session) {
  return api::Guarded([&] {
    if (session == nullptr) return;
    const std::shared_ptr<const api::Opened> found = api::FindOpenedToWait(session);
    if (found->member != nullptr) found->member->Remove();
    if (!api::Forget(session)) Raise(api::kClosed, "the session is closed");
    if (found->session != nullptr) found->session->Close();
  });
}
