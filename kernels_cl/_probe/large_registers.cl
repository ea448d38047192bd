// 160 values of a work-item that all change in each round: more than the registers of Intel's threads hold.
__kernel void many(const int rounds, __global float* restrict x) {
  const size_t i = get_global_id(0), n = get_global_size(0);
#define EACH(DO) \
  DO(0, 1) DO(1, 2) DO(2, 3) DO(3, 4) DO(4, 5) DO(5, 6) DO(6, 7) DO(7, 8) \
  DO(8, 9) DO(9, 10) DO(10, 11) DO(11, 12) DO(12, 13) DO(13, 14) DO(14, 15) DO(15, 16) \
  DO(16, 17) DO(17, 18) DO(18, 19) DO(19, 20) DO(20, 21) DO(21, 22) DO(22, 23) DO(23, 24) \
  DO(24, 25) DO(25, 26) DO(26, 27) DO(27, 28) DO(28, 29) DO(29, 30) DO(30, 31) DO(31, 32) \
  DO(32, 33) DO(33, 34) DO(34, 35) DO(35, 36) DO(36, 37) DO(37, 38) DO(38, 39) DO(39, 0)
#define BEGIN(k, next) float4 v##k = (float4)(x[i + k * n]) + (float4)(0, 1, 2, 3);
#define ROUND(k, next) v##k = v##k * 0.5f + v##next;
#define END(k, next) x[i + k * n] = v##k.x + v##k.y + v##k.z + v##k.w;
  EACH(BEGIN)
  for (int r = 0; r < rounds; ++r) {
    EACH(ROUND)
  }
  EACH(END)
}
