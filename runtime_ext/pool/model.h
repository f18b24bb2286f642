// The models of a pool, and how the budget is shared among them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pool/estimates.h"
#include "pool/network.h"
#include "pool/shared_weights.h"
#include "pool/shares.h"

namespace flexcomp {

struct ModelOptions {
  double urgency = 1;               // the cost of a second of waiting for the model
  std::optional<double> rate;       // requests in a second; none: learnt
  std::optional<double> deadline_s; // of requests that give none
  uint64_t keep = UINT64_MAX;       // bytes, the most that the model keeps between inferences
};

struct Model {
  Model(std::string name, const ModelOptions& options, double now) : name(std::move(name)), options(options), rate(now) {}

  double RateAt(double now) const noexcept { return options.rate ? *options.rate : rate.Likely(now); }

  const std::string name;
  const ModelOptions options;
  std::shared_ptr<Network> network;
  RateEstimate rate;     // of requests, refused ones included
  bool leaving = false;  // about to be removed: takes no requests
  uint64_t requests = 0, completed = 0, failed = 0, refused = 0, missed = 0, dropped = 0, cancelled = 0, restarts = 0, waiting = 0, running = 0;
  double wait_s = 0, run_s = 0;  // of the last one
  double total_run_s = 0, total_stall_s = 0;
};

// Which models there are, and of which networks. A change of the pool changes a copy, which takes the place of the roster when
// nothing can fail any more.
class Roster {
 public:
  using Models = std::map<uint32_t, std::shared_ptr<Model>>;  // by number, in the order of their addition
  struct Targets {
    Rungs rungs;
    Commons common;
  };

  const Networks& networks() const noexcept { return networks_; }
  const Models& models() const noexcept { return models_; }
  // nullptr: there is no such model, or the model is about to be removed.
  std::shared_ptr<Model> Find(uint32_t number) const noexcept;
  // The number of the model; throws InputError where there is none of this name.
  uint32_t NumberOf(const std::string& name) const;
  std::optional<uint32_t> FindNumber(const std::string& name) const noexcept;

  void Insert(uint32_t number, std::shared_ptr<Model> model);  // its network is the last one if that is new
  void Erase(uint32_t number);                                 // and the network, if no other model has the same
  void Swap(Roster& other) noexcept { networks_.swap(other.networks_), models_.swap(other.models_); }

  // Throws BudgetError where `budget` is too small.
  Targets Share(uint64_t budget, bool by_swapnet) const;
  // None: `budget` is less than `least`, which is enough. Weights that networks share count once; `thorough`: their rungs are chosen
  // with more care, which may take some ten milliseconds.
  std::optional<Targets> FindShares(uint64_t budget, bool by_swapnet, bool thorough, double now, uint64_t& least) const;
  // Whether `found` is so much better than the targets in use that changing pays.
  bool Pays(const Targets& found, double now) const;

 private:
  Targets TargetsOf(Rungs rungs, uint64_t budget) const;
  uint64_t NbytesOf(const Targets& targets) const;  // of all lanes and networks
  double DeadlineOf(const Network& network) const noexcept;  // the shortest of its models'; infinite: none
  // `kept`: the rungs that each of them chooses from. With those only that meet deadlines, where some do.
  std::vector<ShareModel> ShareModels(double now, bool meet_deadlines, std::vector<Rungs>& kept) const;

  Networks networks_;  // readers of their memory keep them meanwhile
  Models models_;
};

}  // namespace flexcomp
