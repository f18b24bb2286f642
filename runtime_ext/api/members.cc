#include "api/members.h"

#include <tvm/ffi/container/tensor.h>

#include <utility>
#include <vector>

#include "api/status.h"
#include "base/error.h"

namespace flexcomp::api {
namespace {

namespace ffi = tvm::ffi;

[[noreturn]] void ThrowRemoved() { Raise(kClosed, "the session is closed: its network was removed from the pool"); }

[[noreturn]] void ThrowRefused(const Refusal& refusal) {
  if (refusal.retry_after_s > 0) RaiseError("RefusedError", refusal.message, "; try again in ", refusal.retry_after_s * 1e3, " ms");
  Raise("RefusedError", refusal.message);
}

// The caller's memory, in the order of the network's inputs and outputs. None: an output that nobody wants.
std::vector<ffi::Any> TensorsOf(const Program& program, const Bound& inputs, const Bound& outputs) {
  struct Lent {
    void* data;
    void AllocData(DLTensor* tensor) const noexcept { tensor->data = data; }
    void FreeData(DLTensor*) const noexcept {}
  };
  std::vector<ffi::Any> tensors;
  tensors.reserve(program.inputs.size() + program.outputs.size());
  for (const Bound* bound : {&inputs, &outputs})
    for (const DLTensor* one : bound->tensors()) {
      if (one == nullptr)
        tensors.emplace_back(nullptr);
      else
        tensors.emplace_back(ffi::Tensor::FromNDAlloc(Lent{one->data}, ffi::ShapeView(one->shape, one->ndim), one->dtype, one->device));
    }
  tensors.resize(program.inputs.size() + program.outputs.size());
  return tensors;
}

uint64_t CountOf(const ffi::json::Object& said, const char* name) { return static_cast<uint64_t>(said[ffi::String(name)].cast<int64_t>()); }
bool Has(const ffi::json::Object& said, const char* name) { return said.count(ffi::String(name)) > 0; }
double SecondsOf(const ffi::json::Object& said, const char* name) { return said[ffi::String(name)].cast<double>() * 1e-3; }

}  // namespace

void RequireRun(const Answer& answer) {
  if (answer.cancelled) Raise(kCancelled, "the request was cancelled");
  if (answer.refusal) ThrowRefused(*answer.refusal);
}

void Member::Run(const Bound& inputs, const Bound& outputs) {
  RequestOptions options;
  options.here = true;
  const std::optional<Answer> answer = pool_->Run(number_, options, TensorsOf(shapes_[0], inputs, outputs));
  if (!answer) ThrowRemoved();
  RequireRun(*answer);
}

void Member::Submit(uint64_t ticket, const RequestOptions& options, const Bound& inputs, const Bound& outputs) {
  const Pool::Submitted submitted = pool_->Submit(ticket, number_, options, TensorsOf(shapes_[0], inputs, outputs));
  if (submitted.admission == Pool::Admission::kGone) ThrowRemoved();
  if (submitted.admission == Pool::Admission::kRefused) ThrowRefused(submitted.refusal);
}

void Member::Cancel() { pool_->CancelRunning(number_); }

void Member::Remove() {
  if (!pool_->Remove(number_)) ThrowRemoved();
}

ffi::json::Object Member::Said() const {
  auto said = pool_->StatsOf(number_);
  if (!said) ThrowRemoved();
  return *std::move(said);
}

size_t Member::rung() const { return CountOf(Said(), "rung"); }

flexcomp_stats Member::Stats() const {
  const ffi::json::Object said = Said(), session = said["session"].cast<ffi::json::Object>();
  flexcomp_stats made{};
  made.runs = CountOf(said, "completed");
  made.restarts = CountOf(said, "restarts");
  made.total_bytes_read = CountOf(session, "total_bytes_read");
  made.resident = CountOf(said, "resident_bytes");
  made.threads = static_cast<int32_t>(CountOf(session, "threads"));
  made.direct = session["direct_io"].cast<bool>();
  made.bytes_read = CountOf(session, "bytes_read");
  made.reads = CountOf(session, "reads");
  made.latency_s = SecondsOf(said, "latency_ms");  // the member's own, also where members are one network
  made.stall_s = SecondsOf(session, "stall_ms");
  // Libraries of earlier versions do not say all of these.
  if (Has(session, "read_ms")) made.read_s = SecondsOf(session, "read_ms");
  if (Has(session, "prepared_bytes")) made.prepared_bytes = CountOf(session, "prepared_bytes");
  if (Has(session, "prepare_ms")) made.prepare_s = SecondsOf(session, "prepare_ms");
  if (Has(session, "help_ms")) made.help_s = SecondsOf(session, "help_ms");
  if (Has(session, "shape")) made.shape = static_cast<uint32_t>(CountOf(session, "shape"));
  return made;
}

flexcomp_member_stats Member::Counts() const {
  const ffi::json::Object said = Said();
  flexcomp_member_stats made{};
  made.requests = CountOf(said, "requests");
  made.completed = CountOf(said, "completed");
  made.failed = CountOf(said, "failed");
  made.cancelled = CountOf(said, "cancelled");
  made.refused = CountOf(said, "refused");
  made.missed = CountOf(said, "missed");
  made.dropped = CountOf(said, "dropped");
  made.waiting = CountOf(said, "waiting");
  made.running = CountOf(said, "running");
  made.kept = CountOf(said, "kept_bytes");
  made.wait_s = SecondsOf(said, "wait_ms");
  return made;
}

}  // namespace flexcomp::api
