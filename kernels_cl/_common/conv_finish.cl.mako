<%doc>
Results of conv/direct's tiles: arithmetic, fused post_ops and stores. Reads the parameters of that template.

table_row(k, v)         vector v of row k of the arithmetic's constants
last_vectors(oc, nv, vw)   vectors of the last block of channels that hold any
each_block(last, add)   statements that do add(vectors) for all vectors of a block, or for the `last` ones of the last block
expect_operands(t)      reads ahead what post_ops will read, for tiles at fixed addresses
finish_all(t, joined)   statements that finish and store the tile's results, of sums a{pixel}_{vector}; of
                        t[] where limbs are `joined` in it. narrow: as of conv/direct
t: Tiles of the image (_common/pixels.cl.mako)
</%doc>
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="by" file="conv_bytes.cl.mako"/>
<%namespace name="pf" file="prefetch.cl.mako"/>
<%namespace name="px" file="pixels.cl.mako"/>
<%namespace name="st" file="epilogue.cl.mako"/>
<%namespace name="tl" file="tile.cl.mako"/>
<%!
def blocks_of(oc, ocb):
    """Return the blocks of a group's channels, and the channels of the last one."""
    blocks = -(-oc // ocb)
    return blocks, oc - (blocks - 1) * ocb
def last_vectors(oc, nv, vw):
    """Return the vectors of a group's last block of channels that hold any."""
    return -(-blocks_of(oc, nv * vw)[1] // vw)
%>
<%def name="table_row(k, v)">\
<%
    ocb = nv * vw
    rows_of = blocks_of(oc, ocb)[0] * groups * ocb
    where = f"{k * rows_of} + block * {ocb} + {v * vw}" if k else f"block * {ocb} + {v * vw}"
%>\
${load(types[2], vw, "table", where)}\
</%def>
<%def name="each_block(last, add)">\
% if last == nv:
    ${add(nv)}
% else:
    if (part < ${blocks_of(oc, nv * vw)[0] - 1}) {
    ${add(nv)}
    } else {
    ${add(last)}
    }
% endif
</%def>
<%def name="finish(m, v, count, value)">\
<%
    yt = types[3]
    lane = f"+ {v * vw}" if v else ""
    row = (lambda k: f"r{k}_{v}") if loop_epilogue else (lambda k: capture(table_row, k, v).strip())
    def operand(which):
        k, layout = operands[which]
        where = index(layout, "n", f"oc {lane}", f"y{m}", f"x{m}")
        pitch = layout.pitches[1] if layout.shape[1] != 1 else 0
        return capture(tl.load_lanes, vw, f"extra{k}", where, pitch, count, extra_types[k]).strip()
%>\
    ${ar.finish(arith, vw, value, "result", row)}
    ${st.apply(post_ops, arith.result(value, "result"), yt, vw, operand)}
    ${tl.store_lanes(vw, arith.result(value, "result"), "dst", index(dst, "n", f"oc {lane}", f"y{m}", f"x{m}"), dst.pitches[1] if oc * groups > 1 else 1, 0, count, yt)}
</%def>
<%def name="finish_tile(t, channels)">\
% for m in range(mr):
    {
%  if t.even:
    ${px.place(mode, t, m, str(m))}
%  endif
%  if not t.exact:
    if (${px.stored(mode, t, m, str(m))})
%  endif
    {
%  for v in range(nv):
%   if channels - v * vw > 0:
    ${finish(m, v, min(channels - v * vw, vw), f"a{m}_{v}")}
%   endif
%  endfor
    }
    }
% endfor
</%def>
<%def name="finish_in_loop(t, joined, channels)">\
<% V = vec_type(arith.acc, vw) %>\
% if arith.result("", "result"):
%  for v in range(nv):
%   for k in range(rows):
    const ${vec_type(types[2], vw)} r${k}_${v} = ${table_row(k, v)};
%   endfor
%  endfor
% endif
% if not joined:
    ${V} t[${mr * nv}];
%  for m in range(mr):
%   for v in range(nv):
    t[${m * nv + v}] = a${m}_${v};
%   endfor
%  endfor
% endif
    for (int m = 0; m < ${mr}; ++m) {
        ${px.place(mode, t, "m", "_m")}
% if not t.exact:
        if (!(${px.stored(mode, t, "m", "_m")})) continue;
% endif
% for v in range(nv):
%  if channels - v * vw > 0:
        {
            ${V} value = t[m * ${nv} + ${v}];
            ${finish("_m", v, min(channels - v * vw, vw), "value")}
        }
%  endif
% endfor
    }
</%def>
<%def name="finish_all(t, joined=False, narrow='')">\
<%
    ocb = nv * vw
    blocks, tail = blocks_of(oc, ocb)
    def row(k, v):
        return capture(table_row, k, v).strip()
    do_finish = (lambda n: by.finish(t, row, n, joined)) if narrow else (lambda n: finish_in_loop(t, joined, n) if loop_epilogue else finish_tile(t, n))
%>\
% if tail == ocb:
    ${do_finish(ocb)}
% elif blocks == 1:
    ${do_finish(tail)}
% else:
    if (part < ${blocks - 1}) {
    ${do_finish(ocb)}
    } else {
    ${do_finish(tail)}
    }
% endif
</%def>
<%def name="expect_operands(t)">\
% if prefetch and t.even:
%  for k, layout in operands.values():
%   if layout.pitches[1] == 1 and layout.pitches[3]:
%    for m in range(mr):
    {
    ${px.place(mode, t, m, str(m))}
%     for v in range(0, nv * vw, 64 // size_of(extra_types[k])):
    ${pf.fetch(f"extra{k} + {index(layout, 'n', f'oc + {v}', f'y{m}', f'x{m}')}")}
%     endfor
    }
%    endfor
%   endif
%  endfor
% endif
</%def>
