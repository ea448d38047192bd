<%doc>
Tiles of pixels: where the pixels of a tile lie in the output, and which of them it stores.

row: th rows of tw neighbours. flat: neighbours in an image seen as one row. wide: neighbours in a row
of all rows, each with the border behind it (t.span): those on a border are not stored. Any other mode: pixels
counted through rows. The last tiles of row, flat and wide lie inside the image and overlap others.

begin(mode, tile, t)        declares where `tile` begins: start_y, start_x, top, left; or first, first_y,
                            first_x, and in flat images start
origin(t)                   declares first_y, first_x: the place of pixel `first`
place(mode, t, m, name)     declares y{name}, x{name} of pixel m; m is a number, or an int's name
stored(mode, t, m, name)    condition that the tile stores pixel m; t.exact: it stores all
corner(mode, src, strides, pads, xt)
                            declares corner: where the first tap of a tile's first pixel lies in `image`;
                            modes row, flat and wide
t: Tiles of one image (clnn/ops/conv/tiles.py)
</%doc>
<%!
from clnn.ops.conv.tiles import Tiles
%>
<%def name="begin(mode, tile, t)">\
% if mode == "row":
    const int start_y = ${tile} / ${t.columns} * ${t.th}, start_x = ${tile} % ${t.columns} * ${t.tw};
    const int top = ${f"min(start_y, {t.oh - t.th})" if not divides(t.th, t.oh) else "start_y"};
    const int left = ${f"min(start_x, {t.ow - t.tw})" if not divides(t.tw, t.ow) else "start_x"};
% elif mode in ("flat", "wide"):
    const int start = ${tile} * ${t.mr}, first = ${"start" if t.exact else f"min(start, {t.pixels - t.mr})"};
    ${origin(t)}
% else:
    const int first = ${tile} * ${t.mr};
    ${origin(t)}
% endif
</%def>
<%def name="corner(mode, src, strides, pads, xt)">\
% if mode == "row":
    __global const ${cell(xt)} *corner = image + (top * ${strides[0]} - ${pads[0]}) * ${src.pitches[2]} + (left * ${strides[1]} - ${pads[1]}) * ${src.pitches[3]};
% else:
    __global const ${cell(xt)} *corner = image + first * ${strides[1] * src.pitches[3]}${f" - {pads[0] * src.pitches[2] + pads[1] * src.pitches[3]}" if mode == "wide" else ""};
% endif
</%def>
<%def name="origin(t)">\
const int first_y = first / ${t.span or t.ow}, first_x = first % ${t.span or t.ow};\
</%def>
<%def name="place(mode, t, m, name)">\
<% at = f"first_x + {m}" if m else "first_x" %>\
% if mode == "row":
<% down, right = (m // t.tw, m % t.tw) if isinstance(m, int) else (f"{m} / {t.tw}", f"{m} % {t.tw}") %>\
    const int y${name} = top + ${down}, x${name} = left + ${right};\
% elif mode == "wide":
    const int y${name} = (first + ${m}) / ${t.span}, x${name} = (first + ${m}) % ${t.span};\
% elif divides(t.mr, t.ow):
    const int y${name} = first_y, x${name} = ${at};\
% elif is_traced(t.ow):
    int y${name} = first_y, x${name} = first_x + ${m if mode == "flat" else f"min({m}, {t.pixels - 1} - first)"};
    while (x${name} >= ${t.ow}) { x${name} -= ${t.ow}; ++y${name}; }\
% elif t.mr <= t.ow and (mode == "flat" or t.exact):
    const int next${name} = ${at} >= ${t.ow}, y${name} = first_y + next${name}, x${name} = ${at} - next${name} * ${t.ow};\
% else:
    const int i${name} = ${f"first + {m}" if mode == "flat" or t.exact else f"min(first + {m}, {t.pixels - 1})"};
    const int y${name} = i${name} / ${t.ow}, x${name} = i${name} % ${t.ow};\
% endif
</%def>
<%def name="stored(mode, t, m, name)">\
${f"y{name} >= start_y && x{name} >= start_x" if mode == "row" else f"x{name} < {t.ow} && first + {m} >= start" if mode == "wide" else f"first + {m} >= start" + (f" && first + {m} < {t.end}" if t.end else "") if mode == "flat" else f"first + {m} < {t.pixels}"}\
</%def>
