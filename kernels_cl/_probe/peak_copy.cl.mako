<%doc>
peak_copy: copies memory, to measure a device's bandwidth.

Work-item g copies `chunk` vectors, those g, g + stride, g + 2 stride... of `vec` floats.
Launch   global (vectors / chunk); stride is 1 where an item walks its own block (CPU), else global
Params   name | vec {1,2,4,8,16} | chunk >= 1 | blocked: an item copies neighbouring vectors | wg
</%doc>
<% t = vec_type("float", vec) %>
${group_size(wg)}
__kernel void ${name}(__global const ${t} *restrict src, __global ${t} *restrict dst)
{
    const size_t id = get_global_id(0);
% if blocked:
    const size_t first = id * ${chunk}, step = 1;
% else:
    const size_t first = id, step = get_global_size(0);
% endif
    for (int i = 0; i < ${chunk}; ++i) dst[first + i * step] = src[first + i * step];
}
