// Prepares weights by the kernels of a library.
#pragma once

#include <tvm/ffi/c_api.h>

#include <atomic>
#include <string>

#include "kernels/call_table.h"
#include "kernels/processor.h"
#include "storage/preparer.h"

namespace flexcomp {

// The message of a kernel's error, which ends here; may be empty.
std::string TakeReason(TVMFFIObjectHandle raised);

class KernelPreparer final : public Preparer {
 public:
  // All arguments must outlive the preparer.
  KernelPreparer(const Program& program, const CallTable& calls, Processor& processor)
      : program_(program), calls_(calls), processor_(processor) {}
  ~KernelPreparer() override;
  KernelPreparer(const KernelPreparer&) = delete;
  KernelPreparer& operator=(const KernelPreparer&) = delete;

  Work WorkOf(uint32_t load) const noexcept override;
  int Prepare(uint32_t load, uint32_t part) noexcept override;
  std::string Fault(uint32_t load) override;

 private:
  const Program& program_;
  const CallTable& calls_;
  Processor& processor_;
  std::atomic<TVMFFIObjectHandle> raised_{nullptr};  // of the last kernel that failed: raised on one thread, told on another
};

}  // namespace flexcomp
