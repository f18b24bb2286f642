/* A thread whose first failure finds no memory: thread_without_memory LIBFLEXCOMP. The library is opened at run time, as bindings do,
 * so what belongs to a thread is allocated when it is first used. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static void *(*allocate)(size_t), *(*allocate_zeros)(size_t, size_t);
static volatile int none;

void *malloc(size_t nbytes) {
  if (allocate == NULL) allocate = dlsym(RTLD_NEXT, "malloc");
  return none ? NULL : allocate(nbytes);
}

void *calloc(size_t count, size_t nbytes) {
  static char first[4096]; /* dlsym itself may ask */
  if (allocate_zeros == NULL) {
    static int asked;
    if (asked++) return first;
    allocate_zeros = dlsym(RTLD_NEXT, "calloc");
  }
  return none ? NULL : allocate_zeros(count, nbytes);
}

static const char *(*message)(void);
static int (*close_session)(void *);

static void *life(void *unused) {
  static char said[2][128];
  (void)unused;
  none = 1;
  const int status = close_session((void *)&none);
  strncpy(said[0], message(), sizeof said[0] - 1);
  none = 0;
  const int again = close_session((void *)&none);
  strncpy(said[1], message(), sizeof said[1] - 1);
  printf("%d %s\n%d %s\n", status, said[0], again, said[1]);
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t thread;
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 2;
  *(void **)&message = dlsym(library, "flexcomp_message");
  *(void **)&close_session = dlsym(library, "flexcomp_close");
  if (pthread_create(&thread, NULL, life, NULL)) return 3;
  pthread_join(thread, NULL);
  return 0;
}
