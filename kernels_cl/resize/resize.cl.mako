<%doc>
resize/resize: each output is a weighted sum of inputs along one or more axes; tables say which and
how much.

Tensors  src, dst: seen as outer axes x resized axes x inner run; the run is contiguous in both
         index: for each resized axis [output][tap], element offsets in src; where outputs may lie
         outside, then [output] 1 for those
         weight: for each resized axis [output][tap]
Launch   global (positions on the last axis / span [x inner / vw where `split`],
         outer x other axes / band)
Params   name            kernel name
         src_type, dst_type
         acc             type of sums, or the type moved where there are no weights
         in_turn         of integers: products of weights, last axis first, and sums are rounded one by
                         one in the order of the axes, then towards zero; otherwise to the nearest
         value           type that post-ops work on
         weighted        whether there are weights
         extents         of the outer axes, then of all resized axes but the last
         pitches         of those: [src (0 on resized axes), operands..., dst]
         last            of the last resized axis: extent, and pitch of each operand and dst
         taps            of each resized axis
         index_at, weight_at   where each resized axis begins in the tables
         flags_at        the same of the flags of what lies outside, or empty
         fill            value of outputs that lie outside
         inner           elements of the inner run
         extra_types, inner_pitches   of each operand
         post_ops        fused post-ops
         operands        node input -> number
         wg              local size
Tunables vw              1, 2, 4, 8 or 16; at most inner, unless that is read at run time
         span            positions of a row that one work-item walks
         band            rows that one work-item walks
         split           inner runs are spread over work-items (vw divides inner then)
</%doc>
<%namespace name="cv" file="/_common/convert.cl.mako"/>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%
    import itertools
    n_extra, axes = len(extra_types), len(taps)
    outer = len(extents) - (axes - 1)
    rows = prod(extents)
    names = ["s"] + [f"e{k}" for k in range(n_extra)] + ["d"]
    assert not split or inner % vw == 0, (inner, vw)
    unrolled = prod(taps) <= 16
    vectors = inner // vw
    combos = list(itertools.product(*(range(t) for t in taps)))
    def position(k):
        return "x" if k == axes - 1 else f"ax{outer + k}_"
    def row(table, k, t):
        return f"{table}[{(index_at if table == 'index' else weight_at)[k]} + {position(k)} * {taps[k]} + {t}]"
    moves = not weighted
    rounding = "rtz" if in_turn else "rte"
    def add(pixel, weight):
        return f"v + {pixel} * {weight}" if in_turn else f"fma({pixel}, {weight}, v)"
%>
<%def name="operand_at(which, width, c)">\
<%
    k = operands[which]
    where = f"x * {last[1 + k]}" + (f" + {c}" if inner_pitches[k] else "")
%>\
${cv.read(extra_types[k], value, width, f"extra{k}", where, inner_pitches[k])}\
</%def>
<%def name="one(width, c)">\
<% V = vec_type(acc, width) %>\
% if unrolled:
            ${V} v = ${capture(cv.read, src_type, acc, width, "p0", c).strip()}${"" if moves else " * w0"};
%  for j in range(1, len(combos)):
            v = ${add(capture(cv.read, src_type, acc, width, f"p{j}", c).strip(), f"({V})(w{j})")};
%  endfor
% else:
            ${V} v = (${V})(0);
%  for k in range(axes):
            for (int t${k} = 0; t${k} < ${taps[k]}; ++t${k}) {
%   if not in_turn:
                const ${acc} q${k} = ${f"q{k - 1} * " if k else ""}${row("weight", k, f"t{k}")};
%   elif k == axes - 1:
                const ${acc} q${k} = ${" * ".join(row("weight", a, f"t{a}") for a in reversed(range(axes)))};
%   endif
                const int i${k} = ${f"i{k - 1} + " if k else ""}${row("index", k, f"t{k}")};
%  endfor
                v = ${add(capture(cv.read, src_type, acc, width, "src", f"i{axes - 1} + {c}").strip(), f"({V})(q{axes - 1})")};
%  for k in range(axes):
            }
%  endfor
% endif
% if shift:
            v /= ${1 << shift};
% endif
% if flags_at:
            if (outside) v = (${V})(${scalar(fill, acc)});
% endif
% if value != acc:
            ${vec_type(value, width)} r = convert_${value}${"" if width == 1 else width}_sat_${rounding}(v);
% else:
            ${V} r = v;
% endif
            ${st.apply(post_ops, "r", value, width, lambda which: capture(operand_at, which, width, c).strip())}
            ${cv.write(value, dst_type, width, "r", "to", c)}
</%def>
% if in_turn:
#pragma OPENCL FP_CONTRACT OFF
% endif
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(src_type)} *src_base, const int src_offset, __global const int *index,
% if weighted:
    __global const ${cell(acc)} *weight,
% endif
% for k in range(n_extra):
    __global const ${cell(extra_types[k])} *extra${k}_base, const int extra${k}_offset,
% endfor
    __global ${cell(dst_type)} *dst_base, const int dst_offset)
{
    const int id = get_global_id(0);
% if split:
    const int c = id % ${vectors} * ${vw}, first = id / ${vectors};
% else:
    const int first = id * ${span};
% endif
    if (first >= ${last[0]}) return;
    const int begin = get_global_id(1) * ${band};
    for (int row = begin; row < min(begin + ${band}, ${rows}); ++row) {
    ${lp.offsets("row", extents, pitches, names)}
    __global const ${cell(src_type)} *src = src_base + src_offset + s;
    __global ${cell(dst_type)} *dst = dst_base + dst_offset + d;
% for k in range(n_extra):
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset + e${k};
% endfor
% if unrolled:
%  for k in range(axes - 1):
%   for t in range(taps[k]):
    const int i${k}_${t} = ${row("index", k, t)};
%    if weighted:
    const ${acc} q${k}_${t} = ${row("weight", k, t)};
%    endif
%   endfor
%  endfor
% endif
    for (int x = first; x < min(first + ${1 if split else span}, ${last[0]}); ++x) {
        __global ${cell(dst_type)} *to = dst + x * ${last[-1]};
% if flags_at:
        const int outside = ${" | ".join(f"index[{flags_at[k]} + {position(k)}]" for k in range(axes))};
% endif
% if unrolled:
%  for t in range(taps[-1]):
        const int i${axes - 1}_${t} = ${row("index", axes - 1, t)};
%   if weighted:
        const ${acc} q${axes - 1}_${t} = ${row("weight", axes - 1, t)};
%   endif
%  endfor
%  for j, chosen in enumerate(combos):
        __global const ${cell(src_type)} *p${j} = src + ${" + ".join(f"i{k}_{t}" for k, t in enumerate(chosen))};
%   if weighted:
        const ${acc} w${j} = ${" * ".join(f"q{k}_{t}" for k, t in list(enumerate(chosen))[:: -1 if in_turn else 1])};
%   endif
%  endfor
% endif
% if split:
        {
${one(vw, "c")}
        }
% elif is_one(inner):
        {
${one(1, "0")}
        }
% else:
        for (int c = 0; c < ${vectors * vw}; c += ${vw}) {
${one(vw, "c")}
        }
%  if is_open(inner) and vw > 1:
        for (int c = ${vectors * vw}; c < ${inner}; ++c) {
${one(1, "c")}
        }
%  elif inner % vw:
        {
${one(vw, str(inner - vw))}
        }
%  endif
% endif
    }
    }
}
