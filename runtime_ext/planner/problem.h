// The data of the planner's inner loops: the numbers of flexcomp/plan/problem.py, without names.
//
// Every loop in this folder repeats an inner loop of the Python planner and gives the same results, bit for bit: the same
// operations on doubles in the same order (the compiler must not contract operations), whole numbers in 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flexcomp::planner {

constexpr int64_t kPage = 4096, kHugePage = 2 << 20;  // bytes

// As ctypes.Structure of flexcomp/plan/native.py, field by field.
struct Storage {
  double bandwidth, overhead_s, wake_s, disturbance, together, latency_s, cached, core_contention, small_pages;
  int64_t cache;  // bytes
  // Not of the storage, but of the simulator's model.
  double in_cache;  // part of the disturbance that a load in the caches still causes
  double same_s;    // inferences that differ by less are the same
  int64_t most_laps;
};

struct Weights {
  int64_t offset, blocks, block_nbytes;  // no blocks: a layer without weights
  int64_t form;                          // 0: as in the file

  bool operator==(const Weights&) const = default;
};

// The source of prepared weights.
struct Stored {
  int64_t offset, block_nbytes;         // no bytes: weights are not prepared
  int64_t channels, width, prepared;    // of the layer, of a stored block, of a prepared one
};

struct Layer {
  double seconds, slice_s;
  double load_cost;  // of a byte of weights, relative to reading a byte; 1 without weights
  double prepare_s;  // of a byte of weights
  Weights weights;
  Stored stored;
  int64_t finest;  // bytes of the largest segment when the layer is cut block by block; 0 without weights
  size_t twin;     // the first layer that has the same weights

  bool weighted() const { return weights.blocks > 0; }
  int64_t blocks() const { return weighted() ? weights.blocks : 1; }
};

// Rows of int64 on the other side.
struct Step {
  int64_t layer, first, count;
};

struct Problem {
  std::vector<Layer> layers;
  Storage storage;
  bool shares = false;  // whether some layers have the same weights

  // Of a piece or segment whose first step is steps[first]: all its bytes have one price.
  double LoadCost(const std::vector<Step>& steps, int64_t first) const { return layers[steps[first].layer].load_cost; }
};

struct Segment {
  int64_t step, source, nbytes, address, after, pinned, count, ahead;
  int64_t kept_at;  // -1: its stored weights are not kept
  int64_t form;     // of the weights
  bool kept() const { return kept_at >= 0; }
};

// A step whose weights an earlier load has brought for another layer with the same weights.
struct Again {
  int64_t step, load;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<Segment> segments;
  std::vector<int64_t> need;  // per step
  std::vector<Again> again;   // steps ascend
  int64_t arena = 0;          // bytes
};

}  // namespace flexcomp::planner
