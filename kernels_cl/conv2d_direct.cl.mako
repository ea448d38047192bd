<%doc>
conv2d_direct: convolution with a register tile of `mr` pixels x `nv` vectors of output channels.

Tensors  src, dst: images with channels innermost (pitch 1), seen as (n, c, h, w)
         weights: [groups * blocks][kh][kw][ic][nv * vw], output channels padded with zeros
         bias: [groups * blocks][nv * vw]
Index    row:     pixels of a tile are neighbours in one output row, one address for all
         pointer: pixels are counted through rows, one address per pixel
         checked: as pointer, and taps outside of src read from a row of zeros instead
Launch   global (pixel tiles, channel blocks, batch), or channel blocks first where `blocks_first`
Params   name | src, dst: TensorLayout | ic, oc: channels per group | groups | kernel, strides,
         dilations, pads: (y, x) | mode | steps, operands: fused elementwise steps; operand layouts
         are broadcast to dst | blocks_first | wg | has_bias
Tunables mr {1..28} | nv {1,2,3,4} | vw {1,4,8,16} | staged: steps run in a loop over the tile
</%doc>
<%namespace name="st" file="_common/steps.cl.mako"/>
<%
    kh, kw = kernel
    sy, sx = strides
    dy, dx = dilations
    py, px = pads
    ocb = nv * vw
    blocks = -(-oc // ocb)
    tail = oc - (blocks - 1) * ocb
    oh, ow = dst.shape[2:]
    ih, iw = src.shape[2:]
    pixels = oh * ow
    tiles = oh * (ow // mr) if mode == "row" else -(-pixels // mr)
    assert mode in ("row", "pointer", "checked"), mode
    assert mode != "row" or ow % mr == 0, (ow, mr)
    assert src.pitches[1] == 1 or src.shape[1] == 1, "channels of src must be innermost"
    V = vec_type("float", vw)
    ids = ("get_global_id(1)", "get_global_id(0)") if blocks_first else ("get_global_id(0)", "get_global_id(1)")
    exact = mode == "row" or pixels % mr == 0
    tap = (dy * src.pitches[2], dx * src.pitches[3])
    move = sx * src.pitches[3]
    def at(m):
        return f"p[{m * move} + c]" if mode == "row" else f"p[f{m} + c]" if mode == "pointer" else f"q{m}[c]"
%>
<%def name="store_vector(value, pointer, count)">\
% if count >= vw:
    ${store(vw, value, pointer, "0")}
% else:
<% names = "0123456789abcdef"; start = 0 %>\
%  for width in (8, 4, 2, 1):
%   if count & width:
    ${store(width, f"{value}.s{names[start:start + width]}", pointer, str(start))}
<%  start += width %>\
%   endif
%  endfor
% endif
</%def>
<%def name="load_operand(layout, pointer, where, count)">\
<% pitch = layout.pitches[1] if layout.shape[1] != 1 else 0 %>\
% if pitch == 0 or count >= vw:
${load("float", vw, pointer, where, pitch)}\
% else:
(${V})(${", ".join([f"{pointer}[{where} + {k}]" for k in range(count)] + ["0"] * (vw - count))})\
% endif
</%def>
<%def name="finish(m, v, count, value)">\
<%
    lane = f"+ {v * vw}" if v else ""
    def operand(which):
        k, layout = operands[which]
        where = index(layout, "n", f"oc {lane}", f"y{m}", f"x{m}")
        return capture(load_operand, layout, f"extra{k}", where, count).strip()
%>\
    ${st.apply(steps, value, "float", vw, operand)}
    ${store_vector(value, f"(dst + {index(dst, 'n', f'oc {lane}', f'y{m}', f'x{m}')})", count)}
</%def>
<%def name="finish_tile(channels)">\
% for m in range(mr):
%  if not exact:
    if (first + ${m} < ${pixels}) {
%  endif
%  for v in range(nv):
%   if channels - v * vw > 0:
    ${finish(m, v, min(channels - v * vw, vw), f"a{m}_{v}")}
%   endif
%  endfor
%  if not exact:
    }
%  endif
% endfor
</%def>
<%def name="finish_staged(channels)">\
    ${V} t[${mr * nv}];
% for m in range(mr):
%  for v in range(nv):
    t[${m * nv + v}] = a${m}_${v};
%  endfor
% endfor
    for (int m = 0; m < ${mr}; ++m) {
% if mode == "row":
        const int y_m = top, x_m = left + m;
% else:
        const int pixel = first + m, y_m = pixel / ${ow}, x_m = pixel % ${ow};
        if (pixel >= ${pixels}) break;
% endif
% for v in range(nv):
%  if channels - v * vw > 0:
        {
            ${V} value = t[m * ${nv} + ${v}];
            ${finish("_m", v, min(channels - v * vw, vw), "value")}
        }
%  endif
% endfor
    }
</%def>
<%def name="multiply()">\
% for v in range(nv):
            const ${V} b${v} = ${load("float", vw, "w", str(v * vw))};
% endfor
% for m in range(mr):
            {
                const ${V} s = (${V})(${at(m)});
%  for v in range(nv):
                a${m}_${v} = fma(s, b${v}, a${m}_${v});
%  endfor
            }
% endfor
            w += ${ocb};
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset, __global const float *weights,
% if has_bias:
    __global const float *bias,
% endif
% if mode == "checked":
    __global const float *zeros,
% endif
% for k, _ in operands.values():
    __global const float *extra${k}_base, const int extra${k}_offset,
% endfor
    __global float *dst_base, const int dst_offset)
{
    const int tile = ${ids[0]}, block = ${ids[1]}, n = get_global_id(2);
    if (tile >= ${tiles} || block >= ${blocks * groups}) return;
    __global const float *src = src_base + src_offset;
    __global float *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const float *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    const int group = block / ${blocks}, part = block % ${blocks};
    const int oc = group * ${oc} + part * ${ocb};
    __global const float *w = weights + block * ${kh * kw * ic * ocb};
% if mode == "row":
    const int top = tile / ${ow // mr}, left = (tile % ${ow // mr}) * ${mr};
%  for m in range(mr):
    const int y${m} = top, x${m} = left + ${m};
%  endfor
% else:
    const int first = tile * ${mr};
%  for m in range(mr):
    const int i${m} = min(first + ${m}, ${pixels - 1}), y${m} = i${m} / ${ow}, x${m} = i${m} % ${ow};
%  endfor
% endif
% for v in range(nv):
%  if has_bias:
    ${V} a0_${v} = ${load("float", vw, "bias", f"block * {ocb} + {v * vw}")};
%  else:
    ${V} a0_${v} = (${V})(0);
%  endif
%  for m in range(1, mr):
    ${V} a${m}_${v} = a0_${v};
%  endfor
% endfor
    __global const float *image = src + ${index(src, "n", f"group * {ic}", 0, 0)};
% if mode == "row":
    __global const float *corner = image + (top * ${sy} - ${py}) * ${src.pitches[2]} + (left * ${sx} - ${px}) * ${src.pitches[3]};
% elif mode == "pointer":
    __global const float *corner = image - ${py * src.pitches[2] + px * src.pitches[3]};
%  for m in range(mr):
    const int f${m} = y${m} * ${sy * src.pitches[2]} + x${m} * ${move};
%  endfor
% endif
    for (int ky = 0; ky < ${kh}; ++ky)
    for (int kx = 0; kx < ${kw}; ++kx) {
% if mode == "checked":
%  for m in range(mr):
        const int iy${m} = y${m} * ${sy} - ${py} + ky * ${dy}, ix${m} = x${m} * ${sx} - ${px} + kx * ${dx};
        __global const float *q${m} = iy${m} >= 0 && iy${m} < ${ih} && ix${m} >= 0 && ix${m} < ${iw}
            ? image + iy${m} * ${src.pitches[2]} + ix${m} * ${src.pitches[3]} : zeros;
%  endfor
% else:
        __global const float *p = corner + ky * ${tap[0]} + kx * ${tap[1]};
% endif
% if ic <= 4:
%  for c in range(ic):
        {
            const int c = ${c};
            ${multiply()}
        }
%  endfor
% else:
        for (int c = 0; c < ${ic}; ++c) {
            ${multiply()}
        }
% endif
    }
<% do_finish = finish_staged if staged else finish_tile %>\
% if tail == ocb:
    ${do_finish(ocb)}
% elif blocks == 1:
    ${do_finish(tail)}
% else:
    if (part < ${blocks - 1}) {
    ${do_finish(ocb)}
    } else {
    ${do_finish(tail)}
    }
% endif
}
