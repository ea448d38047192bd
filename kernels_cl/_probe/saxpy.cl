// y[i] = a * x[i] + y[i].
__kernel void saxpy(const int a, __global const float* restrict x, __global float* restrict y) {
  const int i = get_global_id(0);
  y[i] = a * x[i] + y[i];
}
