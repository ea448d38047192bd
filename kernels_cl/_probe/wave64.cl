// The same kernel twice: in waves of the compiler's choice, and in waves of 64 work-items.
__attribute__((reqd_work_group_size(64, 1, 1)))
__kernel void unasked(__global const uint* restrict src, __global uint* restrict out) {
  __local uint all[64];
  const uint i = get_local_id(0);
  all[i] = src[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  out[get_global_id(0)] = 3 * all[63 - i] + all[i ^ 32];
}

__attribute__((target("wavefrontsize64")))
__attribute__((reqd_work_group_size(64, 1, 1)))
__kernel void in_sixty_fours(__global const uint* restrict src, __global uint* restrict out) {
  __local uint all[64];
  const uint i = get_local_id(0);
  all[i] = src[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  out[get_global_id(0)] = 3 * all[63 - i] + all[i ^ 32];
}
