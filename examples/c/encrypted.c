/* Runs a network whose weights are encrypted: encrypted LIBRARY SEALED KEY PICTURE. They are decrypted where the kernels read them,
 * piece by piece, and are nowhere else in the clear.
 *
 *     head -c 48 /dev/urandom > key    # 32 bytes of a key, 16 of a counter that no other file may have with this key
 *     openssl enc -aes-256-ctr -K $(head -c 32 key | od -An -v -tx1 | tr -d ' \n') \
 *                 -iv $(tail -c 16 key | od -An -v -tx1 | tr -d ' \n') -in network.weights -out network.sealed
 *     cc encrypted.c $(pkg-config --cflags --libs flexcomp libcrypto) -o encrypted */
#define _FILE_OFFSET_BITS 64
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <flexcomp.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <unistd.h>

enum {
  KEY = 32,
  BLOCK = 16
};

typedef struct {
  int file;
  unsigned char key[KEY], counter[BLOCK];
  EVP_CIPHER_CTX *cipher;
} sealed;

/* `offset` is a multiple of 4,096, since this never returns fewer bytes than it was asked for. */
static int64_t decrypt(void *context, uint64_t offset, void *buffer, uint64_t nbytes) {
  sealed *own = context;
  unsigned char counter[BLOCK];
  uint64_t block = offset / BLOCK;
  int carry = 0, done;
  for (uint64_t got = 0; got < nbytes;) {
    const ssize_t n = pread(own->file, (char *)buffer + got, nbytes - got, (off_t)(offset + got));
    if (n <= 0) return n < 0 ? -errno : -EIO;
    got += (uint64_t)n;
  }
  for (int i = BLOCK - 1; i >= 0; --i, block >>= 8) { /* the file's counter, so many blocks on */
    const int sum = own->counter[i] + (int)(block & 255) + carry;
    counter[i] = (unsigned char)sum;
    carry = sum >> 8;
  }
  if (EVP_DecryptInit_ex(own->cipher, EVP_aes_256_ctr(), NULL, own->key, counter) != 1 ||
      EVP_DecryptUpdate(own->cipher, buffer, &done, buffer, (int)nbytes) != 1)
    return -EIO;
  return (int64_t)nbytes;
}

static flexcomp_status fill(void *context, const flexcomp_tensor *inputs, uint32_t count) {
  if (count != 1 || inputs[0].dtype != FLEXCOMP_FLOAT32) return FLEXCOMP_ERROR_INPUT;
  return fread(inputs[0].data, 1, inputs[0].nbytes, context) == inputs[0].nbytes ? FLEXCOMP_OK : FLEXCOMP_ERROR_INPUT;
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
  sealed own = {-1, {0}, {0}, EVP_CIPHER_CTX_new()};
  FILE *key, *picture;
  if (argc != 5) return fprintf(stderr, "usage: %s LIBRARY SEALED KEY PICTURE\n", argv[0]), 2;
  if ((own.file = open(argv[2], O_RDONLY)) < 0 || !(key = fopen(argv[3], "rb")) || !(picture = fopen(argv[4], "rb")) ||
      fread(own.key, 1, KEY, key) != KEY || fread(own.counter, 1, BLOCK, key) != BLOCK)
    return fprintf(stderr, "error: cannot read %s, %s or %s\n", argv[2], argv[3], argv[4]), 1;

  const flexcomp_source source = FLEXCOMP_FROM_READER(decrypt, &own, lseek(own.file, 0, SEEK_END));
  flexcomp_options options = FLEXCOMP_OPTIONS_INIT;
  flexcomp_session *session;
  options.budget = 12000000;
  options.source = &source;
  if (flexcomp_open(argv[1], &options, &session) || flexcomp_run_in_place(session, fill, drain, picture))
    return fprintf(stderr, "error: %s\n", flexcomp_message()), 1;
  flexcomp_close(session);
  EVP_CIPHER_CTX_free(own.cipher);
  return 0;
}
