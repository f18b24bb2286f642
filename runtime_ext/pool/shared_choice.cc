#include "pool/shared_choice.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "pool/network.h"

namespace flexcomp {
namespace {

constexpr uint64_t kMostPairs = 1 << 18;  // of rungs that are looked at

// A rung that a model may take, with keys that other models have, too.
struct Candidate {
  ShareRung rung;  // with the cost for its seconds
  uint32_t number;
  std::vector<std::pair<uint32_t, uint64_t>> shared;  // key, freed bytes
};

struct Key {
  uint32_t models = 0;
  uint64_t nbytes = 0;
  // Of all models but two.
  uint32_t users = 0;
  uint64_t freed = 0;
};

class Improvement {
 public:
  Improvement(const Networks& networks, const std::vector<ShareModel>& models, const std::vector<Rungs>& among, const Rungs& rungs) {
    std::map<std::string_view, uint32_t> numbers;
    for (const auto& network : networks) {
      auto& own = own_.emplace_back();
      if (network->broken) continue;
      for (uint32_t i = 0; i < network->keys().size(); ++i) {
        const auto [entry, added] = numbers.emplace(network->keys()[i], static_cast<uint32_t>(keys_.size()));
        if (added) keys_.push_back({.nbytes = network->SharedNbytes(i)});
        ++keys_[entry->second].models;
        own.push_back(entry->second);
      }
    }
    for (size_t i = 0; i < models.size(); ++i) {
      auto& candidates = candidates_.emplace_back();
      for (size_t j = 0; j < models[i].rungs.size(); ++j) {
        Candidate candidate{models[i].rungs[j], among[i][j], {}};
        candidate.rung.seconds *= models[i].weight;
        if (!networks[i]->broken)
          for (const Network::Resting& one : networks[i]->RestingOn(candidate.number))
            if (const uint32_t key = numbers.at(networks[i]->keys()[one.number]); keys_[key].models > 1) candidate.shared.emplace_back(key, one.freed);
        candidates.push_back(std::move(candidate));
      }
      chosen_.push_back(&*std::ranges::find(candidates, rungs[i], &Candidate::number));
      lanes_.push_back(models[i].lane);
    }
  }

  void Run(uint64_t budget) {
    for (bool better = true; std::exchange(better, false);)
      for (size_t i = 0; i < candidates_.size(); ++i)
        for (size_t j = i + 1; j < candidates_.size(); ++j) {
          looked_at_ += candidates_[i].size() * candidates_[j].size();
          if (looked_at_ > kMostPairs) return;
          if (Meet(i, j)) better = Improve(i, j, budget) || better;
        }
  }

  uint32_t number(size_t model) const { return chosen_[model]->number; }

 private:
  bool Meet(size_t i, size_t j) const {
    return std::ranges::any_of(own_[i], [&](uint32_t key) { return std::ranges::find(own_[j], key) != own_[j].end(); });
  }

  // Bytes that the others need, and the working ranges of their lanes.
  uint64_t LookAtOthers(size_t i, size_t j) {
    for (Key& key : keys_) key.users = 0, key.freed = 0;
    uint64_t kept = 0;
    working_.assign(candidates_.size(), 0);
    for (size_t other = 0; other < chosen_.size(); ++other) {
      if (other == i || other == j) continue;
      const Candidate& candidate = *chosen_[other];
      kept += candidate.rung.kept;
      working_[lanes_[other]] = std::max(working_[lanes_[other]], candidate.rung.working);
      for (const auto& [key, freed] : candidate.shared) Add(key, freed);
    }
    uint64_t all = kept;
    for (const Key& key : keys_)
      if (key.users > 1) all -= key.freed - key.nbytes;
    for (const uint64_t working : working_) all += working;
    return all;
  }

  void Add(uint32_t key, uint64_t freed) {
    ++keys_[key].users;
    keys_[key].freed += freed;
  }

  // Bytes more with a candidate in addition; its keys count from now on.
  int64_t Count(const Candidate& candidate) {
    auto more = static_cast<int64_t>(candidate.rung.kept);
    for (const auto& [key, freed] : candidate.shared) {
      const Key before = keys_[key];
      Add(key, freed);
      more -= Saved(keys_[key]) - Saved(before);
    }
    return more;
  }
  static int64_t Saved(const Key& key) {
    return key.users > 1 ? static_cast<int64_t>(key.freed) - static_cast<int64_t>(key.nbytes) : 0;
  }
  void Discount(const Candidate& candidate) {
    for (const auto& [key, freed] : candidate.shared) --keys_[key].users, keys_[key].freed -= freed;
  }
  uint64_t Widen(std::vector<uint64_t>& working, size_t model, const Candidate& candidate) const {
    uint64_t& most = working[lanes_[model]];
    const uint64_t more = candidate.rung.working > most ? candidate.rung.working - most : 0;
    most += more;
    return more;
  }

  bool Improve(size_t i, size_t j, uint64_t budget) {
    const auto others = static_cast<int64_t>(LookAtOthers(i, j));
    const double before = chosen_[i]->rung.seconds + chosen_[j]->rung.seconds;
    double best = before * (1 - 1e-9);
    bool better = false;
    std::vector<uint64_t> with_one, with_both;
    for (const Candidate& one : candidates_[i]) {
      if (one.rung.seconds >= best) continue;
      with_one = working_;
      const int64_t with = others + Count(one) + static_cast<int64_t>(Widen(with_one, i, one));
      for (const Candidate& other : candidates_[j]) {
        const double cost = one.rung.seconds + other.rung.seconds;
        if (cost >= best) continue;
        with_both = with_one;
        const int64_t all = with + Count(other) + static_cast<int64_t>(Widen(with_both, j, other));
        Discount(other);
        if (all > static_cast<int64_t>(budget)) continue;
        best = cost;
        better = true;
        chosen_[i] = &one;
        chosen_[j] = &other;
      }
      Discount(one);
    }
    return better;
  }

  std::vector<Key> keys_;
  std::vector<std::vector<uint32_t>> own_;    // keys of each model
  std::vector<std::vector<Candidate>> candidates_;  // of each model
  std::vector<const Candidate*> chosen_;
  std::vector<uint32_t> lanes_;
  std::vector<uint64_t> working_;  // of the lanes of all models but two
  uint64_t looked_at_ = 0;
};

}  // namespace

void ImproveShared(const Networks& networks, const std::vector<ShareModel>& models, const std::vector<Rungs>& among, uint64_t budget,
                   Rungs& rungs) {
  Improvement improvement(networks, models, among, rungs);
  improvement.Run(budget);
  for (size_t i = 0; i < rungs.size(); ++i) rungs[i] = improvement.number(i);
}

}  // namespace flexcomp
