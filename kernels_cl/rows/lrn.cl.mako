<%doc>
rows/lrn: each element over a power of the sum of squares of its neighbours along the channel axis.

    y[c] = x[c] / (bias + scale * (x[c - low]^2 + ... + x[c + high]^2)) ^ beta

Tensors  src, dst: equal shapes | extra{k}: operands of post-ops, broadcast to that shape
Rows     the channels of one place, as clnn/ops/rows/rows.py lays them out: operand 0 src, 1.. the
         extras, the last one dst
Launch   global (blocks of rows)
Params   name            kernel name
         ctype           type of all tensors
         rows            Rows
         low, high       neighbours on each side
         scale, beta, bias
         post_ops        fused post-ops
         operands        node input -> operand number
         wg              local size
</%doc>
<%namespace name="rw" file="/_common/rows.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%
    m = rw.module
    assert low >= 0 and high >= 0, (low, high)
    last = len(rows.lane_pitches) - 1
    channels, group = rows.extent, rows.group
    step = rows.step_pitches
    unrolled = low + high <= 64

    def at(k, c, lanes=0):
        shift = lanes * rows.lane_pitches[k]
        return f"o{k} + ({c}) * {step[k]}" + (f" + {shift}" if shift else "")

    def over(begin, end):
        return f"for (int c = {begin}{' + member' if group > 1 else ''}; c < {end}; c += {group})"

    def divided(x, b, T):
        if beta == 1:
            return f"{x} / {b}"
        if beta == 0.5:
            return f"{x} / sqrt({b})"
        if beta == 0.75:
            return f"{x} / (sqrt({b}) * sqrt(sqrt({b})))"
        return f"{x} * exp(log({b}) * {scalar(-beta, ctype)})"
%>
<%def name="finish(rows, width, slot)">\
<%
    T = vec_type(ctype, width)
    lanes = slot * rows.vw
    def operand(which):
        k = operands[which]
        return m.load_lanes(ctype, width, f"extra{k}", at(k, "c", lanes), rows.lane_pitches[k])
%>\
    const ${T} b_ = sum_ * ${scalar(scale, ctype)} + ${scalar(bias, ctype)};
    ${T} y_ = ${divided("x_", "b_", T)};
    ${st.apply(post_ops, "y_", ctype, width, operand)}
    ${rw.put(rows, "y_", slot, width, "dst", at(last, "c", lanes), rows.lane_pitches[last], ctype=ctype)}
</%def>
<%def name="checked(rows, width, slot)">\
<% T, pitch, lanes = vec_type(ctype, width), rows.lane_pitches[0], slot * rows.vw %>\
    const ${T} x_ = ${m.load_lanes(ctype, width, "src", at(0, "c", lanes), pitch)};
    ${T} sum_ = (${T})(0);
    for (int k = max(c - ${low}, 0); k <= min(c + ${high}, ${channels - 1}); ++k) {
        const ${T} v_ = ${m.load_lanes(ctype, width, "src", at(0, "k", lanes), pitch)};
        sum_ += v_ * v_;
    }
    ${finish(rows, width, slot)}
</%def>
<%def name="along(rows)">\
<%
    inner = max(0, channels - low - high)
    whole = inner - inner % rows.vw
%>\
    ${over(0, min(low, channels))} { ${checked(rows, 1, 0)} }
% if whole:
    for (int c = ${low}${f" + member * {rows.vw}" if group > 1 else ""}; c < ${low + whole}; c += ${rows.vw * group}) {
        const ${vec_type(ctype, rows.vw)} x_ = ${load(ctype, rows.vw, "src", at(0, "c"))};
        ${vec_type(ctype, rows.vw)} sum_ = x_ * x_;
%  if not unrolled:
        for (int k = ${-low}; k <= ${high}; ++k) {
            const ${vec_type(ctype, rows.vw)} v_ = ${load(ctype, rows.vw, "src", at(0, "(c + k)"))};
            sum_ += k == 0 ? (${vec_type(ctype, rows.vw)})(0) : v_ * v_;
        }
%  endif
%  for k in range(-low, high + 1) if unrolled else ():
%   if k:
        {
            const ${vec_type(ctype, rows.vw)} v_ = ${load(ctype, rows.vw, "src", at(0, f"c + {k}"))};
            sum_ += v_ * v_;
        }
%   endif
%  endfor
        ${finish(rows, rows.vw, 0)}
    }
% endif
% if low + whole < channels:
    ${over(low + whole, channels)} { ${checked(rows, 1, 0)} }
% endif
</%def>
<%def name="walk(rows, narrow)">\
    ${rw.begin(rows, [0, *operands.values(), last], narrow)}
% if rows.across:
    for (int c = 0; c < ${channels}; ++c) {
%  for slot in range(rows.nv):
        { ${checked(rows, rows.vw, slot)} }
%  endfor
    }
% else:
    ${along(rows)}
% endif
    ${rw.end(rows, narrow)}\
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
% for k in operands.values():
    __global const ${ctype} *extra${k}_base, const int extra${k}_offset,
% endfor
    __global ${ctype} *dst_base, const int dst_offset)
{
    __global const ${ctype} *src = src_base + src_offset;
% for k in operands.values():
    __global const ${ctype} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    __global ${ctype} *dst = dst_base + dst_offset;
${rw.walked(rows, walk)}
}
