// dst[i] = a[i] * b[i] + c[i], product and sum each rounded to half.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL FP_CONTRACT OFF
__kernel void half_mad(__global const half* restrict a, __global const half* restrict b,
                       __global const half* restrict c, __global half* restrict dst) {
  const int i = get_global_id(0);
  const half product = a[i] * b[i];
  dst[i] = product + c[i];
}
