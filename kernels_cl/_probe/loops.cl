// Work-item i does counts[2 i] rounds of counts[2 i + 1] rounds each; out[2 i] is the state of a recurrence after them,
// out[2 i + 1] the bits of a sum of 64 terms in turn.
__kernel void loops(__global const uint* restrict counts, __global const float* restrict terms,
                    __global uint* restrict out) {
  const int i = get_global_id(0);
  const uint outer = counts[2 * i], inner = counts[2 * i + 1];
  uint state = i;
  float sum = 0;
  for (uint a = 0; a < outer; ++a) {
    for (uint b = 0; b < inner; ++b) {
      state = 1664525u * state + 1013904223u;
      sum += terms[b % 64];
    }
  }
  out[2 * i] = state;
  out[2 * i + 1] = as_uint(sum);
}
