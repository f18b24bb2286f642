/* A compiled network that is linked with a program, as flexcomp/compiler/linked_object.py writes it. C, too. */
#ifndef FLEXCOMP_LINKED_NETWORK_H_
#define FLEXCOMP_LINKED_NETWORK_H_

#include <stddef.h>
#include <stdint.h>

struct flexcomp_symbol {
  const char *name;
  void *address;
};

struct flexcomp_network {
  size_t size;      /* sizeof(struct flexcomp_network) */
  const char *kind; /* of the program; names the version of its format */
  const unsigned char *program;
  uint64_t program_nbytes;
  const struct flexcomp_symbol *symbols; /* by name, ascending as strcmp orders them */
  uint64_t symbol_count;
};

#endif /* FLEXCOMP_LINKED_NETWORK_H_ */
