<%doc>
Sums of states' products with a panel of recurrent weights, of several gates, vectors of units and sequences.

float_sums(wt, group, nv, width, rows, terms, ahead, gates)
    declares sG_V_R: the sum of gate G, vector V and sequence R over elements fromR[k], with weights of type
    wt at w: [element][gate][vector][lane]; these are read ahead into the cache by `ahead` elements, 0: not.
    gates: how many the group's phase has. They alone say into how many parts a sum is divided (every so many
    elements are one), so that all tiles round alike; as many parts run side by side as registers allow
byte_sums(dot, group, nv, width, rows, terms, row)
    the same as floats, of states that lie at fromR as bytes, whose zero point is fromR[row + 1]; with
    weights as ints of four bytes, and behind `terms` of them the sums of each unit's weights
</%doc>
<%namespace name="dt" file="/_common/dot.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%!
LINE = 64  # bytes of a cache line
MOST = 12  # sums side by side, which leave registers for the rest
PARTS = {1: 8, 2: 4}  # of a sum, by gates of a phase: 8 sums keep a core's multiply-adds busy

def parts_of(gates, terms):
    """Into how many parts each sum of a phase of some gates is divided."""
    return PARTS.get(gates, 1) if 2 * PARTS.get(gates, 1) <= terms else 1

def together(parts, sums):
    """How many parts of some sums run side by side."""
    while parts > 1 and parts * sums > MOST:
        parts //= 2
    return parts

def of(chain):
    return f"_{chain}" if chain else ""

def paired(terms):
    """A sum of all terms, by halves."""
    half = len(terms) // 2
    return f"({paired(terms[:half])} + {paired(terms[half:])})" if half else terms[0]
%>\
<%def name="float_sums(wt, group, nv, width, rows, terms, ahead, gates)">\
<%
    V, columns, parts = vec_type("float", width), len(group) * nv * width, parts_of(gates, terms)
    each = [(g, v, r) for r in range(rows) for g in group for v in range(nv)]
    beside, whole = together(parts, len(each)), terms // parts * parts
    rounds = range(0, parts, beside)
%>\
%   for first in rounds:
%    for g, v, r in each:
                ${V} ${", ".join(f"s{g}_{v}_{r}{of(c)} = ({V})(0.0f)" for c in range(first, first + beside))};
%    endfor
                for (int k = 0; k < ${whole}; k += ${parts}, w += ${parts * columns}) {
%    for c in range(first, first + beside):
${added(wt, group, nv, width, rows, c)}
%    endfor
%    for lane in range(first * columns, (first + beside) * columns, LINE // size_of(wt)) if ahead else ():
                    ${pf.fetch(f"w + {ahead + lane}")}
%    endfor
                }
%    if first != rounds[-1]:
                w -= ${whole * columns};
%    endif
%   endfor
%   if terms > whole:
                for (int k = ${whole}; k < ${terms}; ++k, w += ${columns}) {
${added(wt, group, nv, width, rows, 0)}
                }
%   endif
%   for g, v, r in each if parts > 1 else ():
                s${g}_${v}_${r} = ${paired([f"s{g}_{v}_{r}{of(c)}" for c in range(parts)])};
%   endfor
</%def>
<%def name="added(wt, group, nv, width, rows, c)">\
<% V = vec_type("float", width) %>\
                    {
%   for place, g in enumerate(group):
%    for v in range(nv):
                    const ${V} w${g}_${v} = ${load(wt, width, "w", str(((c * len(group) + place) * nv + v) * width))};
%    endfor
%   endfor
%   for r in range(rows):
                    const ${V} e${r} = (${V})(from${r}[k${f" + {c}" if c else ""}]);
%    for g in group:
%     for v in range(nv):
                    s${g}_${v}_${r}${of(c)} = fma(e${r}, w${g}_${v}, s${g}_${v}_${r}${of(c)});
%     endfor
%    endfor
%   endfor
                    }
</%def>
<%def name="byte_sums(dot, group, nv, width, rows, terms, row)">\
<% I, V, columns = vec_type("int", width), vec_type("float", width), len(group) * nv * width %>\
%   for r in range(rows):
%    for g in group:
%     for v in range(nv):
                ${I} i${g}_${v}_${r} = (${I})(0);
%     endfor
%    endfor
%   endfor
                for (int k = 0; k < ${terms}; ++k, w += ${columns}) {
%   for place, g in enumerate(group):
%    for v in range(nv):
                    const ${I} w${g}_${v} = vload${width}(0, w + ${(place * nv + v) * width});
%    endfor
%   endfor
%   for r in range(rows):
                    const ${I} e${r} = (${I})(((__global const int *)from${r})[k]);
%    for g in group:
%     for v in range(nv):
                    ${dt.add(dot, width, f"i{g}_{v}_{r}", f"e{r}", f"w{g}_{v}")}
%     endfor
%    endfor
%   endfor
                }
%   for r in range(rows):
%    for place, g in enumerate(group):
%     for v in range(nv):
                const ${V} s${g}_${v}_${r} = convert_${V}(i${g}_${v}_${r} - (int)from${r}[${row} + 1] * vload${width}(0, w + ${(place * nv + v) * width}));
%     endfor
%    endfor
%   endfor
</%def>
