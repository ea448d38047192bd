// One warp: four 8x8 matrices of 16 bits, whose rows of 16 bytes begin at at[0..31], by ldmatrix.x4
// as they are (out[8 i ..]) and transposed (out[8 i + 4 ..]).
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void matrices(
    __global const uint* restrict src, __global const uint* restrict at, __global uint* restrict out) {
  __local uint rows[128] __attribute__((aligned(128)));
  const int i = get_local_id(0);
  for (int k = 0; k < 4; ++k) rows[4 * i + k] = src[4 * i + k];
  barrier(CLK_LOCAL_MEM_FENCE);
  const uint row = (uint)(size_t)rows + at[i];
  uint d0, d1, d2, d3, t0, t1, t2, t3;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3) : "r"(row) : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(t0), "=r"(t1), "=r"(t2), "=r"(t3) : "r"(row) : "memory");
  out[8 * i] = d0; out[8 * i + 1] = d1; out[8 * i + 2] = d2; out[8 * i + 3] = d3;
  out[8 * i + 4] = t0; out[8 * i + 5] = t1; out[8 * i + 6] = t2; out[8 * i + 7] = t3;
}
