// sums[group] = sum of the group's part of src, by a tree in local memory. The local size is a power of two.
__kernel void barrier_sum(__global const int* restrict src, __global int* restrict sums,
                          __local int* part) {
  const int lid = get_local_id(0);
  part[lid] = src[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_size = get_local_size(0) / 2; half_size > 0; half_size /= 2) {
    if (lid < half_size) part[lid] += part[lid + half_size];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (lid == 0) sums[get_group_id(0)] = part[0];
}
