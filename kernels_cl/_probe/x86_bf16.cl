// acc[i] += 16 sums of 2 products of bfloat16 each, by one x86 instruction.
__kernel void pairs(__global const int16* restrict a, __global const int16* restrict b,
                    __global float16* restrict acc) {
  const int i = get_global_id(0);
  float16 sum = acc[i];
  const int16 left = a[i], right = b[i];
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right));
  acc[i] = sum;
}
// The instruction, and float's multiply-add, so many rounds on 12 vectors of sums each.
__kernel void pair_rounds(const int rounds, __global const int16* restrict a, __global float16* restrict out) {
  float16 s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0, s8 = 0, s9 = 0, s10 = 0, s11 = 0;
  const int16 x = a[0];
#define ADD(s) __asm__("vdpbf16ps %1, %1, %0" : "+v"(s) : "v"(x));
  for (int k = 0; k < rounds; ++k) {
    ADD(s0) ADD(s1) ADD(s2) ADD(s3) ADD(s4) ADD(s5) ADD(s6) ADD(s7) ADD(s8) ADD(s9) ADD(s10) ADD(s11)
  }
#undef ADD
  out[0] = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11;
}
__kernel void float_rounds(const int rounds, __global const float16* restrict a, __global float16* restrict out) {
  float16 s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0, s8 = 0, s9 = 0, s10 = 0, s11 = 0;
  const float16 x = a[0];
#define ADD(s) __asm__("vfmadd231ps %1, %1, %0" : "+v"(s) : "v"(x));
  for (int k = 0; k < rounds; ++k) {
    ADD(s0) ADD(s1) ADD(s2) ADD(s3) ADD(s4) ADD(s5) ADD(s6) ADD(s7) ADD(s8) ADD(s9) ADD(s10) ADD(s11)
  }
#undef ADD
  out[0] = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11;
}
