// sums[group] = sum of the group's part of src, of its first half in odd groups, by a tree in local memory. The local size
// is a power of two. Groups meet different numbers of barriers, and only some work-items do something between two.
__kernel void barrier_sum(__global const int* restrict src, __global int* restrict sums,
                          __local int* part) {
  const int lid = get_local_id(0);
  const int group = get_group_id(0);
  part[lid] = src[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_size = get_local_size(0) / (2 << (group & 1)); half_size > 0; half_size /= 2) {
    if (lid < half_size) part[lid] += part[lid + half_size];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (lid == 0) sums[group] = part[0];
}
