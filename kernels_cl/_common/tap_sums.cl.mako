<%doc>
tap_sums: the products of a tap summed by themselves, then added to a tile's sums (RealTaps of
clnn/arith/real_taps.py).

taps(arith, ic, vw, loads, elements, step)
    statements that add one tap to a0_0, a0_1, ...: sum m_v takes input m times weights v. loads:
    vectors of float at w, which moves on by `step` with each channel. elements: input m of channel
    c, a float
</%doc>
<%def name="products(loads, elements, vw, take)">\
<% V = vec_type("float", vw) %>\
% for v, weight in enumerate(loads):
            const ${V} b${v} = ${weight};
% endfor
% for m, element in enumerate(elements):
            {
                const ${V} s = (${V})(${element});
%  for v in range(len(loads)):
                ${take(f"{m}_{v}", f"b{v}")}
%  endfor
            }
% endfor
</%def>
<%def name="chain(first, stop, into, loads, elements, vw, step)">\
        for (int c = ${first}; c < ${stop}; ++c, w += ${step}) {
${products(loads, elements, vw, lambda s, b: f"{into}{s} = fma(s, {b}, {into}{s});")}
        }
</%def>
<%def name="rounded(count, sums, loads, elements, vw, step)">\
        {
            ${vec_type("float", vw)} ${", ".join("u" + s for s in sums)};
% for j in range(count):
            {
${products(loads, elements, vw, lambda s, b: f"u{s} = {f'u{s} + ' if j else ''}s * {b};")}
            }
            ++c, w += ${step};
% endfor
% for s in sums:
            t${s} += u${s};
% endfor
        }
</%def>
<%def name="taps(arith, ic, vw, loads, elements, step)">\
<%
    V = vec_type("float", vw)
    sums = [f"{m}_{v}" for m in range(len(elements)) for v in range(len(loads))]
%>\
% for s in sums:
        ${V} t${s} = (${V})(0);
% endfor
% if arith.quads:
        int c = 0;
        for (int quads = 0; quads < ${ic // 4}; ++quads)
        ${rounded(4, sums, loads, elements, vw, step)}
%  for count in [n for n in (2, 1) if ic & n]:
        ${rounded(count, sums, loads, elements, vw, step)}
%  endfor
% elif ic > arith.apart:
        for (int first = 0; first < ${ic}; first += ${arith.apart}) {
%  for s in sums:
        ${V} u${s} = (${V})(0);
%  endfor
        ${chain("first", f"min(first + {arith.apart}, {ic})", "u", loads, elements, vw, step)}
%  for s in sums:
        t${s} += u${s};
%  endfor
        }
% else:
        ${chain(0, ic, "t", loads, elements, vw, step)}
% endif
% for s in sums:
        a${s} += t${s};
% endfor
</%def>
