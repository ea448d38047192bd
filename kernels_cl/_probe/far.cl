// Reads or writes bytes of a large buffer at places that need more than 31 bits.
__kernel void far(const int write, __global const ulong* restrict places, __global uchar* restrict marks,
                  __global uchar* restrict large) {
  const int i = get_global_id(0);
  if (write) large[places[i]] = marks[i];
  else marks[i] = large[places[i]];
}
