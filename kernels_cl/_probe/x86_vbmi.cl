// dst[i]: 64 bytes looked up in a table of 256, by x86's permutations of two registers' bytes.
__kernel void lookup(__global const int16* restrict src, __global const int16* restrict table,
                     __global int16* restrict dst) {
  const int i = get_global_id(0);
  int16 low = src[i], high = src[i];
  const int16 a = table[0], b = table[1], c = table[2], d = table[3];
  __asm__("vpermi2b %2, %1, %0" : "+v"(low) : "v"(a), "v"(b));
  __asm__("vpermi2b %2, %1, %0" : "+v"(high) : "v"(c), "v"(d));
  const int16 upper = ((src[i] >> 7) & (int16)(0x01010101)) * (int16)(255);
  dst[i] = (low & ~upper) | (high & upper);
}
