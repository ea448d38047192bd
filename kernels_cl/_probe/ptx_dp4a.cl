// Per work-item: the dot products signed x signed, unsigned x unsigned, unsigned x signed, by dp4a.
__kernel void dots(__global const uint* restrict a, __global const uint* restrict b,
                   __global int* restrict out) {
  const int i = get_global_id(0);
  const uint left = a[i], right = b[i];
  int ss, us;
  uint uu;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(ss) : "r"(left), "r"(right), "r"(0));
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(uu) : "r"(left), "r"(right), "r"(0));
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(us) : "r"(left), "r"(right), "r"(0));
  out[3 * i] = ss;
  out[3 * i + 1] = (int)uu;
  out[3 * i + 2] = us;
}
