// A compiled network that a pool has open. Its library may be of another version than the pool: the pool knows a session by its
// functions only.
#pragma once

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/translated.h"
#include "pool/estimates.h"
#include "pool/lane_memory.h"
#include "pool/shared_weights.h"
#include "pool/shares.h"

namespace flexcomp {

uint64_t WholePages(uint64_t nbytes) noexcept;  // of the system

// How a session is opened, besides the options of the user.
struct LanePlace {
  const LaneMemory& memory;
  std::string compute_cpus, loader_cpus;  // lists; empty: the session chooses
  int threads = 0;                        // 0: the session chooses
  int other_threads = 0;                  // that compute in other lanes
};

class Network {
 public:
  // Of the library that `program` was loaded from; not open yet. `options` are those of a session. Throws ArtifactError
  // for a library that lacks the facts that a pool needs.
  Network(const tvm::ffi::Module& program, std::string library, std::string weights, const tvm::ffi::json::Object& options);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Throws the errors of opening a session, and ArtifactError for a library whose runtime is too old for a lane; the
  // network is then not open.
  void Open(const LanePlace& place);
  bool is_open() const noexcept { return close_ != nullptr; }

  // Whether `other`, of the same files, with the same options, needs no session of its own.
  bool Serves(const Network& other) const noexcept;
  const std::vector<ShareRung>& ladder() const noexcept { return ladder_; }
  size_t ports() const noexcept { return inputs_.size() + outputs_.size(); }  // tensors that an inference takes and gives
  const tvm::ffi::json::Array& inputs() const noexcept { return inputs_; }    // as the library describes them
  const tvm::ffi::json::Array& outputs() const noexcept { return outputs_; }
  const tvm::ffi::json::Array& shapes() const noexcept { return shapes_; }    // empty: one
  const tvm::ffi::json::Object& metadata() const noexcept { return metadata_; }  // as the library says it in short
  // Predicted, of an inference in this shape.
  double SecondsOf(size_t rung, size_t shape) const noexcept { return seconds_[rung][shape]; }
  // The mean of the shapes that requests have.
  double MeanSeconds(size_t rung) const noexcept { return shape_mix->Mean(seconds_[rung]); }
  // The shape that a request with these tensors, the inputs first, runs in. Throws InputError if there is none.
  size_t ShapeOf(const std::vector<tvm::ffi::Any>& tensors) const;
  // Of an open network the shape whose inputs have these extents, one ffi::Shape for each. Throws InputError.
  int64_t ShapeOf(tvm::ffi::PackedArgs extents) const;

  // Weights that other networks may have, too: equal ones have one key. None of a library of an older version.
  const std::vector<std::string>& keys() const noexcept { return keys_; }
  uint64_t SharedNbytes(uint32_t number) const noexcept { return key_nbytes_[number]; }
  struct Resting {
    uint32_t number;  // of a key
    uint64_t freed;   // bytes that the kept range is smaller without these weights
  };
  // Those that stay whole on a rung. Asks the library at the first call; throws ArtifactError.
  const std::vector<Resting>& RestingOn(size_t rung);

  // All as of a Session (session.h); calls that give memory back return its error.
  std::optional<tvm::ffi::Error> Park(size_t rung, const Common* shared) const noexcept {
    return Caught([&] {
      if (shared == nullptr) park_(static_cast<int64_t>(rung));
      else park_sharing_(static_cast<int64_t>(rung), shared->places);
    });
  }
  std::optional<tvm::ffi::Error> MakeShared(uint32_t number) const noexcept {
    return Caught([&] { make_shared_(int64_t{number}); });
  }
  std::optional<tvm::ffi::Error> LeaveLane() const noexcept {
    return Caught([&] { leave_lane_(); });
  }
  bool Stop() const noexcept {  // whether the session was told
    return !Caught([&] { stop_(); });
  }
  bool Cancel() const noexcept {  // the same
    return !Caught([&] { cancel_(); });
  }
  void ReadAhead(bool reading) const { read_ahead_(reading); }
  void Run(const std::vector<tvm::ffi::Any>& tensors) const;
  tvm::ffi::json::Object Stats() const;
  // Reads of the last inference, as far as the library reports them.
  struct Reading {
    double stall_s = 0, read_s = 0, nbytes = 0;
  };
  Reading LastReading() const noexcept;
  uint64_t ResidentNbytes() const { return static_cast<uint64_t>(resident_().cast<int64_t>()); }

  // The time that loading the kept bytes may take, unless they are in memory.
  double LoadingSeconds() const noexcept;
  // Of the network's own, with the share that it has, and with the one that it is to have.
  uint64_t kept() const noexcept { return common ? common->kept : ladder_[rung].kept; }
  uint64_t target_kept() const noexcept { return target_common ? target_common->kept : ladder_[target].kept; }
  bool settled() const noexcept { return rung == target && common == target_common; }

  // Gives all memory back; later calls throw.
  void Close() noexcept;

  // Of the pool, which guards them.
  uint32_t lane = 0;
  size_t rung = 0;       // the session's
  size_t target = 0;     // of the shares
  std::shared_ptr<const Common> common, target_common;  // on these rungs; nullptr: nothing is shared
  bool holds = false;    // the shared weights
  uint64_t claimed = 0;  // bytes that the network keeps, or may keep by the end of the inference in progress
  bool cold = true;      // the kept bytes have to be read
  bool stopping = false; // told to stop, and not parked since
  std::optional<tvm::ffi::Error> broken;  // why the network was closed
  LatencyEstimate latency;
  std::optional<ShapeMix> shape_mix;
  double storage_rate = 500e6;  // bytes per second, as seen in inferences that had to read kept bytes
  double noted_at = 0;   // when an inference last ended

 private:
  const tvm::ffi::Module program_;
  std::string library_, weights_, options_;  // the last as JSON
  std::vector<ShareRung> ladder_;
  std::vector<std::string> keys_;
  std::vector<uint64_t> key_nbytes_;
  std::vector<std::vector<Resting>> resting_;  // by rung; none: not asked for yet
  int64_t smallest_budget_ = 0;
  uint64_t state_nbytes_ = 0;
  tvm::ffi::json::Array inputs_, outputs_, shapes_;
  tvm::ffi::json::Object metadata_;
  std::vector<std::vector<double>> seconds_;  // by rung and shape
  tvm::ffi::Function run_, park_, park_sharing_, make_shared_, read_ahead_, leave_lane_, cancel_, stop_, stats_, resident_, shape_of_, close_;  // of a session that is open
};

}  // namespace flexcomp
