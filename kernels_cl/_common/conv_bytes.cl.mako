<%doc>
Results of conv/direct's tiles as bytes, four vectors at a time. Reads the parameters of that template;
`narrow` says how (_common/narrow.cl.mako). A sum of bytes or a table may be fused behind (post_ops of one step).

finish(t, row, channels, joined)   statements that finish and store a tile's results in a loop over pixels, of sums
                           a{pixel}_{vector}, or t[] where they are `joined` in it, where a block has so many channels
t: Tiles of the image (_common/pixels.cl.mako). row(k, v): vector v of row k of the arithmetic's constants
</%doc>
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="na" file="narrow.cl.mako"/>
<%namespace name="px" file="pixels.cl.mako"/>
<%namespace name="st" file="epilogue.cl.mako"/>
<%namespace name="tl" file="tile.cl.mako"/>
<%!
from clnn.codegen.filters import S8_ZERO
from clnn.ops.shared.functions import FUNCTIONS
def runs_of(vectors, first):
    """Split the vectors of a pixel into (vector, group, place in it, count); first: number of the pixel's first one."""
    found, v = [], 0
    while v < vectors:
        group, place = divmod(first + v, 4)
        count = next(c for c in (4, 2, 1) if c <= min(vectors - v, 4 - place))
        found.append((v, group, place, count))
        v += count
    return found
%>
<%def name="steps(j, v, count, step, total)">\
<%
    F, name = vec_type("float", vw), f"i{j}_{v}"
    def operand(which):
        k, layout = operands[which]
        where = index(layout, "n", f"oc + {v * vw}" if v else "oc", f"y{j}", f"x{j}")
        pitch = layout.pitches[1] if layout.shape[1] != 1 else 0
        return capture(tl.load_lanes, vw, f"extra{k}", where, pitch, count, extra_types[k]).strip()
    low, high = arith.low - arith.zero_out, arith.high - arith.zero_out
%>\
        ${vec_type("int", vw)} ${name};
        {
        const ${vec_type(arith.acc, vw)} sum_ = ${total};
        ${ar.scaled(arith, vw, "sum_", lambda k: f"r{k}_{v}")}
% if step:
        steps_ = steps_ > (${F})(${scalar(low, "float")}) ? steps_ : (${F})(${scalar(low, "float")});
        steps_ = steps_ < (${F})(${scalar(high, "float")}) ? steps_ : (${F})(${scalar(high, "float")});
        steps_ = steps_ + (${F})(${scalar(S8_ZERO, "float")}) - (${F})(${scalar(S8_ZERO - arith.zero_out, "float")});
        ${st.byte_steps(step, "steps_", vw, operand, True)}
% endif
        ${na.rounded(narrow, vw, "steps_", "whole_")}\
        ${name} = whole_;
        }
</%def>
<%def name="store_run(j, v, group, place, count, channels)">\
<%
    yt, whole = types[3], min(channels - v * vw, count * vw)
    where = index(dst, "n", f"oc + {v * vw}" if v else "oc", f"y{j}", f"x{j}")
    words = capture(na.quarter, narrow, vw, f"q{group}", place, count).strip()
%>\
% if whole == count * vw:
            ${small_vector(vec_type("int", count * vw // 4), "dst", where, "")} = ${words};
% else:
%  for u in range(count):
<% left = min(channels - (v + u) * vw, vw) %>\
%   if left > 0:
            {
                const ${vec_type(yt, vw)} bytes_ = as_${vec_type(yt, vw)}(${capture(na.quarter, narrow, vw, f"q{group}", place + u, 1).strip()});
                ${tl.store_lanes(vw, "bytes_", "dst", f"{where} + {u * vw}", 1, 0, left, yt)}
            }
%   endif
%  endfor
% endif
</%def>
<%def name="finish(t, row, channels, joined=False)">\
<%
    used = -(-channels // vw)
    pixels = next(p for p in (1, 2, 4) if p * used % 4 == 0)
    room = -(-mr // pixels) * pixels
    names = [f"i{j}_{v}" for j in range(pixels) for v in range(used)]
    place = (lambda j: f"(m + {j})" if mr % pixels == 0 else f"min(m + {j}, {mr - 1})")
    tables = [step for step in post_ops if FUNCTIONS[step.fn].looks_up]
    step = post_ops[0] if post_ops and not tables else None  # of floats, before they are rounded
%>\
% if tables:
${na.entries("entries", f"extra{operands[tables[0].operand][0]}")}\
% endif
%  for v in range(used):
%   for k in range(rows):
    const ${vec_type(types[2], vw)} r${k}_${v} = ${row(k, v)};
%   endfor
%  endfor
% if not joined:
    ${vec_type(arith.acc, vw)} t[${room * nv}];
% endif
%  for m in range(mr if joined else 0, room):
%   for v in range(nv):
    t[${m * nv + v}] = ${f"t[{(mr - 1) * nv + v}]" if joined else f"a{min(m, mr - 1)}_{v}"};
%   endfor
%  endfor
    for (int m = 0; m < ${mr}; m += ${pixels}) {
% for j in range(pixels):
        ${px.place(mode, t, place(j), str(j))}
% endfor
% for j in range(pixels):
%  for v in range(used):
${steps(j, v, min(channels - v * vw, vw), step, f"t[(m + {j}) * {nv} + {v}]")}\
        ${na.limited(vw, f"i{j}_{v}", arith.low, arith.high, arith.zero_out, types[3]) if not step else ""}
%  endfor
% endfor
% for g in range(0, len(names), 4):
        ${na.quarters(narrow, vw, names[g:g + 4], 0 if step else arith.zero_out, types[3], f"q{g // 4}", True, "entries" * len(tables))}
% endfor
% for j in range(pixels):
<% conditions = [f"m + {j} < {mr}"] * (mr % pixels != 0) + [capture(px.stored, mode, t, f"(m + {j})", str(j)).strip()] * (not t.exact) %>\
        ${f"if ({' && '.join(conditions)})" if conditions else ""} {
%  for v, group, at, count in runs_of(used, j * used):
            ${store_run(j, v, group, at, count, channels)}
%  endfor
        }
% endfor
    }
</%def>
