<%doc>
peak_empty: stores one value, to measure what a launch costs at least.

Launch   global (1)
Params   name
</%doc>
__kernel void ${name}(__global float *out)
{
    out[0] = 1.0f;
}
