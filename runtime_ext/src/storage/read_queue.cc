#include "storage/read_queue.h"

#include <system_error>

#include "storage/io_uring.h"
#include "storage/read_threads.h"

namespace flexcomp {

std::unique_ptr<ReadQueue> MakeReadQueue(int fd) {
  if (auto ring = IoUring::Make(fd)) return ring;
  try {
    return std::make_unique<ReadThreads>(fd);
  } catch (const std::system_error&) {
    return nullptr;
  }
}

}  // namespace flexcomp
