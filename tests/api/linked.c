/* Two networks that are linked with the program: linked WEIGHTS-OF-TINY PICTURE WEIGHTS-OF-SMALL. Prints the outputs' bytes. */
#include <flexcomp.h>
#include <stdio.h>

FLEXCOMP_NETWORK(tiny);
FLEXCOMP_NETWORK(small_1);

static int fail(void) { return fprintf(stderr, "%s: %s\n", flexcomp_version(), flexcomp_message()), 1; }

static flexcomp_status fill(void *context, const flexcomp_tensor *inputs, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i)
    if (fread(inputs[i].data, 1, inputs[i].nbytes, context) != inputs[i].nbytes) return FLEXCOMP_ERROR_INPUT;
  return FLEXCOMP_OK;
}

static flexcomp_status drain(void *context, const flexcomp_tensor *outputs, uint32_t count) {
  (void)context;
  for (uint32_t i = 0; i < count; ++i) fwrite(outputs[i].data, 1, outputs[i].nbytes, stdout);
  return FLEXCOMP_OK;
}

int main(int argc, char **argv) {
  flexcomp_options options = FLEXCOMP_OPTIONS_INIT;
  flexcomp_session *tiny, *small;
  FILE *picture = argc == 4 ? fopen(argv[2], "rb") : NULL;
  if (!picture) return 2;
  if (flexcomp_open_linked(&flexcomp_network_tiny, NULL, &tiny) != FLEXCOMP_ERROR_INPUT) return 3; /* where are the weights? */
  if (flexcomp_open_linked(NULL, &options, &tiny) != FLEXCOMP_ERROR_INPUT) return 3;
  options.weights = argv[3];
  if (flexcomp_open_linked(&flexcomp_network_tiny, &options, &tiny) != FLEXCOMP_ERROR_ARTIFACT) return 3; /* another network's */
  if (flexcomp_open_linked(&flexcomp_network_small_1, &options, &small)) return fail();
  options.weights = argv[1];
  options.budget = FLEXCOMP_BUDGET_SMALLEST;
  if (flexcomp_open_linked(&flexcomp_network_tiny, &options, &tiny)) return fail();
  if (flexcomp_run_in_place(small, NULL, NULL, NULL) || flexcomp_run_in_place(tiny, fill, drain, picture)) return fail();
  return flexcomp_close(tiny) || flexcomp_close(small);
}
