// Two readings of the processor's cycle counter, with work between them.
__kernel void ticks(__global const float* restrict x, __global float* restrict y,
                    __global ulong* restrict when) {
  const int i = get_global_id(0);
  when[2 * i] = __builtin_readcyclecounter();
  float sum = x[i];
  for (int k = 0; k < 1000; ++k) sum = sum * 0.5f + 1.0f;
  y[i] = sum;
  when[2 * i + 1] = __builtin_readcyclecounter();
}
