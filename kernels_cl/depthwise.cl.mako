<%doc>
depthwise: convolution with one filter per channel, `tx` output columns at a time in registers.

Tensors  src, dst: images with channels innermost, seen as (n, c, h, w); src has the border that
         the taps reach | weights: [kh][kw][c] | bias: [c]
Launch   global (channel vectors, row bands, batch); one work-item walks `band` output rows
Params   name | src, dst: TensorLayout | kernel, strides, dilations, pads: (y, x) | has_bias |
         steps, operands | wg
Tunables vw {1,2,4,8,16}, divides c | tx: columns per step | band: rows per work-item
</%doc>
<%namespace name="st" file="_common/steps.cl.mako"/>
<%
    kh, kw = kernel
    sy, sx = strides
    dy, dx = dilations
    channels = dst.shape[1]
    oh, ow = dst.shape[2:]
    V = vec_type("float", vw)
    assert channels % vw == 0, (channels, vw)
    assert src.pitches[1] == 1 or channels == 1, "channels of src must be innermost"
    in_registers = kh * kw <= 9
    whole = ow - ow % tx
    def weight(ky, kx):
        return f"w{ky}_{kx}" if in_registers else load("float", vw, "w", f"{(ky * kw + kx) * channels}")
    def operand(which):
        k, layout = operands[which]
        pitch = layout.pitches[1] if layout.shape[1] != 1 else 0
        return load("float", vw, f"extra{k}", index(layout, "n", "c", "y", "xo"), pitch)
%>
<%def name="columns(count)">\
% for t in range(count):
        ${V} a${t} = first;
% endfor
% for ky in range(kh):
<% taps = {} %>\
%  for t in range(count):
%   for kx in range(kw):
<% taps.setdefault(t * sx + kx * dx, []).append((t, kx)) %>\
%   endfor
%  endfor
%  for column in sorted(taps):
        {
            const ${V} s = ${load("float", vw, "p", f"{ky * dy * src.pitches[2] + column * src.pitches[3]}")};
%   for t, kx in taps[column]:
            a${t} = fma(s, ${weight(ky, kx)}, a${t});
%   endfor
        }
%  endfor
% endfor
% for t in range(count):
        {
            const int xo = x + ${t};
            ${st.apply(steps, f"a{t}", "float", vw, operand)}
            ${store(vw, f"a{t}", "dst", index(dst, "n", "c", "y", "xo"))}
        }
% endfor
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset, __global const float *weights,
% if has_bias:
    __global const float *bias,
% endif
% for k, _ in operands.values():
    __global const float *extra${k}_base, const int extra${k}_offset,
% endfor
    __global float *dst_base, const int dst_offset)
{
    const int c = get_global_id(0) * ${vw}, n = get_global_id(2);
    const int from = get_global_id(1) * ${band}, to = min(from + ${band}, ${oh});
    if (c >= ${channels}) return;
    __global const float *w = weights + c;
    __global float *dst = dst_base + dst_offset;
% for k, _ in operands.values():
    __global const float *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
% if in_registers:
%  for ky in range(kh):
%   for kx in range(kw):
    const ${V} w${ky}_${kx} = ${load("float", vw, "w", str((ky * kw + kx) * channels))};
%   endfor
%  endfor
% endif
    const ${V} first = ${load("float", vw, "bias", "c") if has_bias else f"({V})(0)"};
    __global const float *image = src_base + src_offset + ${index(src, "n", "c", 0, 0)} - ${pads[0] * src.pitches[2] + pads[1] * src.pitches[3]};
    for (int y = from; y < to; ++y) {
    __global const float *row = image + y * ${sy * src.pitches[2]};
% if whole:
    for (int x = 0; x < ${whole}; x += ${tx}) {
        __global const float *p = row + x * ${sx * src.pitches[3]};
        ${columns(tx)}
    }
% endif
% if ow % tx:
    {
        const int x = ${whole};
        __global const float *p = row + x * ${sx * src.pitches[3]};
        ${columns(ow % tx)}
    }
% endif
    }
}
