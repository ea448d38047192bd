<%doc>
rows/reduce: each row of elements folded into one.

Tensors  src | extra{k}: operands of post-ops | dst: one element per row. In a first launch of two, dst
         is scratch, dense in (part, row); in the second, src is that scratch.
Rows     as clnn/ops/rows/rows.py lays them out: operand 0 src, 1.. the extras, the last one dst
Launch   global (blocks of rows, parts of a row)
Params   name            kernel name
         ctype, result   type of src, and of dst and operands
         rows            Rows
         value           of each element: none, abs, square or power
         op              sum, prod, max, min or log_sum_exp
         finish          none, mean, sqrt, log or root
         count           elements of a whole row
         power           of `power` and `root`
         post_ops        fused post-ops
         operands        node input -> operand number
         from_scratch, to_scratch   whether this is the second, the first launch of two
         own_exp         exponentials by _common/exp
         wg              local size
</%doc>
<%namespace name="rw" file="/_common/rows.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="ex" file="/_common/exp.cl.mako"/>
<%
    m = rw.module
    own = own_exp and op == "log_sum_exp"
    assert value in ("none", "abs", "square", "power"), value
    assert finish in ("none", "mean", "sqrt", "log", "root"), finish
    assert to_scratch or not rows.divided, "parts of rows meet in scratch"
    last = len(rows.lane_pitches) - 1
    real = ctype in m.REAL
    signed = ctype if not real and not ctype.startswith("u") and op in ("sum", "prod") else ""
    inner = f"u{ctype}" if signed else ctype  # sums and products wrap, which C says of unsigned numbers alone
    q_first = f"part * {rows.share}" if rows.divided else "0"
    q_last = f"min(part * {rows.share} + {rows.share}, {rows.run_count})" if rows.divided else rows.run_count
%>
<%def name="walk(rows, narrow)">\
<%
    width = rows.vw if rows.across else 1
    T = vec_type(inner, width)

    def raised(v, p):
        if float(p).is_integer() and 1 <= p <= 8:
            return " * ".join([f"fabs({v})"] * int(p))
        return f"pow(fabs({v}), ({vec_type(inner, rows.vw)})({scalar(p, inner)}))"

    def mapped(v, slot):
        if value == "abs":
            lanes = vec_type(inner, rows.vw)
            below = f"{v} > ({lanes})({m.LIMITS[signed][1]})" if signed else ""
            return f"fabs({v})" if real else f"{below} ? ({lanes})(0) - {v} : {v}" if signed else v
        return {"none": v, "square": f"{v} * {v}", "power": raised(v, power)}[value]

    def finished(v):
        if finish == "mean":
            return f"{v} /= {scalar(count, ctype)};"
        if finish == "root":
            return f"{v} = pow({v}, ({T})({scalar(1 / power, inner)}));"
        return f"{v} = {finish}({v});" if finish != "none" else ""

    def operand(which):
        k = operands[which]
        shift = slot_now[0] * rows.vw * rows.lane_pitches[k] if rows.across else 0
        where = f"o{k}" + ("" if is_zero(shift) else f" + {shift}")
        return m.load_lanes(result, width, f"extra{k}", where, rows.lane_pitches[k])
    slot_now = [0]
%>\
    ${rw.begin(rows, [0, *operands.values()] + ([] if to_scratch else [last]), narrow)}
% if op == "log_sum_exp":
    ${rw.fold(rows, "top", "max", inner, mapped, q_first, q_last)}
%  for slot in range(rows.nv if rows.across else 1):
<% t = m.of(rows, "top", slot) %>\
    ${t} = isinf(${t}) ? (${T})(0) : ${t};
%  endfor
    ${rw.fold(rows, "v", "sum", inner, lambda v, slot: ex.module.call(f"{v} - {m.of(rows, 'top', slot)}", rows.vw, own), q_first, q_last)}
%  for slot in range(rows.nv if rows.across else 1):
    ${m.of(rows, "v", slot)} = log(${m.of(rows, "v", slot)}) + ${m.of(rows, "top", slot)};
%  endfor
% else:
    ${rw.fold(rows, "v", op, inner, mapped, q_first, q_last)}
% endif
% if rows.group > 1:
    if (member == 0) {
% endif
% for slot in range(rows.nv if rows.across else 1):
<%
    v = m.of(rows, "v", slot)
    slot_now[0] = slot
    if to_scratch:
        where, pitch = f"row * {rows.lanes} + lane0 + {slot * width}", 1
        where = f"part * {rows.count} + {where}" if rows.divided else where
    else:
        pitch = rows.lane_pitches[last] if rows.across else 1
        where = f"o{last}" + (f" + {slot * width * pitch}" if rows.across else "")
%>\
% if signed and not to_scratch:
    ${vec_type(signed, width)} signed_${slot} = as_${vec_type(signed, width)}(${v});
<% v = f"signed_{slot}" %>\
% endif
    ${finished(v)}
    ${st.apply(post_ops, v, ctype, width, operand)}
    ${rw.put(rows, v, slot, width, "dst", where, pitch, 0, result)}
% endfor
% if rows.group > 1:
    }
% endif
    ${rw.end(rows, narrow)}\
</%def>
% if own:
${ex.define(sorted({rows.vw, *rw.module.narrow_widths(rows)}, reverse=True))}
% endif
${rw.extensions(rows)}${group_size(wg)}
__kernel void ${name}(
% if from_scratch:
    __global const int *scratch_base, const int scratch_offset,
% else:
    __global const ${cell(ctype)} *src_base, const int src_offset,
% endif
% for k in operands.values():
    __global const ${cell(result)} *extra${k}_base, const int extra${k}_offset,
% endfor
% if to_scratch:
    __global int *result_base, const int result_offset)
% else:
    __global ${cell(result)} *dst_base, const int dst_offset)
% endif
{
% if rows.group > 1:
    __local ${inner} shared_[${rows.group * rows.beside}];
% endif
% if rows.divided:
    const int part = get_global_id(1);
% endif
% if from_scratch:
    __global const ${inner} *src = (__global const ${inner} *)(scratch_base + scratch_offset);
% elif signed:
    __global const ${inner} *src = (__global const ${inner} *)(src_base + src_offset);
% else:
    __global const ${cell(ctype)} *src = src_base + src_offset;
% endif
% for k in operands.values():
    __global const ${cell(result)} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
% if to_scratch:
    __global ${inner} *dst = (__global ${inner} *)(result_base + result_offset);
% else:
    __global ${cell(result)} *dst = dst_base + dst_offset;
% endif
${rw.walked(rows, walk)}
}
