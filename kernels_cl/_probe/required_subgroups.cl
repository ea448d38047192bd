// Per work-item: the largest subgroup of the kernel, which asks for 16, and the sum of src over its own subgroup.
#if defined(cl_khr_subgroups)
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#elif defined(cl_intel_subgroups)
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#endif
__attribute__((intel_reqd_sub_group_size(16)))
__attribute__((reqd_work_group_size(64, 1, 1)))
__kernel void in_sixteens(__global const uint* restrict src, __global uint* restrict out) {
  const uint i = get_global_id(0);
  out[2 * i] = get_max_sub_group_size();
  out[2 * i + 1] = sub_group_reduce_add(src[i]);
}
