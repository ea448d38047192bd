// y[i] = a * x[i] + y[i] for i < n; global size may exceed n.
__kernel void saxpy(const int n, const float a, __global const float* restrict x,
                    __global float* restrict y) {
  const int i = get_global_id(0);
  if (i < n) y[i] = a * x[i] + y[i];
}
