#include "program/shareable.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "program/signature.h"

namespace flexcomp {
namespace {

// As in flexcomp/program/digest.py.
constexpr uint64_t kLeastDigested = 24 << 10;
constexpr size_t kLetters = 22;

using Stored = std::pair<uint64_t, uint64_t>;  // first byte of the data section, bytes

std::optional<uint32_t> SixBits(char letter) {
  if (letter >= 'A' && letter <= 'Z') return letter - 'A';
  if (letter >= 'a' && letter <= 'z') return letter - 'a' + 26;
  if (letter >= '0' && letter <= '9') return letter - '0' + 52;
  if (letter == '+' || letter == '/') return letter == '+' ? 62 : 63;
  return std::nullopt;
}

std::optional<Blake2b::Digest> DigestOf(std::string_view letters) {
  Blake2b::Digest digest;
  uint32_t bits = 0, count = 0;
  size_t at = 0;
  for (const char letter : letters) {
    const auto six = SixBits(letter);
    if (!six) return std::nullopt;
    bits = bits << 6 | *six;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    if (at < digest.size()) digest[at++] = static_cast<uint8_t>(bits >> count);
  }
  return digest;
}

std::map<Stored, Blake2b::Digest> DigestsOf(const Program& program) {
  std::map<Stored, Blake2b::Digest> digests;
  const auto found = program.metadata.find("digests");
  if (found == program.metadata.end()) return digests;
  for (const Layer& layer : program.layers)
    if (layer.weights && layer.weights->stored_nbytes() >= kLeastDigested)
      digests[{layer.weights->offset, layer.weights->stored_nbytes()}];
  const std::string_view text = found->second;
  if (text.size() != digests.size() * kLetters)
    RaiseError("ArtifactError", "the program is malformed: ", text.size(), " letters are not the digests of ", digests.size(), " weights");
  size_t at = 0;
  for (auto& [stored, digest] : digests) {
    const auto read = DigestOf(text.substr(at, kLetters));
    if (!read) Raise("ArtifactError", "the program is malformed: its digests are not base64");
    digest = *read;
    at += kLetters;
  }
  std::erase_if(digests, [](const auto& entry) { return entry.second == Blake2b::Digest{}; });  // not known
  return digests;
}

uint64_t PagesAround(const FileRange& range) { return RoundUp(range.end, kPage) - range.begin / kPage * kPage; }

uint64_t RoomFor(const Layer& layer) {
  uint64_t most = kPage;
  if (layer.weights->preparation)
    for (uint32_t block = 0; block < layer.weights->blocks; ++block) most = std::max(most, PagesAround(StoredRange(layer, block, 1)));
  return most;
}

std::string KeyOf(const Layer& layer, const Blake2b::Digest& stored) {
  std::string key;
  for (const uint8_t byte : stored) key += "0123456789abcdef"[byte >> 4], key += "0123456789abcdef"[byte & 15];
  return key + ' ' + std::to_string(layer.weights->nbytes()) + ' ' + (layer.weights->preparation ? PreparationSymbolOf(layer) : "stored");
}

// The weights of a step, in the arena.
struct Taken {
  uint32_t shareable;  // or kNone
  Resting::Part part;
};

bool Meets(const Taken& taken, uint64_t low, uint64_t high) {
  return taken.part.at < high && low < taken.part.at + taken.part.nbytes;
}

// Without overlaps, ascending; false: the same address is said to hold different bytes.
bool Merge(std::vector<Resting::Part>& parts) {
  std::ranges::sort(parts, {}, &Resting::Part::at);
  std::vector<Resting::Part> merged;
  for (const Resting::Part& part : parts) {
    Resting::Part* const last = merged.empty() ? nullptr : &merged.back();
    const bool apart = last == nullptr || part.at > last->at + last->nbytes;
    const bool fits = !apart && part.offset - last->offset == part.at - last->at;
    if (!apart && !fits && part.at < last->at + last->nbytes) return false;
    if (fits) last->nbytes = std::max(last->nbytes, part.at + part.nbytes - last->at);
    else merged.push_back(part);
  }
  parts = std::move(merged);
  return true;
}

// Neighbours are one range.
std::vector<FileRange> Joined(std::vector<FileRange> ranges) {
  std::ranges::sort(ranges, {}, &FileRange::begin);
  std::vector<FileRange> joined;
  for (const FileRange& range : ranges) {
    if (!joined.empty() && joined.back().end == range.begin) joined.back().end = range.end;
    else joined.push_back(range);
  }
  return joined;
}

// Where each load brings weights that stay for all inferences; nothing: it does something else.
std::vector<FileRange> BroughtByLoads(const Rung& rung) {
  std::vector<FileRange> brought(rung.loads, FileRange{0, 0});
  rung.ForOperations(Rung::kFill, [&](const Operation& one) { brought[one.load] = {one.to, one.to + one.nbytes}; });
  rung.ForOperations(Rung::kSteady, [&](const Operation& one) { brought[one.load] = {0, 0}; });
  for (FileRange& range : brought)
    if (range.begin < rung.working) range = {0, 0};
  return brought;
}

}  // namespace

Shareables FindShareables(const Program& program) {
  Shareables found;
  found.of_layer.assign(program.layers.size(), Shareables::kNone);
  const auto digests = DigestsOf(program);
  std::map<std::string, uint32_t> numbers;
  for (uint32_t i = 0; i < program.layers.size(); ++i) {
    const Layer& layer = program.layers[i];
    if (!layer.weights) continue;
    const auto digest = digests.find({layer.weights->offset, layer.weights->stored_nbytes()});
    if (digest == digests.end()) continue;
    std::string key = KeyOf(layer, digest->second);
    const auto [entry, added] = numbers.emplace(key, static_cast<uint32_t>(found.all.size()));
    if (added) found.all.push_back({std::move(key), layer.weights->nbytes(), i, digest->second, RoomFor(layer)});
    found.of_layer[i] = entry->second;
  }
  return found;
}

uint64_t Resting::freed() const {
  uint64_t sum = 0;
  for (const FileRange& range : pages) sum += range.nbytes();
  return sum;
}

std::vector<Resting> FindResting(const Rung& rung, const Program& program, const Shareables& shareables) {
  std::vector<Taken> taken;
  std::vector<Resting> all(shareables.all.size());
  std::vector<bool> rests(shareables.all.size(), false), streams(shareables.all.size(), false);
  for (const Step& step : rung.steps) {
    const Layer& layer = program.layers[step.layer];
    if (!layer.weights) continue;
    const uint32_t shareable = shareables.of_layer[step.layer];
    const auto at = static_cast<uint64_t>(step.weights_at);
    const uint64_t block = layer.weights->block_nbytes;
    const bool stays = at >= rung.working;
    if (stays) taken.push_back({shareable, {at, step.count * block, step.first * block}});
    if (shareable == Shareables::kNone) continue;
    rests[shareable] = true;
    if (!stays || shareables.all[shareable].room > rung.working) streams[shareable] = true;
    if (stays) all[shareable].parts.push_back(taken.back().part);
  }
  const std::vector<FileRange> brought_by = BroughtByLoads(rung);
  std::vector<uint32_t> owners(rung.loads, Shareables::kNone);
  for (uint32_t i = 0; i < rung.loads; ++i) {
    const FileRange brought = brought_by[i];
    if (brought.nbytes() == 0) continue;
    uint32_t owner = Shareables::kNone;
    bool common = false;  // to several, or to weights that are not shared
    for (const Taken& one : taken) {
      if (!Meets(one, brought.begin, brought.end)) continue;
      common = common || one.shareable == Shareables::kNone || (owner != Shareables::kNone && owner != one.shareable);
      owner = one.shareable;
    }
    if (common) {
      for (const Taken& one : taken)
        if (one.shareable != Shareables::kNone && Meets(one, brought.begin, brought.end)) streams[one.shareable] = true;
    } else if (owner != Shareables::kNone) {
      owners[i] = owner;
      all[owner].loads.push_back(i);
      all[owner].pages.push_back(brought);
    }
  }
  for (Resting& one : all) one.pages = Joined(std::move(one.pages));
  // Operations that are not left out stay away from the pages that are given up, and those that are left out bring nothing else that
  // stays.
  for (const Operation& one : rung.operations) {
    const uint32_t own = owners[one.load];
    const bool reads = one.kind == Operation::Kind::kRead;
    for (uint32_t i = 0; i < all.size(); ++i)
      for (const FileRange& range : all[i].pages) {
        const auto meets = [&](uint64_t at, uint64_t nbytes) { return at < range.end && range.begin < at + nbytes; };
        if (i != own && (meets(one.to, one.nbytes) || (!reads && meets(one.from, one.from_nbytes)))) streams[i] = true;
      }
    if (own == Shareables::kNone || one.to < rung.working) continue;
    const auto holds = [&](const FileRange& range) { return range.begin <= one.to && one.to + one.nbytes <= range.end; };
    if (std::ranges::none_of(all[own].pages, holds)) streams[own] = true;
  }
  std::vector<Resting> found;
  for (uint32_t i = 0; i < all.size(); ++i) {
    Resting& one = all[i];
    if (!rests[i] || streams[i] || !Merge(one.parts)) continue;
    one.shareable = i;
    for (FileRange& range : one.pages) range = {RoundUp(range.begin, kPage), std::max(RoundUp(range.begin, kPage), range.end / kPage * kPage)};
    found.push_back(std::move(one));
  }
  return found;
}

}  // namespace flexcomp
