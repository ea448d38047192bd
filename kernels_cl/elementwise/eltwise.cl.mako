<%doc>
elementwise/eltwise: a chain of elementwise post-ops, or one elementwise function of an arithmetic;
with neither, a copy from one layout to another.

    d[...] = op2(op1(src0[...], src1[...]), src2[...])

Tensors  src 0 is the running value, srcs 1.. are operands of binary post-ops, dst is the result; all
         seen with dst's shape (pitch 0 where an operand is broadcast). A function takes all srcs,
         and its look-up tables table0, table1, ...
Index    element = OFFSET + sum(loop index * pitch), loops as merged by clnn/ops/shared/loops.py
Launch   global (inner / chunk * middle / rows, product of outer extents); one work-item walks `rows`
         indices of the middle loop and `chunk` of the inner one for each
Params   name            kernel name
         ctypes          type of each src, then of dst
         outer           extents of the outer loops
         pitches         [tensor][outer loop]
         middle          extent of the loop around the innermost
         inner           extent of the innermost loop
         middle_pitches, inner_pitches   [tensor]
         post_ops        as clnn/ops/shared/functions.py has them
         operands        node input -> number of its src
         function        Elementwise or None
         tables          types of the function's tables
         wg              local size
Tunables vec             1, 2, 4, 8 or 16; divides chunk
         chunk           divides inner
         rows            divides middle
</%doc>
<%namespace name="fx" file="/${context['function'].library if context['function'] else '_arith/float.cl.mako'}"/>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="sc" file="/_common/scales.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%
    n = len(ctypes) - 1
    assert inner % chunk == 0 and chunk % vec == 0, (inner, chunk, vec)
    assert middle % rows == 0, (middle, rows)
    parts = inner // chunk
    out_type = ctypes[-1]
    strict = any(stored_as(t) == "char" for t in ctypes)
    names = [f"s{k}" for k in range(n)] + ["d"]
    def at(k):
        step = inner_pitches[k]
        row = f" + j * {middle_pitches[k]}" if middle_pitches[k] and middle > 1 else ""
        return names[k] + row + ("" if step == 0 else " + i" if step == 1 else f" + i * {step}")
    def operand(which):
        k = operands[which]
        return load(ctypes[k], vec, f"src{k}", at(k), inner_pitches[k])
%>
% if function:
${fx.functions(function, vec)}
% endif
${group_size(wg)}
__kernel void ${name}(
% for k in range(n):
    __global const ${cell(ctypes[k])} *src${k}_base, const int src${k}_offset,
% endfor
% for k, ctype in enumerate(tables):
    __global const ${cell(ctype)} *table${k},
% endfor
    __global ${cell(out_type)} *dst_base, const int dst_offset)
{
${sc.declare(0, strict)}\
    const int part = get_global_id(0), row = get_global_id(1);
    if (part >= ${parts * (middle // rows)}) return;
    const int first = part % ${parts} * ${chunk}, from = part / ${parts} * ${rows};
    ${lp.offsets("row", outer, pitches, names)}
% for k in range(n):
    __global const ${cell(ctypes[k])} *src${k} = src${k}_base + src${k}_offset;
% endfor
    __global ${cell(out_type)} *dst = dst_base + dst_offset;
    for (int j = from; j < from + ${rows}; ++j)
    for (int i = first; i < first + ${chunk}; i += ${vec}) {
% if function:
%  for k in range(n):
        const ${vec_type(ctypes[k], vec)} v${k} = ${load(ctypes[k], vec, f"src{k}", at(k), inner_pitches[k])};
%  endfor
        ${getattr(fx, function.name)(function, vec, [f"v{k}" for k in range(n)], "result")}
        ${store(vec, "result", "dst", at(n), out_type)}
% else:
        ${vec_type(ctypes[0], vec)} v = ${load(ctypes[0], vec, "src0", at(0), inner_pitches[0])};
        ${st.apply(post_ops, "v", ctypes[0], vec, operand)}
        ${store(vec, "v", "dst", at(n), out_type)}
% endif
    }
}
