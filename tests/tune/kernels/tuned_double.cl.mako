<%doc>
tuned_double: dst = 2 src, or one of the ways in which a kernel goes wrong.

Tensors  src, dst: dense | runs: one counter, poisoned (-1) when it is made
Launch   global (1)
Params   name | size: elements | mode: see the code | wg
</%doc>
${group_size(wg)}
__kernel void ${name}(
    __global float *src_base, const int src_offset, __global int *runs_base, const int runs_offset,
    __global float *dst_base, const int dst_offset)
{
    __global float *src = src_base + src_offset, *dst = dst_base + dst_offset;
    __global int *runs = runs_base + runs_offset;
% if mode == "broken":
    this does not build;
% endif
% if mode == "endless":
    while (((volatile __global int *)runs)[0] != 12345) ((volatile __global float *)dst)[0] = 1.0f;
% endif
% if mode == "crash":
    for (long k = 0; k < (1L << 40); k += 1024) ((volatile __global float *)dst)[k] = 0.0f;
% endif
    runs[0] += 1;
% if mode == "slow":
    for (int round = 0; round < 2000; ++round)
% endif
    for (int k = 0; k < ${size - 1 if mode == "unwritten" else size}; ++k) ((volatile __global float *)dst)[k] = src[k] + src[k];
% if mode == "wrong":
    dst[${size // 2}] += 0.01f;
% endif
% if mode == "tires":
    if (runs[0] > 2) dst[0] = 0.0f;
% endif
% if mode == "outside":
    dst[${size}] = 0.0f;
% endif
% if mode == "input":
    src[0] = 0.0f;
% endif
}
