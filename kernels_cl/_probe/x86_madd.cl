// acc[i] += 8 dot products of 2 by 2 shorts each, by one x86 instruction and an addition.
__kernel void madd(__global const int8* restrict a, __global const int8* restrict b,
                   __global int8* restrict acc) {
  const int i = get_global_id(0);
  const int8 left = a[i], right = b[i];
  int8 sum;
  __asm__("vpmaddwd %2, %1, %0" : "=x"(sum) : "x"(left), "x"(right));
  acc[i] += sum;
}
