// Reads by threads: one for each read in flight.
#pragma once

#include <optional>

#include "base/counter.h"
#include "base/sync.h"
#include "storage/byte_source.h"
#include "storage/read_queue.h"

namespace flexcomp {

class ReadThreads final : public ReadQueue {
 public:
  explicit ReadThreads(int fd);  // throws std::system_error
  ~ReadThreads() override;

  int Submit(uint32_t slot, uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  bool Ended(uint32_t slot) noexcept override { return readers_[slot].state.Get() == kEnded; }
  int64_t Await(uint32_t slot) noexcept override;

 private:
  enum State : uint32_t {
    kEnded,
    kBegun,
    kStopped
  };
  struct Reader {
    Counter state{kSpins};
    uint64_t offset = 0;
    std::byte* target = nullptr;
    size_t nbytes = 0;
    int64_t result = 0;
    std::optional<Thread> thread;
  };
  void Serve(Reader& reader) const noexcept;
  void Stop() noexcept;

  const int fd_;
  Reader readers_[ByteSource::kMostInFlight];
};

}  // namespace flexcomp
