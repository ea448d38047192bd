// One warp: c += a * b by one mma.sync of each kind, fragments as they lie in registers: 4, 2 and 4
// words per lane. A lane whose number in the warp is not its local id leaves c as it is.
#define LANE(i) uint lane; asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane)); \
  const int i = get_local_id(0); if (lane != i) return;
#define MMA(name, shape, letter, type) \
  __kernel __attribute__((reqd_work_group_size(32, 1, 1))) void name( \
      __global const uint* restrict a, __global const uint* restrict b, __global type* restrict c) { \
    LANE(i) \
    type c0 = c[4 * i], c1 = c[4 * i + 1], c2 = c[4 * i + 2], c3 = c[4 * i + 3]; \
    asm volatile("mma.sync.aligned." shape " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : letter(c0), letter(c1), letter(c2), letter(c3) \
        : "r"(a[4 * i]), "r"(a[4 * i + 1]), "r"(a[4 * i + 2]), "r"(a[4 * i + 3]), \
          "r"(b[2 * i]), "r"(b[2 * i + 1])); \
    c[4 * i] = c0; c[4 * i + 1] = c1; c[4 * i + 2] = c2; c[4 * i + 3] = c3; \
  }
MMA(mma_f16, "m16n8k16.row.col.f32.f16.f16.f32", "+f", float)
MMA(mma_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32", "+f", float)
MMA(mma_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32", "+f", float)
MMA(mma_s8, "m16n8k32.row.col.s32.s8.s8.s32", "+r", int)
MMA(mma_u8, "m16n8k32.row.col.s32.u8.s8.s32", "+r", int)
