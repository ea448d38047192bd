<%doc>
elementwise/eltwise: a chain of elementwise post-ops, or one elementwise function of an arithmetic;
with neither, a copy from one layout to another.

    d[...] = op2(op1(src0[...], src1[...]), src2[...])

Tensors  src 0 is the running value, srcs 1.. are operands of binary post-ops, dst is the result; all
         seen with dst's shape (pitch 0 where an operand is broadcast). A function takes all srcs,
         and its look-up tables table0, table1, ...
Index    element = OFFSET + sum(loop index * pitch), loops as merged by clnn/ops/shared/loops.py
Launch   global (inner / chunk * middle / rows, product of outer extents); one work-item walks `rows`
         indices of the middle loop and `chunk` of the inner one for each. What vectors leave of an
         inner extent that is read at run time is walked one by one
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
         chunk           divides inner, unless that is read at run time
         rows            divides middle, likewise
</%doc>
<%namespace name="fx" file="/${context['function'].library if context['function'] else '_arith/float.cl.mako'}"/>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%
    n = len(ctypes) - 1
    assert chunk % vec == 0, (chunk, vec)
    # What an extent that is read at run time leaves of a chunk, or of the rows, is less.
    uneven, uneven_rows = not divides(chunk, inner), not divides(rows, middle)
    assert not uneven or is_open(inner), (inner, chunk)
    assert not uneven_rows or is_open(middle) or is_open(rows), (middle, rows)
    parts, shares = -(-inner // chunk), -(-middle // rows)
    stop = f"min(first + {chunk}, {inner})" if uneven else f"first + {chunk}"
    last_row = f"min(from + {rows}, {middle})" if uneven_rows else f"from + {rows}"
    out_type = ctypes[-1]
    # A function has a text of one width alone, so that nothing may be left of a vector.
    width = 1 if function and uneven and inner % vec != 0 else vec
    names = [f"s{k}" for k in range(n)] + ["d"]
    def at(k):
        step = inner_pitches[k]
        row = f" + j * {middle_pitches[k]}" if not (is_zero(middle_pitches[k]) or is_one(middle)) else ""
        return names[k] + row + ("" if is_zero(step) else " + i" if is_one(step) else f" + i * {step}")
    def read(k, width):
        return load(ctypes[k], width, f"src{k}", at(k), inner_pitches[k])
%>
<%def name="one(width)">\
        ${vec_type(ctypes[0], width)} v = ${read(0, width)};
        ${st.apply(post_ops, "v", ctypes[0], width, lambda which: read(operands[which], width))}
        ${store(width, "v", "dst", at(n), out_type)}
</%def>
% if function:
${fx.functions(function, width)}
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
    const int part = get_global_id(0), row = get_global_id(1);
    if (part >= ${parts * shares}) return;
    const int first = part % ${parts} * ${chunk}, from = part / ${parts} * ${rows};
    ${lp.offsets("row", outer, pitches, names)}
% for k in range(n):
    __global const ${cell(ctypes[k])} *src${k} = src${k}_base + src${k}_offset;
% endfor
    __global ${cell(out_type)} *dst = dst_base + dst_offset;
% if uneven and width > 1 and not function:
    for (int j = from; j < ${last_row}; ++j) {
        int i = first;
        for (; i + ${vec} <= ${stop}; i += ${vec}) {
${one(vec)}
        }
        for (; i < ${stop}; ++i) {
${one(1)}
        }
    }
% else:
    for (int j = from; j < ${last_row}; ++j)
    for (int i = first; i < ${stop}; i += ${width}) {
% if function:
%  for k in range(n):
        const ${vec_type(ctypes[k], width)} v${k} = ${read(k, width)};
%  endfor
        ${getattr(fx, function.name)(function, width, [f"v{k}" for k in range(n)], "result")}
        ${store(width, "result", "dst", at(n), out_type)}
% else:
${one(width)}
% endif
    }
% endif
}
