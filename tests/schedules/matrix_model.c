/* A model of AArch64's bfmmla: sums of two rows and two columns, and products of four bfloat16 for each. */
#include <stdint.h>
#include <string.h>

typedef float sums __attribute__((vector_size(16)));
typedef int32_t words __attribute__((vector_size(16)));

static float wide(const words* factors, int index) {
  uint16_t half;
  memcpy(&half, (const char*)factors + 2 * index, 2);
  const uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

sums flexcomp_bfloat16_matrix_4(sums total, words left, words right) {
  for (int row = 0; row < 2; ++row)
    for (int column = 0; column < 2; ++column)
      for (int k = 0; k < 4; ++k) total[2 * row + column] += wide(&left, 4 * row + k) * wide(&right, 4 * column + k);
  return total;
}
