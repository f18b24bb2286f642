/* The header alone, in C and in C++. */
#include <flexcomp.h>

static flexcomp_status ignore(void *context, const flexcomp_tensor *tensors, uint32_t count) {
  (void)context;
  return tensors != NULL && count > 0 ? FLEXCOMP_OK : FLEXCOMP_CANCELLED;
}

static int64_t nothing(void *context, uint64_t offset, void *buffer, uint64_t nbytes) {
  (void)context, (void)offset, (void)buffer, (void)nbytes;
  return 0;
}

FLEXCOMP_NETWORK(unused);

int main(void) {
  const int64_t end = 4096; /* as lseek gives it */
  const flexcomp_source sources[] = {
      FLEXCOMP_FROM_DESCRIPTOR(0, end, end), FLEXCOMP_FROM_MEMORY("", end), FLEXCOMP_FROM_READER(nothing, NULL, end)};
  const flexcomp_options options = FLEXCOMP_OPTIONS_INIT;
  const flexcomp_tensor tensor = FLEXCOMP_TENSOR(NULL, 0);
  const flexcomp_callback callback = ignore;
  return sources[2].read(NULL, 0, NULL, 0) != 0 || options.size != sizeof options || tensor.size != sizeof tensor || callback(NULL, &tensor, 1) != FLEXCOMP_OK;
}
