// float's multiply-adds on vectors of 16 and of 8, so many rounds on 12 sums each, which begin differently.
#define ROUNDS(V)                                                                                             \
  const V x = a[0];                                                                                           \
  V s0 = x, s1 = x + 1, s2 = x + 2, s3 = x + 3, s4 = x + 4, s5 = x + 5;                                       \
  V s6 = x + 6, s7 = x + 7, s8 = x + 8, s9 = x + 9, s10 = x + 10, s11 = x + 11;                               \
  for (int k = 0; k < rounds; ++k) {                                                                          \
    s0 = fma(x, x, s0), s1 = fma(x, x, s1), s2 = fma(x, x, s2), s3 = fma(x, x, s3), s4 = fma(x, x, s4);       \
    s5 = fma(x, x, s5), s6 = fma(x, x, s6), s7 = fma(x, x, s7), s8 = fma(x, x, s8), s9 = fma(x, x, s9);       \
    s10 = fma(x, x, s10), s11 = fma(x, x, s11);                                                               \
  }                                                                                                           \
  out[0] = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11;
__kernel void rounds_of_16(const int rounds, __global const float16* restrict a, __global float16* restrict out) {
  ROUNDS(float16)
}
__kernel void rounds_of_8(const int rounds, __global const float8* restrict a, __global float8* restrict out) {
  ROUNDS(float8)
}
#undef ROUNDS
