<%doc>
pool/roi_align: regions of images as outputs of one size, each folded from bilinear samples.

    region  +-------+-------+   outputs (0, 0) and (0, 1) of a region; each takes a grid of
            | .   . | .   . |   samples (.), each sample the four pixels around it
            | .   . | .   . |
            +-------+-------+

Tensors  src: (n, c, h, w) | regions: (r, 4) | images: (r) | dst: (r, c, oh, ow)
Index    output (r, c, oy, ox) takes samples of src[images[r], c]; those beyond one pixel outside of
         the image count as 0, an image that is not there as the nearest
Launch   global (vectors of channels, oh * ow, r)
Params   name            kernel name
         ctype           type of src, regions and dst
         index_type      type of images
         src, dst, regions, images   TensorLayout
         mode            avg: the mean of the samples; max: the largest of their weighted pixels
         samples         per output and axis; 0: as many as the region has pixels there
         scale           of the regions' coordinates
         half_pixel      coordinates are shifted by half a pixel, regions may be smaller than one
         wg              local size
Tunables vw              1, 2, 4, 8 or 16 channels, a divisor of all; over 1 they have pitch 1
NaN      propagates
</%doc>
<%namespace name="rw" file="/_common/rows.cl.mako"/>
<%
    m = rw.module
    count, channels, rows, columns = dst.shape
    height, width = src.shape[2:]
    assert mode in ("avg", "max"), mode
    assert channels % vw == 0 and (vw == 1 or src.pitches[1] == 1), "a vector needs pitch 1"
    V = vec_type(ctype, vw)
    low = scalar(-float("inf"), ctype)
    def pixel(y, x):
        return load(ctype, vw, "src", index(src, "n", "c", y, x))
    def larger(a, b):
        return f"({a} > {b} || isnan({a})) ? {a} : {b}"
%>
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global const ${ctype} *regions_base, const int regions_offset,
    __global const ${index_type} *images_base, const int images_offset,
    __global ${ctype} *dst_base, const int dst_offset)
{
    if (get_global_id(0) >= ${channels // vw} || get_global_id(1) >= ${rows * columns}) return;
    if (get_global_id(2) >= ${count}) return;
    const int c = get_global_id(0) * ${vw}, r = get_global_id(2);
    const int oy = get_global_id(1) / ${columns}, ox = get_global_id(1) % ${columns};
    __global const ${ctype} *src = src_base + src_offset;
    __global const ${ctype} *regions = regions_base + regions_offset;
    __global const ${index_type} *images = images_base + images_offset;
    __global ${ctype} *dst = dst_base + dst_offset;
    const int n = clamp((int)images[${index(images, "r")}], 0, ${src.shape[0] - 1});
% for axis, (at, first, last, out) in {"x": (0, 0, 2, columns), "y": (1, 1, 3, rows)}.items():
    const ${ctype} begin_${axis} = regions[${index(regions, "r", first)}] * ${scalar(scale, ctype)} - ${scalar(0.5 if half_pixel else 0.0, ctype)};
    const ${ctype} end_${axis} = regions[${index(regions, "r", last)}] * ${scalar(scale, ctype)} - ${scalar(0.5 if half_pixel else 0.0, ctype)};
%  if half_pixel:
    const ${ctype} step_${axis} = (end_${axis} - begin_${axis}) / ${scalar(out, ctype)};
%  else:
    const ${ctype} step_${axis} = fmax(end_${axis} - begin_${axis}, ${scalar(1.0, ctype)}) / ${scalar(out, ctype)};
%  endif
    const int count_${axis} = ${samples if samples else f"(int)ceil(step_{axis})"};
% endfor
    ${V} result = ${"0" if mode == "avg" else low};
    for (int i = 0; i < count_y; ++i) {
        ${ctype} y = begin_y + oy * step_y + (i + ${scalar(0.5, ctype)}) * step_y / count_y;
        const bool outside_y = !(y >= -1 && y <= ${height});
        y = fmin(fmax(y, ${scalar(0.0, ctype)}), ${scalar(float(height - 1), ctype)});
        const int y0 = (int)y, y1 = min(y0 + 1, ${height - 1});
        const ${ctype} v = y - y0;
        for (int j = 0; j < count_x; ++j) {
            ${ctype} x = begin_x + ox * step_x + (j + ${scalar(0.5, ctype)}) * step_x / count_x;
            const bool inside = !outside_y && x >= -1 && x <= ${width};
            x = fmin(fmax(x, ${scalar(0.0, ctype)}), ${scalar(float(width - 1), ctype)});
            const int x0 = (int)x, x1 = min(x0 + 1, ${width - 1});
            const ${ctype} u = x - x0;
            const ${V} a = (1 - v) * (1 - u) * ${pixel("y0", "x0")}, b = (1 - v) * u * ${pixel("y0", "x1")};
            const ${V} d = v * (1 - u) * ${pixel("y1", "x0")}, e = v * u * ${pixel("y1", "x1")};
% if mode == "avg":
            if (inside) result += a + b + d + e;
% else:
            const ${V} none = 0;
            ${V} best = ${larger("a", "b")};
            best = ${larger("d", "best")};
            best = ${larger("e", "best")};
            best = inside ? best : none;
            result = ${larger("best", "result")};
% endif
        }
    }
% if mode == "avg":
    result /= (${ctype})max(count_y * count_x, 1);
% else:
    if (count_y <= 0 || count_x <= 0) result = 0;
% endif
    ${m.store_lanes(vw, "result", "dst", index(dst, "r", "c", "oy", "ox"), dst.pitches[1], 0, ctype)}
}
