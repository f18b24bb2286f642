// How a process steers the library that is preloaded into it.
#pragma once

#include <cstdint>

extern "C" {

// Counts calls from now on and lets the n-th fail, in the way number `variant` of those it can fail in; 0: none.
void fault_arm(uint64_t n, int variant);
void fault_disarm();
// Whether calls of this thread count. They do unless it has said otherwise.
void fault_step(bool into);
uint64_t fault_count();     // calls since they are counted
const char* fault_name();   // the call that failed; nullptr: none has
int fault_variants();       // in how many ways it can fail

}  // extern "C"
