// acc (16 x 16) += left (16 rows of 64 bytes) times right (16 rows of 16 times 4 bytes), by x86's registers of tiles: of
// unsigned by signed bytes, and of pairs of bfloat16. Instructions are bytes, which every assembler takes.
#define SHAPED                                                                                                        \
  uchar shape[64] __attribute__((aligned(64)));                                                                       \
  for (int k = 0; k < 64; ++k) shape[k] = k == 0 ? 1 : k >= 16 && k < 22 ? k % 2 ? 0 : 64 : k >= 48 && k < 51 ? 16 : 0; \
  __asm__ volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0x06" ::"S"(shape) : "memory")
#define READ(byte, from) __asm__ volatile(".byte 0xc4, 0xe2, 0x7b, 0x4b, " byte ", 0x16" ::"S"(from), "d"(64L) : "memory")
#define WRITTEN                                                                                                       \
  __asm__ volatile(".byte 0xc4, 0xe2, 0x7a, 0x4b, 0x04, 0x16" ::"S"(acc), "d"(64L) : "memory");                        \
  __asm__ volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0")
#define OPERANDS \
  SHAPED;        \
  READ("0x04", acc); READ("0x0c", left); READ("0x14", right)

__kernel void tile_bytes(__global const int* left, __global const int* right, __global int* acc) {
  OPERANDS;
  __asm__ volatile(".byte 0xc4, 0xe2, 0x69, 0x5e, 0xc1");
  WRITTEN;
}
__kernel void tile_signed(__global const int* left, __global const int* right, __global int* acc) {
  OPERANDS;
  __asm__ volatile(".byte 0xc4, 0xe2, 0x6b, 0x5e, 0xc1");
  WRITTEN;
}
__kernel void tile_pairs(__global const int* left, __global const int* right, __global float* acc) {
  OPERANDS;
  __asm__ volatile(".byte 0xc4, 0xe2, 0x6a, 0x5c, 0xc1");
  WRITTEN;
}
