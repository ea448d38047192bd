// acc[i] += 16 dot products of 4 unsigned by 4 signed bytes each, by one x86 instruction.
__kernel void vnni(__global const int16* restrict u, __global const int16* restrict s,
                   __global int16* restrict acc) {
  const int i = get_global_id(0);
  int16 sum = acc[i];
  const int16 left = u[i], right = s[i];
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right));
  acc[i] = sum;
}

// dst[i]: four vectors of floats, rounded, less 77, as saturated bytes of both signs; words in the order of packs.
__kernel void pack16(__global const float16* restrict src, __global int16* restrict dst) {
  const int i = get_global_id(0);
  int16 a, b, c, d, low, high, u, s;
  const float16 fa = src[4 * i], fb = src[4 * i + 1], fc = src[4 * i + 2], fd = src[4 * i + 3];
  __asm__("vcvtps2dq %1, %0" : "=v"(a) : "v"(fa));
  __asm__("vcvtps2dq %1, %0" : "=v"(b) : "v"(fb));
  __asm__("vcvtps2dq %1, %0" : "=v"(c) : "v"(fc));
  __asm__("vcvtps2dq %1, %0" : "=v"(d) : "v"(fd));
  __asm__("vpackssdw %2, %1, %0" : "=v"(low) : "v"(a), "v"(b));
  __asm__("vpackssdw %2, %1, %0" : "=v"(high) : "v"(c), "v"(d));
  __asm__("vpaddsw %2, %1, %0" : "=v"(low) : "v"(low), "v"((int16)(-4980813)));
  __asm__("vpaddsw %2, %1, %0" : "=v"(high) : "v"(high), "v"((int16)(-4980813)));
  __asm__("vpackuswb %2, %1, %0" : "=v"(u) : "v"(low), "v"(high));
  __asm__("vpacksswb %2, %1, %0" : "=v"(s) : "v"(low), "v"(high));
  dst[2 * i] = u;
  dst[2 * i + 1] = s;
}
