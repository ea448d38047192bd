// y = x + 1, with reads ahead into the cache at addresses inside and outside of the buffer.
__kernel void ahead(__global const float* restrict x, __global float* restrict y) {
  const int i = get_global_id(0);
  __builtin_prefetch((const void*)(size_t)(x + i + 64));
  __builtin_prefetch((const void*)(size_t)(x - (1 << 24)));
  y[i] = x[i] + 1.0f;
}
