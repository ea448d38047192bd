<%doc>
rows/norm: (x - mean) / sqrt(variance + epsilon) over each row; without a centre, x over the root of
its mean square.

Tensors  src, dst: equal shapes | extra{k}: operands of post-ops, broadcast to that shape | stats: mean
         and sum of squared distances of each part of each row, [part][2][row]
Rows     as clnn/ops/rows/rows.py lays them out: operand 0 src, 1.. the extras, the last one dst
Stages   all: one launch. stats, apply: where rows are divided into parts, a launch that measures
         the parts and one that joins their measures and writes
Launch   global (blocks of rows, parts of a row)
Params   name            kernel name
         ctype           type of all tensors but stats, whose numbers are as in registers
         rows            Rows
         stage           all, stats or apply
         centre          whether the mean is taken away
         epsilon         added to the variance
         post_ops        fused post-ops
         operands        node input -> operand number
         wg              local size
</%doc>
<%namespace name="rw" file="/_common/rows.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%
    m = rw.module
    assert stage in ("all", "stats", "apply"), stage
    assert (stage == "all") != rows.divided, "the measures of parts are joined by apply"
    last = len(rows.lane_pitches) - 1
    writes, measures = stage != "stats", stage != "apply"
    used = [0, *operands.values(), last] if writes else [0]
    apart = rows.divided
    first = f"part * {rows.share}" if apart else "0"
    end = f"min(part * {rows.share} + {rows.share}, {rows.run_count})" if apart else rows.run_count
    chunks = rows.runs.extents[-1]
    missing = chunks * rows.length - rows.extent
    total = scalar(rows.row, ctype)
    kept = str(ctype)  # of measures in memory
%>
<%def name="walk(rows, narrow)">\
<%
    slots = range(rows.nv) if rows.across else [0]
    width = rows.vw if rows.across else 1
    T = vec_type(ctype, width)

    def elements(low, high):
        """Elements of the runs low..high."""
        whole = f"({high} - {low}) * {rows.length}"
        return f"{whole} - ({high} / {chunks} - {low} / {chunks}) * {missing}" if not is_zero(missing) else whole

    def away(v, slot):
        return f"({v} - {m.of(rows, 'mean', slot)})" if centre else v

    def squared(v, slot):
        return f"{away(v, slot)} * {away(v, slot)}"

    def place(slot, part, which):
        return f"({part} * 2 + {which}) * {rows.count} + row * {rows.lanes} + lane0 + {slot * width}"

    def finish(slot, at, skip):
        V = vec_type(ctype, rows.vw)
        x = m.load_lanes(ctype, rows.vw, "src", at(0), rows.lane_pitches[0])

        def operand(which):
            k = operands[which]
            return m.load_lanes(ctype, rows.vw, f"extra{k}", at(k), rows.lane_pitches[k])
        chain = capture(st.apply, post_ops, "y_", ctype, rows.vw, operand)
        put = capture(rw.put, rows, "y_", slot, rows.vw, "dst", at(last), rows.lane_pitches[last], skip, ctype)
        return f"const {V} x_ = {x}; {V} y_ = {away('x_', slot)} * {m.of(rows, 'scale', slot)}; {chain} {put}"
%>\
    ${rw.begin(rows, used, narrow)}
% if measures:
%  if centre:
    ${rw.fold(rows, "mean", "sum", ctype, lambda v, slot: v, first, end)}
%   for slot in slots:
    ${m.of(rows, "mean", slot)} /= ${f"({ctype})({elements(first, end)})" if apart else total};
%   endfor
%  endif
    ${rw.fold(rows, "spread", "sum", ctype, squared, first, end)}
% endif
% if stage == "stats":
%  if rows.group > 1:
    if (member == 0) {
%  endif
%  for slot in slots:
%   if centre:
    ${rw.put(rows, m.of(rows, "mean", slot), slot, width, "stats", place(slot, "part", 0), 1, kind=ctype)}
%   endif
    ${rw.put(rows, m.of(rows, "spread", slot), slot, width, "stats", place(slot, "part", 1), 1, kind=ctype)}
%  endfor
%  if rows.group > 1:
    }
%  endif
% elif stage == "apply":
%  for slot in slots:
<% mean, spread = m.of(rows, "mean", slot), m.of(rows, "spread", slot) %>\
    ${T} ${mean} = (${T})(0), ${spread} = (${T})(0);
%   if centre:
    for (int p = 0; p < ${rows.parts}; ++p) {
        const int low = p * ${rows.share}, high = min(low + ${rows.share}, ${rows.run_count});
        ${mean} += ${load(kept, width, "stats", place(slot, "p", 0))} * ((${ctype})(${elements("low", "high")}) / ${total});
    }
%   endif
    for (int p = 0; p < ${rows.parts}; ++p) {
        ${spread} += ${load(kept, width, "stats", place(slot, "p", 1))};
%   if centre:
        const int low = p * ${rows.share}, high = min(low + ${rows.share}, ${rows.run_count});
        const ${T} shift = ${load(kept, width, "stats", place(slot, "p", 0))} - ${mean};
        ${spread} += shift * shift * (${ctype})(${elements("low", "high")});
%   endif
    }
%  endfor
% endif
% if writes:
%  for slot in slots:
    const ${T} ${m.of(rows, "scale", slot)} = (${T})(1) / sqrt(${m.of(rows, "spread", slot)} / ${total} + ${scalar(epsilon, ctype)});
%  endfor
    ${rw.vectors(rows, used, first, end, finish)}
% endif
    ${rw.end(rows, narrow)}\
</%def>
${rw.extensions(rows)}${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(ctype)} *src_base, const int src_offset,
% if stage == "stats":
    __global int *stats_base, const int stats_offset)
% else:
%  if stage == "apply":
    __global const int *stats_base, const int stats_offset,
%  endif
%  for k in operands.values():
    __global const ${cell(ctype)} *extra${k}_base, const int extra${k}_offset,
%  endfor
    __global ${cell(ctype)} *dst_base, const int dst_offset)
% endif
{
% if rows.group > 1 and measures:
    __local ${ctype} shared_[${rows.group * rows.beside}];
% endif
% if apart:
    const int part = get_global_id(1);
% endif
    __global const ${cell(ctype)} *src = src_base + src_offset;
% if stage == "stats":
    __global ${kept} *stats = (__global ${kept} *)(stats_base + stats_offset);
% elif stage == "apply":
    __global const ${kept} *stats = (__global const ${kept} *)(stats_base + stats_offset);
% endif
% if writes:
%  for k in operands.values():
    __global const ${cell(ctype)} *extra${k} = extra${k}_base + extra${k}_offset;
%  endfor
    __global ${cell(ctype)} *dst = dst_base + dst_offset;
% endif
${rw.walked(rows, walk)}
}
