/* Classifies a picture in 12 MB: classify LIBRARY PICTURE, where PICTURE holds float32 numbers as the network takes them.
 *
 *     cc classify.c $(pkg-config --cflags --libs flexcomp) -o classify */
#include <flexcomp.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *picture;

static flexcomp_status fill(void *context, const flexcomp_tensor *inputs, uint32_t count) {
  (void)context;
  if (count != 1 || inputs[0].dtype != FLEXCOMP_FLOAT32) return FLEXCOMP_ERROR_INPUT;
  return fread(inputs[0].data, 1, inputs[0].nbytes, picture) == inputs[0].nbytes ? FLEXCOMP_OK : FLEXCOMP_ERROR_INPUT;
}

static flexcomp_status drain(void *context, const flexcomp_tensor *outputs, uint32_t count) {
  const float *scores = outputs[0].data;
  size_t best = 0;
  (void)context, (void)count;
  for (size_t i = 1; i < outputs[0].nbytes / sizeof *scores; ++i)
    if (scores[i] > scores[best]) best = i;
  printf("class %zu, score %g\n", best, scores[best]);
  return FLEXCOMP_OK;
}

int main(int argc, char **argv) {
  flexcomp_options options = FLEXCOMP_OPTIONS_INIT;
  flexcomp_session *session;
  options.budget = 12000000;
  if (argc != 3 || !(picture = fopen(argv[2], "rb"))) return fprintf(stderr, "usage: %s LIBRARY PICTURE\n", argv[0]), 2;
  if (flexcomp_open(argv[1], &options, &session) || flexcomp_run_in_place(session, fill, drain, NULL))
    return fprintf(stderr, "error: %s\n", flexcomp_message()), 1;
  flexcomp_close(session);
  return 0;
}
