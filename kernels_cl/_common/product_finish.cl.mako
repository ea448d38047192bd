<%doc>
Results of tiles of matrix products: post_ops and stores. Reads the parameters of gemm/tiled.

finish_all(mr, few, joined)   statements that finish and store the `mr` rows from m0 on of the panel `block`, whose
                              columns begin at n0, of sums c{row}_{vector}, or of t[] where they are `joined` in it.
                              Rows before `first` are another tile's; few: there may be fewer rows
</%doc>
<%namespace name="st" file="epilogue.cl.mako"/>
<%namespace name="tl" file="tile.cl.mako"/>
<%def name="finish_vector(v, first, end, there)">\
<%
    yt = types[2]
    def at(pitches):
        terms = [] if is_zero(pitches[0]) else [f"(m0 + r) * {pitches[0]}"]
        column = f"{v} * {vw}" if isinstance(v, str) else v * vw
        terms += [] if is_zero(pitches[1]) else [f"(n0 + {column}) * {pitches[1]}"]
        return " + ".join(terms) or "0"
    def operand(which):
        place, pitches = extras[which]
        text = capture(tl.load_lanes, vw, f"extra{place}", at(pitches), pitches[1], there, yt).strip()
        return f"({scalar(scales[which])} * {text})" if which in scales else text
%>\
        {
            ${vec_type("float", vw)} value = t[r * ${nv} + ${v}];
            ${st.apply(post_ops, "value", "float", vw, operand)}
% if isinstance(end, str):
            float lanes_[${vw}];
            ${store(vw, "value", "lanes_", "0", space="__private")}
            for (int k_ = 0; k_ < ${end}; ++k_) { ${store(1, "lanes_[k_]", "dst", f"{at(dst)} + k_ * {dst[1]}", yt)} }
% else:
            ${tl.store_lanes(vw, "value", "dst", at(dst), dst[1], first, end, yt)}
% endif
        }
</%def>
<%def name="finish(tail_block, mr, few, joined)">\
<%
    width, open_end = nv * vw, is_open(n) and not shift
    tail = n - (-(-n // width) - 1) * width
    def ends():
        """First and end lane that are stored, and end lane that operands have, per vector."""
        if not tail_block:
            return [(0, vw, vw)] * nv
        if shift:
            return [(min(max(width - tail - v * vw, 0), vw), vw, vw) for v in range(nv)]
        return [(0, min(max(tail - v * vw, 0), vw), min(max(tail - v * vw, 0), vw)) for v in range(nv)]
%>\
% if not joined:
    ${vec_type("float", vw)} t[${mr * nv}];
%  for r in range(mr):
%   for v in range(nv):
    t[${r * nv + v}] = c${r}_${v};
%   endfor
%  endfor
% endif
    for (int r = 0; r < ${mr}; ++r) {
% if few:
        if (m0 + r >= ${m}) break;
% elif not divides(mr, m):
        if (m0 + r < first) continue;
% endif
% if tail_block and open_end:
        for (int v = 0; v < ${nv}; ++v) {
        const int there = min(${n} - n0 - v * ${vw}, ${vw});
        if (there <= 0) break;
        ${finish_vector("v", 0, "there", "there")}
        }
% else:
%  for v, (first, end, there) in enumerate(ends()):
%   if first < end:
        ${finish_vector(v, first, end, there)}
%   endif
%  endfor
% endif
    }
</%def>
<%def name="finish_all(mr, few, joined=False)">\
<%
    width, open_end = nv * vw, is_open(n) and not shift
    blocks = -(-n // width)
    tail = n - (blocks - 1) * width
%>\
% if not open_end and tail == width:
    ${finish(False, mr, few, joined)}
% elif not open_end and blocks == 1:
    ${finish(True, mr, few, joined)}
% else:
    if (${f"n0 + {width} <= {n}" if open_end else f"block < {blocks - 1}"}) {
    ${finish(False, mr, few, joined)}
    } else {
    ${finish(True, mr, few, joined)}
    }
% endif
</%def>
