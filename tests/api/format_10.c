/* The kernels of the program in format_10.zip, and the network that links them, as `flexcomp build -o NAME.o` makes it. */
#include "linked_network.h"

struct any {
  int32_t kind, zero;
  union {
    int64_t integer;
    struct {
      float *data;
    } *tensor;
  };
};

enum {
  N = 64,
  WIDTH = 32
};

/* A matrix in blocks of 32 columns: y = max(x, 0) * w for `count` blocks from `first` on, which begin at w. */
static int product(void *self, const struct any *args, int32_t count, struct any *result) {
  const float *x = args[0].tensor->data, *w = args[1].tensor->data;
  float *y = args[4].tensor->data + args[2].integer * WIDTH;
  (void)self, (void)count, (void)result;
  for (int64_t i = 0; i < args[3].integer * WIDTH; ++i) {
    y[i] = 0;
    for (int k = 0; k < N; ++k)
      if (x[k] > 0) y[i] += x[k] * w[(i / WIDTH * N + k) * WIDTH + i % WIDTH];
  }
  return 0;
}

static int scaled(void *self, const struct any *args, int32_t count, struct any *result) {
  (void)self, (void)count, (void)result;
  for (int i = 0; i < N; ++i) args[2].tensor->data[i] = args[0].tensor->data[i] * args[1].tensor->data[i];
  return 0;
}

/* The third tensor: half of the first, and the second. The fourth is scratch. */
static int sum(void *self, const struct any *args, int32_t count, struct any *result) {
  (void)self, (void)count, (void)result;
  for (int i = 0; i < N; ++i) args[3].tensor->data[i] = args[0].tensor->data[i] * 0.5f;
  for (int i = 0; i < N; ++i) args[2].tensor->data[i] = args[3].tensor->data[i] + args[1].tensor->data[i];
  return 0;
}

static const unsigned char program[] = {PROGRAM};
static void *launch, *alloc, *release; /* set by a session, for kernels with threads and workspaces */
static const struct flexcomp_symbol symbols[] = {
    {SUM, (void *)&sum},
    {SCALED, (void *)&scaled},
    {PRODUCT, (void *)&product},
    {"flexcomp_alloc_workspace", &alloc},
    {"flexcomp_free_workspace", &release},
    {"flexcomp_parallel_launch", &launch},
};
const struct flexcomp_network flexcomp_network_old = {sizeof flexcomp_network_old, "flexcomp.program.10", program, sizeof program, symbols, 6};
