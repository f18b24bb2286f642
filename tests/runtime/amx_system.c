/* Preloaded: a processor with AMX, on a kernel that answers requests for tiles by the error number in AMX_ANSWER, 0 if granted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

static FILE* opened(const char* name, const char* path, const char* mode) {
  FILE* (*real)(const char*, const char*) = (FILE * (*)(const char*, const char*)) dlsym(RTLD_NEXT, name);
  if (strcmp(path, "/proc/cpuinfo") != 0) return real(path, mode);
  static char text[] = "flags\t\t: fpu amx_bf16 amx_tile\n";
  return fmemopen(text, sizeof text - 1, "r");
}

FILE* fopen(const char* path, const char* mode) { return opened("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return opened("fopen64", path, mode); }

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long given[6];
  for (int i = 0; i < 6; ++i) given[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_arch_prctl && given[0] == 0x1023 && given[1] == 18) {
    puts("asked for tiles");
    errno = atoi(getenv("AMX_ANSWER"));
    return errno == 0 ? 0 : -1;
  }
  long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
