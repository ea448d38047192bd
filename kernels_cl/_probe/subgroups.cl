// Per work-item: {subgroup in group, lane, subgroup size, sum over the subgroup of src, src of lane 0}.
#if defined(cl_khr_subgroups)
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#elif defined(cl_intel_subgroups)
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#endif
__kernel void subgroup_sum(__global const uint* restrict src, __global uint* restrict out) {
  const uint i = get_global_id(0);
  out[5 * i] = get_sub_group_id();
  out[5 * i + 1] = get_sub_group_local_id();
  out[5 * i + 2] = get_sub_group_size();
  out[5 * i + 3] = sub_group_reduce_add(src[i]);
  out[5 * i + 4] = sub_group_broadcast(src[i], 0);
}
