// dst[i] = a[i] * b[i] + c[i], product and sum each rounded to double.
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#pragma OPENCL FP_CONTRACT OFF
__kernel void double_mad(__global const double* restrict a, __global const double* restrict b,
                         __global const double* restrict c, __global double* restrict dst) {
  const int i = get_global_id(0);
  const double product = a[i] * b[i];
  dst[i] = product + c[i];
}
