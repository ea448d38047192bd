// Arithmetic of 64 bits. Work-item i: product, quotient, remainder, shifts by i to the left and (signed) to the right,
// 1 where a < b as signed numbers plus 2 where a < b as unsigned ones.
__kernel void longs(__global const ulong* restrict a, __global const ulong* restrict b,
                    __global ulong* restrict out) {
  const int i = get_global_id(0);
  const ulong x = a[i], y = b[i];
  const int by = i & 63;
  out[6 * i] = x * y;
  out[6 * i + 1] = x / y;
  out[6 * i + 2] = x % y;
  out[6 * i + 3] = x << by;
  out[6 * i + 4] = as_ulong(as_long(x) >> by);
  out[6 * i + 5] = (as_long(x) < as_long(y)) + 2 * (x < y);
}
