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
  KernelPreparer(const Program& program, const Kernels& kernels, Processor& processor)
      : program_(program), kernels_(kernels), processor_(processor) {}
  ~KernelPreparer() override;
  KernelPreparer(const KernelPreparer&) = delete;
  KernelPreparer& operator=(const KernelPreparer&) = delete;

  // From now on addresses are of this arena; not while anything is prepared.
  void Use(Places arena) noexcept { arena_ = arena; }

  uint32_t PartsOf(const Operation& operation) const noexcept override;
  int Prepare(const Operation& operation, uint32_t part) noexcept override;
  std::string Fault(const Operation& operation) override;

 private:
  const Program& program_;
  const Kernels& kernels_;
  Processor& processor_;
  Places arena_;
  std::atomic<TVMFFIObjectHandle> raised_{nullptr};  // of the last kernel that failed: raised on one thread, told on another
};

}  // namespace flexcomp
