// acc[i] += 8 dot products of 2 by 2 shorts each, by one x86 instruction and an addition.
__kernel void madd(__global const int8* restrict a, __global const int8* restrict b,
                   __global int8* restrict acc) {
  const int i = get_global_id(0);
  const int8 left = a[i], right = b[i];
  int8 sum;
  __asm__("vpmaddwd %2, %1, %0" : "=x"(sum) : "x"(left), "x"(right));
  acc[i] += sum;
}

// dst[i]: four vectors of floats, rounded, less 77, as saturated bytes of both signs; words in the order of packs.
__kernel void pack8(__global const float8* restrict src, __global int8* restrict dst) {
  const int i = get_global_id(0);
  int8 a, b, c, d, low, high, u, s;
  const float8 fa = src[4 * i], fb = src[4 * i + 1], fc = src[4 * i + 2], fd = src[4 * i + 3];
  __asm__("vcvtps2dq %1, %0" : "=x"(a) : "x"(fa));
  __asm__("vcvtps2dq %1, %0" : "=x"(b) : "x"(fb));
  __asm__("vcvtps2dq %1, %0" : "=x"(c) : "x"(fc));
  __asm__("vcvtps2dq %1, %0" : "=x"(d) : "x"(fd));
  __asm__("vpackssdw %2, %1, %0" : "=x"(low) : "x"(a), "x"(b));
  __asm__("vpackssdw %2, %1, %0" : "=x"(high) : "x"(c), "x"(d));
  __asm__("vpaddsw %2, %1, %0" : "=x"(low) : "x"(low), "x"((int8)(-4980813)));
  __asm__("vpaddsw %2, %1, %0" : "=x"(high) : "x"(high), "x"((int8)(-4980813)));
  __asm__("vpackuswb %2, %1, %0" : "=x"(u) : "x"(low), "x"(high));
  __asm__("vpacksswb %2, %1, %0" : "=x"(s) : "x"(low), "x"(high));
  dst[2 * i] = u;
  dst[2 * i + 1] = s;
}
