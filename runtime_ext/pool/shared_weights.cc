#include "pool/shared_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "pool/network.h"

namespace flexcomp {
namespace {

struct Users {
  uint32_t count = 0;
  uint64_t nbytes = 0;
};

using UsersOf = std::map<std::string_view, Users>;  // by key

// The networks in which weights stay whole, of those that several networks have.
UsersOf FindUsers(const Networks& networks, const Rungs& rungs) {
  UsersOf all;
  for (const auto& network : networks)
    if (!network->broken)
      for (const std::string& key : network->keys()) ++all[key].count;
  std::erase_if(all, [](const auto& entry) { return entry.second.count < 2; });
  for (auto& [key, users] : all) users.count = 0;
  if (all.empty()) return all;
  for (size_t i = 0; i < networks.size(); ++i) {
    if (networks[i]->broken) continue;
    for (const Network::Resting& one : networks[i]->RestingOn(rungs[i])) {
      const auto found = all.find(networks[i]->keys()[one.number]);
      if (found == all.end()) continue;
      ++found->second.count;
      found->second.nbytes = networks[i]->SharedNbytes(one.number);
    }
  }
  return all;
}

bool Has(const std::shared_ptr<const Common>& common, uint32_t number) {
  return common && std::ranges::any_of(common->weights, [&](const auto& entry) { return entry.first == number; });
}

bool Same(const std::shared_ptr<const Common>& one, const Common::Weights& weights) {
  return one && one->weights == weights;
}

// Finds memory for new weights, one after the other.
void Place(const std::vector<SharedWeights*>& added) {
  uint64_t end = 0;
  for (SharedWeights* const one : added) {
    one->at = end;
    end += one->nbytes;
  }
  if (end == 0) return;
  const auto memory = std::make_shared<LaneMemory>(end);
  for (SharedWeights* const one : added) one->memory = memory;
}

tvm::ffi::Bytes PlacesOf(const Common::Weights& weights) {
  std::string text;
  for (const auto& [number, shared] : weights) {
    const uint64_t place[2] = {number, reinterpret_cast<uintptr_t>(shared->base())};
    text.append(reinterpret_cast<const char*>(place), sizeof(place));
  }
  return tvm::ffi::Bytes(text);
}

}  // namespace

Common::Common(Weights given, uint64_t kept) : weights(std::move(given)), kept(kept), places(PlacesOf(weights)) {}

uint64_t Common::nbytes() const noexcept {
  uint64_t sum = 0;
  for (const auto& [number, shared] : weights) sum += shared->nbytes;
  return sum;
}

uint64_t SavedNbytes(const Networks& networks, const Rungs& rungs) {
  const UsersOf users = FindUsers(networks, rungs);
  uint64_t apart = 0, together = 0;
  for (const auto& [key, one] : users)
    if (one.count > 1) together += one.nbytes;
  if (together == 0) return 0;
  for (size_t i = 0; i < networks.size(); ++i) {
    if (networks[i]->broken) continue;
    const uint64_t kept = networks[i]->ladder()[rungs[i]].kept;
    uint64_t freed = 0;
    for (const Network::Resting& one : networks[i]->RestingOn(rungs[i])) {
      const auto found = users.find(networks[i]->keys()[one.number]);
      if (found != users.end() && found->second.count > 1) freed += one.freed;
    }
    apart += kept;
    together += WholePages(kept - freed);
  }
  return apart > together ? apart - together : 0;
}

Commons ShareWeights(const Networks& networks, const Rungs& rungs, bool keeps) {
  const UsersOf users = FindUsers(networks, rungs);
  std::map<std::string_view, std::shared_ptr<SharedWeights>> known;
  for (const auto& network : networks)
    for (const auto& common : {network->common, network->target_common})
      if (common)
        for (const auto& [number, shared] : common->weights) known[shared->key] = shared;
  std::vector<Common::Weights> all(networks.size());
  std::vector<uint64_t> freed(networks.size(), 0);
  std::vector<SharedWeights*> added;
  for (size_t i = 0; i < networks.size(); ++i) {
    Network& network = *networks[i];
    if (network.broken || (users.empty() && !(keeps && network.target_common))) continue;
    const bool goes_on = keeps && rungs[i] == network.target;
    for (const Network::Resting& one : network.RestingOn(rungs[i])) {
      const std::string& key = network.keys()[one.number];
      const auto found = users.find(key);
      const bool common = found != users.end() && found->second.count > 1;
      if (!common && !(goes_on && Has(network.target_common, one.number))) continue;
      std::shared_ptr<SharedWeights>& shared = known[key];
      if (!shared) {
        shared = std::make_shared<SharedWeights>(key, network.SharedNbytes(one.number));
        added.push_back(shared.get());
      }
      all[i].emplace_back(one.number, shared);
      freed[i] += one.freed;
    }
  }
  Place(added);
  Commons commons;
  for (size_t i = 0; i < networks.size(); ++i) {
    Network& network = *networks[i];
    auto& made = commons.emplace_back();
    if (all[i].empty()) continue;
    made = rungs[i] == network.target && Same(network.target_common, all[i])
               ? network.target_common
               : std::make_shared<const Common>(std::move(all[i]), WholePages(network.ladder()[rungs[i]].kept - freed[i]));
  }
  return commons;
}

uint64_t CommonNbytes(const Commons& commons) {
  std::set<const SharedWeights*> counted;
  uint64_t sum = 0;
  for (const auto& common : commons)
    if (common)
      for (const auto& [number, shared] : common->weights)
        if (counted.insert(shared.get()).second) sum += shared->nbytes;
  return sum;
}

}  // namespace flexcomp
