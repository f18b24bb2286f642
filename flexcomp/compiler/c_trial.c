/* Runs a kernel twice, its tasks in both orders. Defined before: FUNCTION, TASKS, SECONDS, TENSORS, ARGUMENTS.
 *
 * Each tensor begins at a multiple of 64 bytes and ends within 64 bytes of a page that cannot be touched; bytes around it are
 * checked. Results and scratch are filled with other bytes for each run: an element of a result that has these in both was not
 * written. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct tensor {
  const char *name;
  size_t nbytes;
  char role; /* of: input, result, scratch */
  int is_float, itemsize;
  unsigned char *low, *data, *high, *first; /* of the pages that may be touched; results of the first run */
};

static struct tensor tensors[] = TENSORS;
enum { COUNT = sizeof tensors / sizeof *tensors };
enum { GUARD = 1 << 24 }; /* bytes before and after a tensor's pages that cannot be touched */
static const unsigned char AROUND = 0xC3;

void FUNCTION();

static void *trial_at(int i) { return tensors[i].data; }

static void trial_fail(const char *what, const struct tensor *tensor) {
  printf("%s %s\n", what, tensor->name);
  fflush(stdout);
  _exit(1);
}

static void trial_fault(int number, siginfo_t *info, void *context) {
  const unsigned char *where = info->si_addr;
  (void)context;
  if (number == SIGALRM) _exit(0);
  for (int i = 0; number == SIGSEGV && i < COUNT; ++i) {
    if (where >= tensors[i].high && where < tensors[i].high + GUARD) trial_fail("reads or writes after the end of", &tensors[i]);
    if (where < tensors[i].low && where >= tensors[i].low - GUARD) trial_fail("reads or writes before the start of", &tensors[i]);
  }
  printf("ends the process by signal %d\n", number);
  fflush(stdout);
  _exit(1);
}

static void trial_place(struct tensor *tensor) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (tensor->nbytes + 64 + page - 1) / page * page;
  unsigned char *memory = mmap(NULL, pages + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory + GUARD, pages, PROT_READ | PROT_WRITE)) _exit(0); /* too large to try */
  tensor->low = memory + GUARD;
  tensor->high = tensor->low + pages;
  tensor->data = tensor->high - (tensor->nbytes + 63) / 64 * 64;
  if (tensor->role == 'r' && !(tensor->first = malloc(tensor->nbytes + 1))) _exit(0);
}

static void trial_fill(struct tensor *tensor, unsigned char byte) {
  uint32_t state = 1;
  memset(tensor->low, AROUND, (size_t)(tensor->high - tensor->low));
  memset(tensor->data, tensor->role == 'i' ? 0 : tensor->role == 'r' ? byte : ~byte, tensor->nbytes);
  if (tensor->role != 'i' || !tensor->is_float) return; /* integers are 0, which is an index of every axis */
  for (size_t i = 0; i < tensor->nbytes / (size_t)tensor->itemsize; ++i) {
    state = state * 1664525u + 1013904223u;
    double value = state / 2147483648.0 - 1;
    if (tensor->itemsize == 4) ((float *)tensor->data)[i] = (float)value;
    if (tensor->itemsize == 8) ((double *)tensor->data)[i] = value;
  }
}

static uint64_t trial_sum(const struct tensor *tensor) {
  uint64_t hash = 1469598103934665603u;
  for (size_t i = 0; i < tensor->nbytes; ++i) hash = (hash ^ tensor->data[i]) * 1099511628211u;
  return hash;
}

static void trial_run(unsigned char byte, int backwards) {
  uint64_t before[COUNT];
  for (int i = 0; i < COUNT; ++i) trial_fill(&tensors[i], byte), before[i] = trial_sum(&tensors[i]);
  for (int32_t task = 0; task < TASKS; ++task)
    FUNCTION(backwards ? TASKS - 1 - task : task, (int32_t)TASKS, ARGUMENTS);
  for (int i = 0; i < COUNT; ++i) {
    for (unsigned char *p = tensors[i].low; p < tensors[i].data; ++p)
      if (*p != AROUND) trial_fail("writes before the start of", &tensors[i]);
    for (unsigned char *p = tensors[i].data + tensors[i].nbytes; p < tensors[i].high; ++p)
      if (*p != AROUND) trial_fail("writes after the end of", &tensors[i]);
    if (tensors[i].role == 'i' && trial_sum(&tensors[i]) != before[i]) trial_fail("changes", &tensors[i]);
  }
}

static int trial_is_left(const unsigned char *element, int itemsize, unsigned char byte) {
  for (int i = 0; i < itemsize; ++i)
    if (element[i] != byte) return 0;
  return 1;
}

int main(void) {
  struct sigaction action = {.sa_sigaction = trial_fault, .sa_flags = SA_SIGINFO};
  const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; ++i) sigaction(signals[i], &action, NULL);
  alarm(SECONDS);
  for (int i = 0; i < COUNT; ++i) trial_place(&tensors[i]);
  trial_run(0xA5, 0);
  for (int i = 0; i < COUNT; ++i)
    if (tensors[i].role == 'r') memcpy(tensors[i].first, tensors[i].data, tensors[i].nbytes);
  trial_run(0x5A, 1);
  for (int i = 0; i < COUNT; ++i) {
    struct tensor *tensor = &tensors[i];
    if (tensor->role != 'r') continue;
    for (size_t place = 0; place < tensor->nbytes; place += (size_t)tensor->itemsize)
      if (trial_is_left(tensor->first + place, tensor->itemsize, 0xA5) && trial_is_left(tensor->data + place, tensor->itemsize, 0x5A)) {
        printf("leaves element %zu of %s unwritten\n", place / (size_t)tensor->itemsize, tensor->name);
        return 1;
      }
    if (memcmp(tensor->first, tensor->data, tensor->nbytes))
      trial_fail(TASKS > 1 ? "reads what it did not write, or depends on the order of its tasks, for" : "reads what it did not write, for",
           tensor);
  }
  return 0;
}
