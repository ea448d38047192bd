<%doc>
pool/roi_max: regions of images as outputs of one size, each the largest element of its part.

    region of 5 x 3 pixels as 2 x 2 outputs:   a a ab b b     parts share a row or a column
                                               a a ab b b     where it does not divide evenly
                                               c c cd d d

Tensors  src: (n, c, h, w) | regions: (r, 5): image, x1, y1, x2, y2, ends included | dst: (r, c, oh, ow)
Index    output (r, c, oy, ox) takes src[image of r, c]; an image that is not there as the nearest
Launch   global (vectors of channels, oh * ow, r)
Params   name            kernel name
         ctype           type of all tensors
         src, dst, regions   TensorLayout
         scale           of the regions' coordinates, which are rounded to pixels then
         wg              local size
Tunables vw              1, 2, 4, 8 or 16 channels, a divisor of all; over 1 they have pitch 1
NaN      propagates
</%doc>
<%namespace name="rw" file="/_common/rows.cl.mako"/>
<%
    m = rw.module
    count, channels, rows, columns = dst.shape
    height, width = src.shape[2:]
    assert channels % vw == 0 and (vw == 1 or src.pitches[1] == 1), "a vector needs pitch 1"
    V = vec_type(ctype, vw)
    low = scalar(-float("inf"), ctype)
    far = scalar(1e9, ctype)
    def corner(k):
        """A coordinate as a pixel, where it is none as one far outside."""
        at = f"regions[{index(regions, 'r', k)}] * {scalar(scale, ctype)}"
        return f"(int)round(fmin(fmax({at}, -{far}), {far}))"
%>
#pragma OPENCL FP_CONTRACT OFF
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global const ${ctype} *regions_base, const int regions_offset,
    __global ${ctype} *dst_base, const int dst_offset)
{
    if (get_global_id(0) >= ${channels // vw} || get_global_id(1) >= ${rows * columns}) return;
    if (get_global_id(2) >= ${count}) return;
    const int c = get_global_id(0) * ${vw}, r = get_global_id(2);
    const int oy = get_global_id(1) / ${columns}, ox = get_global_id(1) % ${columns};
    __global const ${ctype} *src = src_base + src_offset;
    __global const ${ctype} *regions = regions_base + regions_offset;
    __global ${ctype} *dst = dst_base + dst_offset;
    const int n = clamp((int)regions[${index(regions, "r", 0)}], 0, ${src.shape[0] - 1});
% for axis, (first, last, outs, extent) in {"x": (1, 3, columns, width), "y": (2, 4, rows, height)}.items():
    const int first_${axis} = ${corner(first)};
    const ${ctype} extent_${axis} = max(${corner(last)} - first_${axis} + 1, 1), outs_${axis} = ${outs};
    ${ctype} step_${axis} = extent_${axis} / outs_${axis};
    step_${axis} += fma(-step_${axis}, outs_${axis}, extent_${axis}) / outs_${axis};  // some devices divide inexactly
    const int begin_${axis} = clamp((int)floor(o${axis} * step_${axis}) + first_${axis}, 0, ${extent});
    const int end_${axis} = clamp((int)ceil((o${axis} + 1) * step_${axis}) + first_${axis}, 0, ${extent});
% endfor
    ${V} result = begin_x < end_x && begin_y < end_y ? (${V})(${low}) : (${V})(0);
    for (int y = begin_y; y < end_y; ++y)
        for (int x = begin_x; x < end_x; ++x) {
            const ${V} value = ${load(ctype, vw, "src", index(src, "n", "c", "y", "x"))};
            result = value > result || isnan(value) ? value : result;
        }
    ${m.store_lanes(vw, "result", "dst", index(dst, "r", "c", "oy", "ox"), dst.pitches[1], 0, ctype)}
}
