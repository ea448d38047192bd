<%doc>
movement/copy_flat: copies a tensor into another shape where no common loop nest exists (reshape).

Index    element k in row-major order of src goes to element k in row-major order of dst
Launch   global (count); one work-item per element
Params   name | ctype | src, dst: TensorLayout | count: elements | wg
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src, const int src_offset, __global ${ctype} *dst, const int dst_offset)
{
    const int k = get_global_id(0);
    if (k >= ${count}) return;
    int from, to;
    {
        ${lp.offsets("k", src.shape or (1,), [src.pitches or (0,)], ["s"])}
        from = s;
    }
    {
        ${lp.offsets("k", dst.shape or (1,), [dst.pitches or (0,)], ["d"])}
        to = d;
    }
    dst[dst_offset + to] = src[src_offset + from];
}
