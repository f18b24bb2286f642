// How a process steers the library that is preloaded into it.
#pragma once

#include <cstdint>

extern "C" {

// What is known of the call that failed, as soon as it does.
struct FaultedCall {
  const char* name;  // nullptr: none has
  int variants;      // in how many ways it can fail
};

// Counts calls from now on and lets the n-th fail, in the way number `variant` of those it can fail in; 0: none.
void fault_arm(uint64_t n, int variant, volatile FaultedCall* call);
void fault_disarm();
// Whether calls of this thread count. They do unless it has said otherwise.
void fault_step(bool into);
uint64_t fault_count();  // calls since they are counted

}  // extern "C"
