/* The header alone, in C and in C++. */
#include <flexcomp.h>

static flexcomp_status ignore(void *context, const flexcomp_tensor *tensors, uint32_t count) {
  (void)context;
  return tensors != NULL && count > 0 ? FLEXCOMP_OK : FLEXCOMP_CANCELLED;
}

int main(void) {
  const flexcomp_options options = FLEXCOMP_OPTIONS_INIT;
  const flexcomp_tensor tensor = FLEXCOMP_TENSOR(NULL, 0);
  const flexcomp_callback callback = ignore;
  return options.size != sizeof options || tensor.size != sizeof tensor || callback(NULL, &tensor, 1) != FLEXCOMP_OK;
}
