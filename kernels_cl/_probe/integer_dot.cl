// Per work-item: the 4-element dot products signed x signed, unsigned x unsigned, unsigned x signed.
#if defined(cl_khr_integer_dot_product)
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable
#endif
__kernel void dots(__global const uint* restrict a, __global const uint* restrict b,
                   __global int* restrict out) {
  const int i = get_global_id(0);
  out[3 * i] = dot_4x8packed_ss_int(a[i], b[i]);
  out[3 * i + 1] = (int)dot_4x8packed_uu_uint(a[i], b[i]);
  out[3 * i + 2] = dot_4x8packed_us_int(a[i], b[i]);
}
