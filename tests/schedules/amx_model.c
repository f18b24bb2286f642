/* A model of AMX's tile instructions, by Intel's manual: what they compute, and what they refuse. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  TILES = 8,
  ROWS = 16,
  BYTES = 64
};

static _Thread_local struct {
  int configured;
  int rows[TILES], bytes[TILES];
  uint8_t data[TILES][ROWS][BYTES];
} state;

static uint64_t products;

static void require(int holds, const char* instruction, const char* what) {
  if (holds) return;
  fprintf(stderr, "%s: %s\n", instruction, what);
  abort();
}

static void require_tile(int tile, const char* instruction) {
  require(state.configured, instruction, "tiles have no shapes");
  require(tile >= 0 && tile < TILES && state.rows[tile] > 0, instruction, "the tile has no rows");
}

static float flushed(float value) { return fpclassify(value) == FP_SUBNORMAL ? copysignf(0, value) : value; }

static float wide(const uint8_t* at) {
  uint16_t half;
  memcpy(&half, at, 2);
  const uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return flushed(value);
}

uint64_t amx_model_products(void) { return products; }
int amx_model_configured(void) { return state.configured; }

int amx_model_ldtilecfg(const uint8_t* config) {
  require(config[0] == 1 && config[1] == 0, "ldtilecfg", "palette 1 from row 0 is known");
  for (int i = 2; i < 16; ++i) require(config[i] == 0, "ldtilecfg", "a reserved byte is set");
  for (int i = 0; i < 16; ++i) {
    const int bytes = config[16 + 2 * i] | config[17 + 2 * i] << 8, rows = config[48 + i];
    require(bytes <= (i < TILES ? BYTES : 0) && rows <= (i < TILES ? ROWS : 0), "ldtilecfg", "a tile is too large");
    require((bytes == 0) == (rows == 0), "ldtilecfg", "a tile has rows or bytes only");
    if (i < TILES) state.bytes[i] = bytes, state.rows[i] = rows;
  }
  memset(state.data, 0, sizeof state.data);
  state.configured = 1;
  return 0;
}

int amx_model_tilerelease(void) {
  require(state.configured, "tilerelease", "tiles have no shapes");
  memset(&state, 0, sizeof state);
  return 0;
}

int amx_model_tilezero(int8_t tile) {
  require_tile(tile, "tilezero");
  memset(state.data[tile], 0, sizeof state.data[tile]);
  return 0;
}

int amx_model_tileloadd64(int8_t tile, const uint8_t* from, int64_t stride) {
  require_tile(tile, "tileloadd");
  memset(state.data[tile], 0, sizeof state.data[tile]);
  for (int row = 0; row < state.rows[tile]; ++row) memcpy(state.data[tile][row], from + row * stride, state.bytes[tile]);
  return 0;
}

int amx_model_tilestored64(int8_t tile, uint8_t* to, int64_t stride) {
  require_tile(tile, "tilestored");
  for (int row = 0; row < state.rows[tile]; ++row) memcpy(to + row * stride, state.data[tile][row], state.bytes[tile]);
  return 0;
}

int amx_model_tdpbf16ps(int8_t sums, int8_t left, int8_t right) {
  require_tile(sums, "tdpbf16ps"), require_tile(left, "tdpbf16ps"), require_tile(right, "tdpbf16ps");
  require(sums != left && sums != right && left != right, "tdpbf16ps", "the tiles are not three");
  require(state.bytes[sums] % 4 == 0 && state.bytes[left] % 4 == 0, "tdpbf16ps", "rows are not whole words");
  require(state.rows[sums] == state.rows[left], "tdpbf16ps", "sums and left factors have different rows");
  require(state.bytes[sums] == state.bytes[right], "tdpbf16ps", "sums and right factors have different columns");
  require(state.bytes[left] == 4 * state.rows[right], "tdpbf16ps", "left and right factors have different pairs");
  for (int m = 0; m < state.rows[sums]; ++m) {
    for (int n = 0; n < state.bytes[sums] / 4; ++n) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < state.rows[right]; ++k) {
        even = flushed(fmaf(wide(&state.data[left][m][4 * k]), wide(&state.data[right][k][4 * n]), even));
        odd = flushed(fmaf(wide(&state.data[left][m][4 * k + 2]), wide(&state.data[right][k][4 * n + 2]), odd));
      }
      memcpy(&sum, &state.data[sums][m][4 * n], 4);
      sum = flushed(flushed(sum) + flushed(even + odd));
      memcpy(&state.data[sums][m][4 * n], &sum, 4);
    }
  }
  __atomic_fetch_add(&products, 1, __ATOMIC_RELAXED);
  return 0;
}
