<%doc>
pool/pool: maximum, average or p-norm of a sliding window, in any layout and of any spatial rank.

Tensors  src, dst: (n, c, spatial...) | indices: as dst, the flat index in src of each maximum
Taps     each axis gets the range of taps that meet an element, so that nothing outside is read
Launch   global (vectors of output elements, channels fastest); one work-item takes `band` of them
Params   name            kernel name
         ctype           type of src, dst and operands
         src, dst        TensorLayout
         kernel, strides, dilations, before, after   per spatial axis
         mode            max, average or lp
         power           the p of lp
         count_pad       an average counts padding
         rule            Averaging, or None
         order           of a window's elements in sums, as ops/pool/spec.py has it; "" as "rows"
         indices         TensorLayout, or None
         column_major    of the indices
         post_ops        fused post-ops
         operands        node input -> (number, layout broadcast to dst)
         wg              local size
Tunables vw              1, 2, 4, 8 or 16 channels; at most all of them; over 1 they have pitch 1
         band            vectors that one work-item takes
NaN      propagates; with indices, the first NaN is the maximum
</%doc>
<%namespace name="rw" file="/_common/rows.cl.mako"/>
<%namespace name="pl" file="/_common/pooling.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="ar" file="/${context['rule'].library if context['rule'] else '_arith/float.cl.mako'}"/>
<%
    m = rw.module
    rank = len(kernel)
    channels, outs, extents = src.shape[1], dst.shape[2:], src.shape[2:]
    vectors = -(-channels // vw)
    spill = vectors * vw - channels
    count, plane = vectors * dst.shape[0], 1
    for out, extent in zip(outs, extents):
        count, plane = count * out, plane * extent
    assert mode in ("max", "average", "lp"), mode
    assert vw == 1 or src.pitches[1] == 1, "a vector of channels needs pitch 1"
    assert indices is None or (vw == 1 and mode == "max"), "indices are of single maxima"
    acc = rule.acc if rule else ctype
    T = vec_type(acc, vw)
    places = [f"y{a}" for a in range(rank)]
    def operand(which):
        k, layout = operands[which]
        return m.load_lanes(ctype, vw, f"extra{k}", index(layout, "n", "c", *places), layout.pitches[1] if layout.shape[1] != 1 else 0)
    def element(where):
        text = load(ctype, vw, "src", where)
        if rule and acc == "float":  # what bytes stand for
            I = vec_type("int", vw)
            return f"convert_{T}(convert_{I}({text}) - ({I})({rule.zeros[0]})) * ({T})(as_float(rates[0]))"
        return f"convert_{T}({text})" if rule else text
    def flat_index():
        order = reversed(range(rank)) if column_major else range(rank)
        text = "0"
        for a in order:
            text = f"({text}) * {extents[a]} + at{a}"
        return text
    v = "result" if rule else "v"
    by_column = order == "columns" and rank > 1
    axes = [rank - 1, *range(rank - 1)] if by_column else list(range(rank))
    target = "column" if by_column else "v"
    apart = src.pitches[2:]
    in_line = not any(map(is_traced, (*apart, *extents))) and all(
        p == e * q for p, e, q in zip(apart, extents[1:], apart[1:])
    )
    def element_number(number):
        if in_line:
            return element(f"{index(src, 'n', 'c', *[0] * rank)} + ({number}) * {apart[-1]}")
        places, rest = [], number
        for extent in reversed(extents):
            places.insert(0, f"({rest}) % {extent}")
            rest = f"({rest}) / {extent}"
        return element(index(src, "n", "c", *places))
%>
<%def name="sum_in_quads()">\
    ${T} v1 = v, v2 = v, v3 = v;
    int k = 0;
    #pragma unroll 4
    for (; k + 4 <= ${plane}; k += 4) {
        v += ${element_number("k")};
% for k in (1, 2, 3):
        v${k} += ${element_number(f"k + {k}")};
% endfor
    }
    v = (v + v2) + (v1 + v3);
    for (; k < ${plane}; ++k) v += ${element_number("k")};
</%def>
% if rule:
${ar.functions(rule, vw)}
% endif
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(ctype)} *src_base, const int src_offset,
% for k, _ in operands.values():
    __global const ${cell(ctype)} *extra${k}_base, const int extra${k}_offset,
% endfor
% if rule:
    __global const int *rates,
% endif
% if indices is not None:
    __global ${cell(ctype)} *dst_base, const int dst_offset,
    __global long *indices_base, const int indices_offset)
% else:
    __global ${cell(ctype)} *dst_base, const int dst_offset)
% endif
{
    __global const ${cell(ctype)} *src = src_base + src_offset;
% for k, _ in operands.values():
    __global const ${cell(ctype)} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    __global ${cell(ctype)} *dst = dst_base + dst_offset;
    const int begin = get_global_id(0) * ${band};
    for (int item = begin; item < min(begin + ${band}, ${count}); ++item) {
    const int c = ${f"min(item % {vectors} * {vw}, {channels - vw})"};
    int rest = item / ${vectors};
% for a in reversed(range(rank)):
    const int y${a} = rest % ${outs[a]};
    rest /= ${outs[a]};
% endfor
    const int n = rest;
% for a in range(rank):
    const int from${a} = y${a} * ${strides[a]} - ${before[a]};
    const int low${a} = from${a} < 0 ? (${dilations[a] - 1} - from${a}) / ${dilations[a]} : 0;
    const int high${a} = min(${kernel[a]}, (${extents[a] + dilations[a] - 1} - from${a}) / ${dilations[a]});
% endfor
    ${T} v = (${T})(${pl.module.start(mode, acc)});
% if indices is not None:
    int which = -1;
% endif
% if order == "quads":
    ${sum_in_quads()}
% else:
% for a in axes:
    for (int t${a} = low${a}; t${a} < high${a}; ++t${a}) {
        const int at${a} = from${a} + t${a} * ${dilations[a]};
%  if by_column and a == axes[0]:
        ${T} column = (${T})(${pl.module.start(mode, acc)});
%  endif
% endfor
        const ${T} x = ${element(index(src, "n", "c", *[f"at{a}" for a in range(rank)]))};
% if indices is None:
        ${pl.module.take(mode, target, "x", acc, vw, power)}
% else:
        if (${pl.module.beats("x", "v", ctype)} || which < 0) {
            v = x;
            which = ${flat_index()};
        }
% endif
% for a in reversed(axes):
%  if by_column and a == axes[0]:
        ${pl.module.join(mode, "v", "column", acc)}
%  endif
    }
% endfor
% endif
% if mode == "average":
%  if count_pad:
    const int taps = ${" * ".join(f"min({kernel[a]}, ({extents[a] + after[a] + dilations[a] - 1} - from{a}) / {dilations[a]})" for a in range(rank))};
%  else:
    const int taps = ${" * ".join(f"max(high{a} - low{a}, 0)" for a in range(rank))};
%  endif
%  if rule:
    ${ar.finish(rule, vw, "v", "taps", "rates", "result")}
%  else:
    v /= (${ctype})taps;
%  endif
% elif mode == "lp":
    ${pl.module.root("v", ctype, vw, power)}
% endif
    ${st.apply(post_ops, v, ctype, vw, operand)}
<% where, pitch = index(dst, "n", "c", *places), dst.pitches[1] %>\
% if spill:
    if (item % ${vectors} == ${vectors - 1}) { ${m.store_lanes(vw, v, "dst", where, pitch, spill, ctype)} }
    else { ${m.store_lanes(vw, v, "dst", where, pitch, 0, ctype)} }
% else:
    ${m.store_lanes(vw, v, "dst", where, pitch, 0, ctype)}
% endif
% if indices is not None:
    const int first = (n * ${channels} + c) * ${plane};
    indices_base[indices_offset + ${index(indices, "n", "c", *places)}] = which < 0 ? -1 : first + which;
% endif
    }
}
