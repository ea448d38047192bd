<%doc>
resize/deform_sample: what the windows of a deformable convolution read, each tap at a place of its own.

    o o o        a window's taps, and       o . o
    o o o   ->   the places that their     o   o o     each read linearly between the elements around it,
    o o o        offsets move them to       . o o      which are 0 outside of the image, and times its mask

Tensors  src: (n, c, d1.., dr) | offsets: (n, offset group * tap * axis, o1.., or) | mask: (n, offset group *
         tap, o1.., or) or None | dst: (n, group * tap * channel of the group, o1.., or), r from 1 to 3
Index    output (n, tap, c, o..) reads src[n, c] around o * stride - before + tap * dilation + offset
Launch   global (vectors of channels, product of the o.., n * taps)
Params   name            kernel name
         ctype           type of all tensors
         src, offsets, mask, dst  TensorLayout
         kernel, strides, dilations, before  of the window, outermost axis first
         group, offset_groups  parts of the channels: of the convolution, and such that move alike
         wg              local size
Tunables vw              1, 2, 4, 8 or 16 channels of one group of either kind; over 1 they have pitch 1
NaN      propagates; a place that is no finite number gives NaN or 0
</%doc>
<%namespace name="rw" file="/_common/rows.cl.mako"/>
<%
    m = rw.module
    count, channels = src.shape[:2]
    sides, extents = src.shape[2:], dst.shape[2:]
    rank, taps = len(kernel), prod(kernel)
    of_group, alike = channels // group, channels // offset_groups
    assert of_group % vw == 0 and alike % vw == 0 and (vw == 1 or src.pitches[1] == 1), "a vector needs pitch 1"
    V = vec_type(ctype, vw)
    axes = range(rank)
    places = [f"o{a}" for a in axes]
    positions = prod(extents)
    pixel = load(ctype, vw, "src", index(src, "n", "c", *(f"i{a}[k{a}]" for a in axes)))
    known = " && ".join(f"i{a}[k{a}] >= 0" for a in axes)
    channel = f"c / {of_group} * {of_group * taps} + tap * {of_group} + c % {of_group}" if group > 1 else f"tap * {channels} + c"

    def number(value):
        return scalar(value, ctype)
%>
#pragma OPENCL FP_CONTRACT OFF
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global const ${ctype} *offsets_base, const int offsets_offset,
% if mask:
    __global const ${ctype} *mask_base, const int mask_offset,
% endif
    __global ${ctype} *dst_base, const int dst_offset)
{
    if (get_global_id(0) >= ${channels // vw} || get_global_id(1) >= ${positions}) return;
    if (get_global_id(2) >= ${count * taps}) return;
    const int c = get_global_id(0) * ${vw}, n = get_global_id(2) / ${taps}, tap = get_global_id(2) % ${taps};
    int rest = get_global_id(1);
% for a in reversed(axes):
    const int o${a} = rest % ${extents[a]};
    rest /= ${extents[a]};
% endfor
    const int moved = ${f"c / {alike} * {taps} + tap" if offset_groups > 1 else "tap"};
    __global const ${ctype} *src = src_base + src_offset;
    __global const ${ctype} *offsets = offsets_base + offsets_offset;
    __global ${ctype} *dst = dst_base + dst_offset;
    rest = tap;
% for a in reversed(axes):
    int i${a}[2];
    ${ctype} w${a}[2];
    {
        const int start = o${a} * ${strides[a]} + rest % ${kernel[a]} * ${dilations[a]} - ${before[a]};
        rest /= ${kernel[a]};
        const ${ctype} at = start + offsets[${index(offsets, "n", f"moved * {rank} + {a}", *places)}];
        const ${ctype} base = floor(at), u = at - base, side = ${number(sides[a])};
        w${a}[0] = 1 - u;
        w${a}[1] = u;
        i${a}[0] = base >= 0 && base < side ? (int)base : -1;
        i${a}[1] = base >= -1 && base < side - 1 ? (int)base + 1 : -1;
    }
% endfor
    ${V} result = 0;
% for a in axes:
    for (int k${a} = 0; k${a} < 2; ++k${a}) {
% endfor
        ${V} value = 0;
        if (${known}) value = ${pixel};
        result += ${" * ".join(f"w{a}[k{a}]" for a in axes)} * value;
% for _ in axes:
    }
% endfor
% if mask:
    result *= (mask_base + mask_offset)[${index(mask, "n", "moved", *places)}];
% endif
    ${m.store_lanes(vw, "result", "dst", index(dst, "n", f"({channel})", *places), dst.pitches[1], 0, ctype)}
}
