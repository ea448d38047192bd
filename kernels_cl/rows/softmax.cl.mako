<%doc>
rows/softmax: exp(x - max) / sum(exp(x - max)) over each row, or its logarithm.

Tensors  src, dst: equal shapes | extra{k}: operands of post-ops, broadcast to that shape
Rows     as clnn/ops/rows/rows.py lays them out: operand 0 src, 1.. the extras, the last one dst
Launch   global (blocks of rows)
Params   name            kernel name
         ctype           type of all tensors
         rows            Rows
         log             whether the logarithm is asked for
         keep            exponentials are kept in dst between the passes, where it has their precision
         own_exp         exponentials by _common/exp
         post_ops        fused post-ops
         operands        node input -> operand number
         wg              local size
NaN      a NaN, an infinity, or nothing but -infinity makes the whole row NaN
</%doc>
<%namespace name="rw" file="/_common/rows.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="ex" file="/_common/exp.cl.mako"/>
<%
    m = rw.module
    last = len(rows.lane_pitches) - 1
    everything = [0, *operands.values(), last]
    assert not (log and keep), "a logarithm needs no exponential of each element"
    assert not keep or not rows.across or rows.lanes % rows.width == 0, "blocks overlap"
%>
<%def name="walk(rows, narrow)">\
<%
    slots = range(rows.nv) if rows.across else [0]

    def above(v, slot):
        return f"{v} - {m.of(rows, 'top', slot)}"

    def largest(v, slot):
        return v

    def power(v, slot):
        return ex.module.call(above(v, slot), rows.vw, own_exp)

    def keep_it(v, slot, at, skip):
        return m.store_lanes(rows.vw, v, "dst", at(last), rows.lane_pitches[last], skip, ctype)

    def finish(slot, at, skip):
        T = vec_type(ctype, rows.vw)
        held, source = ("dst", last) if keep else ("src", 0)
        x = m.load_lanes(ctype, rows.vw, held, at(source), rows.lane_pitches[source])
        total = m.of(rows, "total", slot)
        value = f"({above('x_', slot)}) - {total}" if log else f"{'x_' if keep else power('x_', slot)} / {total}"

        def operand(which):
            k = operands[which]
            return m.load_lanes(ctype, rows.vw, f"extra{k}", at(k), rows.lane_pitches[k])
        chain = capture(st.apply, post_ops, "y_", ctype, rows.vw, operand)
        put = capture(rw.put, rows, "y_", slot, rows.vw, "dst", at(last), rows.lane_pitches[last], skip, ctype)
        return f"const {T} x_ = {x}; {T} y_ = {value}; {chain} {put}"
%>\
    ${rw.begin(rows, everything, narrow)}
    ${rw.fold(rows, "top", "peak", ctype, largest, 0, rows.run_count)}
    ${rw.fold(rows, "total", "sum", ctype, power, 0, rows.run_count, keep_it if keep else None, [0, last] if keep else [0])}
% if log:
%  for slot in slots:
    ${m.of(rows, "total", slot)} = log(${m.of(rows, "total", slot)});
%  endfor
% endif
    ${rw.vectors(rows, everything, 0, rows.run_count, finish)}
    ${rw.end(rows, narrow)}\
</%def>
% if own_exp:
${ex.define(sorted({rows.vw, *rw.module.narrow_widths(rows)}, reverse=True))}
% endif
${rw.extensions(rows)}${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(ctype)} *src_base, const int src_offset,
% for k in operands.values():
    __global const ${cell(ctype)} *extra${k}_base, const int extra${k}_offset,
% endfor
    __global ${cell(ctype)} *dst_base, const int dst_offset)
{
% if rows.group > 1:
    __local ${ctype} shared_[${rows.group * rows.beside}];
% endif
    __global const ${cell(ctype)} *src = src_base + src_offset;
% for k in operands.values():
    __global const ${cell(ctype)} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    __global ${cell(ctype)} *dst = dst_base + dst_offset;
${rw.walked(rows, walk)}
}
