<%doc>
resize/resize_repeat: every input is repeated a whole number of times along one or two axes.

Tensors  src, dst: seen as outer axes x [rows of src] x positions of src x inner run
Index    input (y, x) goes to outputs (y * fy + 0.., x * fx + 0..)
Launch   global (positions / span [x inner / vw where `split`], outer x rows / band)
Params   name, extra_types, inner_pitches, post_ops, operands, wg   as in resize/resize
         ctype           type of src and dst
         extents         of the outer axes, then the rows'
         pitches         of those: [src, operands..., dst]; of rows: of one input, that is fy outputs
         last            of the positions: extent and pitch in src
         factors         (fy, fx)
         steps_y, steps_x   pitch of one output for each operand and dst
         inner           elements of the inner run
Tunables vw, span, band, split   as in resize/resize
         wide            vectors lie along the positions (inner is 1, positions are neighbours in
                         src and dst)
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%
    n_extra = len(extra_types)
    rows = prod(extents)
    names = ["s"] + [f"e{k}" for k in range(n_extra)] + ["d"]
    extent, pitch = last
    fy, fx = factors
    assert not wide or (inner == 1 and pitch == 1 and steps_x[-1] == 1), (inner, pitch)
    whole = inner // vw * vw
    def lanes(width, k):
        return "".join("0123456789abcdef"[(k * width + j) // fx] for j in range(width))
%>
<%def name="put(width, v, dy, k, c)">\
<%
    # of `wide`, vector k of the repeated ones; otherwise copy k of the vector
    along = f"{k * width}" if wide else f"{k * steps_x[-1]} + {c}"
    def operand(which):
        e = operands[which]
        if wide:
            return load(extra_types[e], width, f"extra{e}", f"{dy * steps_y[e]} + (x * {fx} + {k * width}) * {steps_x[e]}", steps_x[e])
        lane = f" + {c}" if inner_pitches[e] else ""
        return load(extra_types[e], width, f"extra{e}", f"{dy * steps_y[e]} + (x * {fx} + {k}) * {steps_x[e]}{lane}", inner_pitches[e])
%>\
% if operands:
            {
                ${vec_type(ctype, width)} r = ${v};
                ${st.apply(post_ops, "r", ctype, width, operand)}
                ${store(width, "r", "to", f"{dy * steps_y[-1]} + {along}", ctype)}
            }
% else:
            ${store(width, v, "to", f"{dy * steps_y[-1]} + {along}", ctype)}
% endif
</%def>
<%def name="one(width, c)">\
            ${vec_type(ctype, width)} v = ${load(ctype, width, "from", c)};
% if post_ops and not operands:
            ${st.apply(post_ops, "v", ctype, width, None)}
% endif
% for dy in range(fy):
%  for k in range(fx):
${put(width, f"v.s{lanes(width, k)}" if wide and width > 1 else "v", dy, k, c)}
%  endfor
% endfor
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(ctype)} *src_base, const int src_offset,
% for k in range(n_extra):
    __global const ${cell(extra_types[k])} *extra${k}_base, const int extra${k}_offset,
% endfor
    __global ${cell(ctype)} *dst_base, const int dst_offset)
{
    const int id = get_global_id(0);
% if split:
    const int c = id % ${inner // vw} * ${vw}, first = id / ${inner // vw};
% else:
    const int first = id * ${span};
% endif
    if (first >= ${extent}) return;
    const int begin = get_global_id(1) * ${band}, end = min(first + ${1 if split else span}, ${extent});
    for (int row = begin; row < min(begin + ${band}, ${rows}); ++row) {
    ${lp.offsets("row", extents, pitches, names)}
    __global const ${cell(ctype)} *src = src_base + src_offset + s;
    __global ${cell(ctype)} *dst = dst_base + dst_offset + d;
% for k in range(n_extra):
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset + e${k};
% endfor
% if wide:
    int x = first;
%  for width in (16, 8, 4, 2, 1):
%   if width <= vw:
    for (; x + ${width} <= end; x += ${width}) {
        __global const ${cell(ctype)} *from = src + x;
        __global ${cell(ctype)} *to = dst + x * ${fx};
${one(width, "0")}
    }
%   endif
%  endfor
% else:
    for (int x = first; x < end; ++x) {
        __global const ${cell(ctype)} *from = src + x * ${pitch};
        __global ${cell(ctype)} *to = dst + x * ${fx * steps_x[-1]};
%  if split:
        {
${one(vw, "c")}
        }
%  elif is_one(inner):
        {
${one(1, "0")}
        }
%  else:
        for (int c = 0; c < ${whole}; c += ${vw}) {
${one(vw, "c")}
        }
%   if is_open(inner) and vw > 1:
        for (int c = ${whole}; c < ${inner}; ++c) {
${one(1, "c")}
        }
%   elif whole < inner:
        {
${one(vw, str(inner - vw))}
        }
%   endif
%  endif
    }
% endif
    }
}
