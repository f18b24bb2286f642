#include "storage/measure_storage.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "memory/arena.h"
#include "base/error.h"
#include "base/pages.h"
#include "storage/file_source.h"
#include "storage/loader.h"
#include "storage/read_rate.h"

namespace flexcomp {
namespace {

constexpr uint64_t kArena = 16 << 20;  // as large as budgets are
constexpr uint64_t kScatteredPart = 4;    // of the file, so much is read into small pages
constexpr uint64_t kSmallArena = 1 << 20;  // in small pages, of which a device is told one by one
constexpr uint64_t kLarge = 1 << 20, kSmall = 16 << 10;
constexpr uint32_t kSmallReads = 32;

using Clock = std::chrono::steady_clock;

// All over a file of so many bytes, each begun when the one before is there.
std::vector<Operation> SmallReads(uint64_t file_nbytes) {
  std::vector<Operation> reads(kSmallReads);
  const uint64_t places = file_nbytes / kSmall;
  for (uint32_t number = 0; number < kSmallReads; ++number)
    reads[number] = {.after = static_cast<int32_t>(number), .from = number * 7919 % places * kSmall, .to = number * kSmall, .nbytes = kSmall};
  return reads;
}

// The median time of these reads.
double SmallReadSeconds(Loader& loader, std::span<const Operation> reads, std::byte* arena) {
  loader.Open({.first = {.operations = reads}}, Places(arena), kArena);
  loader.Start();
  for (uint32_t number = 1; number <= reads.size() && loader.Await(number); ++number) loader.Computed(number);
  loader.Finish();
  loader.GiveUp();  // waits for the thread, which still looks at these reads when the last one is there
  std::vector<Span> times(loader.times().begin(), loader.times().end());
  const auto nanoseconds = [](const Span& span) { return span.end - span.begin; };
  const auto middle = times.begin() + times.size() / 2;
  std::ranges::nth_element(times, middle, {}, nanoseconds);
  return static_cast<double>(nanoseconds(*middle)) * 1e-9;
}

}  // namespace

StorageRates MeasureStorage(const std::string& path, const CpuSet& cpus, double seconds) {
  auto source = std::make_unique<FileSource>(path, true);
  const uint64_t nbytes = source->nbytes() / kPage * kPage;
  if (nbytes < kLarge) RaiseError("ArtifactError", path, " has ", nbytes, " bytes: too few to measure storage with");
  WeightsFile file(path, std::move(source));
  const Arena arena(kArena);
  std::vector<std::unique_ptr<Arena>> scattered;  // all kept: the pages of one may happen to lie in a row
  std::vector<double> scattered_rates;
  const std::vector<Operation> small = SmallReads(nbytes);
  // Waiting by sleeping costs nothing with reads of this size, and a busy system prefers threads that slept.
  Loader loader(file, cpus, false);
  loader.NoteTimes(small.size());
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  StorageRates rates{0, 0, std::numeric_limits<double>::infinity(), file.direct()};
  const auto rate = [&](const Arena& to, uint64_t size, uint64_t read) {
    return *MeasureReadRate(loader, {to.base(), size}, nbytes, kLarge, read);
  };
  do {  // in turns: a moment in which others are busy strikes all kinds
    rates.bytes_per_s = std::max(rates.bytes_per_s, rate(arena, kArena, nbytes));
    scattered.push_back(std::make_unique<Arena>(kSmallArena));
    scattered_rates.push_back(rate(*scattered.back(), kSmallArena, nbytes / kScatteredPart));
    rates.latency_s = std::min(rates.latency_s, SmallReadSeconds(loader, small, arena.base()));
  } while (Clock::now() < end);
  const auto middle = scattered_rates.begin() + scattered_rates.size() / 2;
  std::ranges::nth_element(scattered_rates, middle);
  rates.small_pages_bytes_per_s = std::min(*middle, rates.bytes_per_s);
  rates.latency_s = std::max(0.0, rates.latency_s - static_cast<double>(kSmall) / rates.bytes_per_s);
  return rates;
}

}  // namespace flexcomp
