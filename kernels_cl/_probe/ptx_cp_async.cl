// One group of 32: 64 pieces of 16 bytes by cp.async in two groups of copies, bytes[i] of each read
// and the rest zero.
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void pieces(
    __global const uint4* restrict src, __global const uint* restrict bytes, __global uint4* restrict out) {
  __local uint4 memory[64] __attribute__((aligned(128)));
  const int i = get_local_id(0);
  const uint at = (uint)(size_t)memory + 16 * i;
  memory[i] = memory[i + 32] = (uint4)(7);
  barrier(CLK_LOCAL_MEM_FENCE);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      : : "r"(at), "l"(src + i), "r"(bytes[i]) : "memory");
  asm volatile("cp.async.commit_group;" : : : "memory");
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      : : "r"(at + 512), "l"(src + i + 32), "r"(bytes[i + 32]) : "memory");
  asm volatile("cp.async.commit_group;" : : : "memory");
  asm volatile("cp.async.wait_group 1;" : : : "memory");
  barrier(CLK_LOCAL_MEM_FENCE);
  out[i] = memory[31 - i];
  asm volatile("cp.async.wait_group 0;" : : : "memory");
  barrier(CLK_LOCAL_MEM_FENCE);
  out[i + 32] = memory[63 - i];
}
