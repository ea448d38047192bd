<%doc>
conv/transpose_reference: transposed convolution of any geometry, one work-item per output element.

Tensors  src, dst: images in any layout, seen as (n, c, h, w)
         weights: (ic, oc / groups, kh, kw) in any layout
         bias: (oc) or None
         table: [rows][oc], constants of the arithmetic, of which the first, where sums begin, is nothing
Launch   global (output elements)
Params   as of conv/reference
</%doc>
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%
    kh, kw = kernel
    n_, oc_, oh, ow = dst.shape
    ic, per = src.shape[1] // groups, oc_ // groups
    xt, wt, tt, yt = types
    P = arith.product
    less = f" - ({arith.fill})" if arith.fill else ""
    at_once = 4 if arith.apart and arith.quads else arith.apart
    step = f" * {scalar(arith.step_in, 'float')}" if arith.apart else ""
    def row(k):
        return element(tt, "bias", f"bias_offset + oc * {bias.pitches[0]}") if bias is not None else f"table[{k * oc_} + oc]"
    def operand(which):
        k, layout = operands[which]
        return element(yt, f"extra{k}", index(layout, "n", "oc", "y", "x"))
%>
${ar.functions(arith, 1)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(xt)} *src_base, const int src_offset,
    __global const ${cell(wt)} *weights, const int weights_offset,
% if bias is not None:
    __global const ${cell(tt)} *bias, const int bias_offset,
% elif rows:
    __global const ${cell(tt)} *table,
% endif
% for k, _ in operands.values():
    __global const ${cell(yt)} *extra${k}_base, const int extra${k}_offset,
% endfor
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
    const int k = get_global_id(0);
    if (k >= ${n_ * oc_ * oh * ow}) return;
    const int x = k % ${ow}, y = k / ${ow} % ${oh}, oc = k / ${oh * ow} % ${oc_}, n = k / ${oc_ * oh * ow};
% for k, _ in operands.values():
    __global const ${cell(yt)} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    __global const ${cell(xt)} *src = src_base + src_offset;
    __global const ${cell(wt)} *w = weights + weights_offset;
    const int group = oc / ${per}, column = oc % ${per};
    ${arith.acc} v = ${ar.start(arith, 1, rows, row)};
    for (int ky = 0; ky < ${kh}; ++ky) {
        const int fy = y + ${pads[0]} - ky * ${dilations[0]}, iy = fy / ${strides[0]};
        if (fy < 0 || fy % ${strides[0]} || iy >= ${src.shape[2]}) continue;
        for (int kx = 0; kx < ${kw}; ++kx) {
            const int fx = x + ${pads[1]} - kx * ${dilations[1]}, ix = fx / ${strides[1]};
            if (fx < 0 || fx % ${strides[1]} || ix >= ${src.shape[3]}) continue;
% if arith.apart:
            float tap = 0.0f, part = 0.0f;
% endif
            for (int c = 0; c < ${ic}; ++c) {
<% pixel = element(xt, "src", index(src, "n", f"group * {ic} + c", "iy", "ix")) + less %>\
                const ${P} s = ${f"({P})({pixel}){step}" if arith.apart else pixel};
                const ${P} t = ${element(wt, "w", index(weights, f"group * {ic} + c", "column", "ky", "kx"))};
% if arith.apart and arith.quads:
                part += s * t;
% else:
                ${ar.mac(arith, 1, "part" if arith.apart else "v", "s", "t")}
% endif
% if arith.apart:
                if (c % ${at_once} == ${at_once - 1} || c == ${ic - 1}${f" || c == {ic - 2}" if arith.quads and ic % 4 == 3 else ""}) {
                    tap += part;
                    part = 0.0f;
                }
% endif
            }
% if arith.apart:
            v += tap;
% endif
        }
    }
    ${ar.finish(arith, 1, "v", "result", row)}
<% value = arith.result("v", "result") %>\
    ${st.apply(post_ops, value, yt, 1, operand)}
    ${store(1, value, "dst_base", f"dst_offset + {index(dst, 'n', 'oc', 'y', 'x')}", yt)}
}
