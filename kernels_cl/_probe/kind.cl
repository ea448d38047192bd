// The same multiply-adds twice: by work-items of a wide vector, each a group of its own, and by work-items side by side.
__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void wide(const int rounds, __global float16* restrict x) {
  const int i = get_global_id(0);
  float16 a = x[i], b = a + 1;
  for (int k = 0; k < rounds; ++k) {
    a = a * 0.5f + 1;
    b = b * 0.5f + 1;
  }
  x[i] = a + b;
}

__attribute__((reqd_work_group_size(64, 1, 1)))
__kernel void beside(const int rounds, __global float* restrict x) {
  const int i = get_global_id(0);
  float a = x[i], b = a + 1;
  for (int k = 0; k < rounds; ++k) {
    a = a * 0.5f + 1;
    b = b * 0.5f + 1;
  }
  x[i] = a + b;
}
