// Whether a thread that steps aside leaves its core, and may run on all its cores as before: the exit status.
#include <sched.h>

#include "threads/cpu_set.h"

int main() {
  using namespace flexcomp;
  const auto allowed = CpuSet::OfThisThread();
  int stayed = 0;
  for (int round = 0; round < 100; ++round) {
    const int cpu = ::sched_getcpu();
    StepAside(cpu);
    stayed += ::sched_getcpu() == cpu;
    StepAside(-1);
    if (CpuSet::OfThisThread()->ToString() != allowed->ToString()) return 1;
  }
  // The system may have brought it back, but not often. Where there is one core it stays.
  return allowed->count() == 1 ? stayed != 100 : stayed > 50;
}
