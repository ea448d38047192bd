// Fills n words of local memory, then every work-item adds up words that its neighbours wrote.
// out[gid] = sum over k = next(lid), next(lid) + size, ... < n of (7 * k + group), next(lid) = (lid + 1) % size.
__kernel void local_fill(const uint n, __global uint* restrict out, __local uint* words) {
  const uint lid = get_local_id(0);
  const uint size = get_local_size(0);
  const uint group = get_group_id(0);
  for (uint k = lid; k < n; k += size) words[k] = 7 * k + group;
  barrier(CLK_LOCAL_MEM_FENCE);
  uint sum = 0;
  for (uint k = (lid + 1) % size; k < n; k += size) sum += words[k];
  out[get_global_id(0)] = sum;
}
