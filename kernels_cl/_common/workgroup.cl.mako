<%doc>
Work-group tiles: sums of bm rows x bn columns from chunks of terms that a group shares in local memory.

t: GroupTile. Operands are named "a" (rows) and "b" (columns); f: Fetch of one of them, whose chunk
lies as [term][row], f.pitch apart. Rows and columns of a work-item lie in vectors between those of
its neighbours, so that vectors of local memory are read side by side:

    columns   0 0 0 0 1 1 1 1 2 2 2 2 .. 0 0 0 0 1 1 1 1 ..     of work-item 0, 1, 2 of a row

begin(t, fetches, start)
    local memory, sums that begin with start(column) or 0, and which elements a work-item reads: for
    vector i of NAME term NAME_k{i} and row NAME_o{i} of a chunk, and the register NAME_v{i} that
    fetch, or a kernel that computes its operand, fills before it is kept
fetch(name, f, at, there, ctype)
    reads a chunk into registers; at(i): pointer expression of vector i's first element; there(i):
    condition without which it is zeros, "" for none; ctype: "float", or a clnn.types.Stored
sum_chunks(t, fetches, chunk)
    adds the chunks from..to - 1; chunk(s): statements that fetch chunk number s. With two stages a
    chunk is kept while the sums of the one before are added
finish(t, ends, extents, operands, post_ops, scales, loop_epilogue, stored)
    post_ops and stores of the sums. operands: (pointer, pitches on `extents`, pitch of columns,
    whether vectors are aligned, input), dst first; rows count through `extents`. ends: conditions
    of rows and columns, see Ends. stored: pointer -> type of what lies in memory otherwise than as float
aligned(width, pointer, space, ctype)
    expression of a vector of floats at an aligned pointer
</%doc>
<%namespace name="lp" file="loops.cl.mako"/>
<%namespace name="st" file="epilogue.cl.mako"/>
<%!
from clnn.codegen.filters import element, load, scalar, store, stored_as, vec_type

def aligned(width, pointer, space="__global", ctype="float"):
    if stored_as(ctype) and width == 1:
        return element(ctype, f"({pointer})", "0")
    if stored_as(ctype) == "half":
        return f"vloada_half{width}(0, {pointer})"
    if stored_as(ctype):
        words = f"*({space} const {vec_type(ctype.cell, width)} *)({pointer})"
        return f"as_float{width}(convert_uint{width}({words}) << 16)"
    return f"*({space} const {vec_type('float', width)} *)({pointer})"

class Ends:
    """Which of a tile's rows or columns are stored: those from `first` on, below `extent`.

    shift: the last tile begins early enough to be whole. width: of vectors.
    """

    def __init__(self, extent, tile, shift, width=1):
        self.extent, self.tile, self.width = extent, tile, width
        self.count = -(-extent // tile)
        self.even = extent % tile == 0
        self.shift = shift and not self.even
        self.split = not self.even and extent % width != 0
        assert not self.shift or extent >= tile, (extent, tile)

    def start(self, number):
        where = f"{number} * {self.tile}"
        return f"min({where}, {self.extent - self.tile})" if self.shift else where

    def stored(self, at, first):
        return f"{at} >= {first}" if self.shift else f"{at} < {self.extent}"

    def whole(self, at, first):
        return f"{at} >= {first}" if self.shift else f"{at} + {self.width} <= {self.extent}"

    def any(self, at, first):
        return f"{at} + {self.width} > {first}" if self.shift else f"{at} < {self.extent}"

def place(r, count, width, who):
    """Expression of row (or column) r of a work-item within its tile."""
    if isinstance(r, int):
        first = r // width * count * width + r % width
        return " + ".join([str(first)] * (first > 0) + [f"{who} * {width}" if width > 1 else who])
    return f"{r} / {width} * {count * width} + {r} % {width} + {who} * {width}"

def sides(t, fetches):
    return {name: (f, t.stages * f.size) for name, f in fetches.items()}

def lane(value, width, k):
    return value if width == 1 else f"{value}.s{k}"
%>
<%def name="begin(t, fetches, start=None)">\
    const int item = get_local_id(0), across = item % ${t.across}, down = item / ${t.across};
% for name, (f, size) in sides(t, fetches).items():
<% assert f.pitch % 4 == 0 and f.threads == t.threads, f %>\
    __local float4 ${name}_tile[${size // 4}];
    __local float *const ${name}_local = (__local float *)${name}_tile;
%  for i in range(f.loads):
<% at = f"(item + {i * t.threads})" if i else "item" %>\
%   if f.along == "terms":
    const int ${name}_k${i} = ${at} % ${f.slots} * ${f.vw}, ${name}_o${i} = ${at} / ${f.slots};
%   else:
    const int ${name}_k${i} = ${at} / ${f.slots}, ${name}_o${i} = ${at} % ${f.slots} * ${f.vw};
%   endif
    ${vec_type("float", f.vw)} ${name}_v${i};
%  endfor
% endfor
% for r in range(t.tm):
%  for v in range(t.nv):
    ${vec_type("float", t.vc)} c${r}_${v} = ${start(place(v * t.vc, t.across, t.vc, "across")) if start else 0};
%  endfor
% endfor
</%def>
<%def name="fetch(name, f, at, there, ctype='float')">\
% for i in range(f.loads):
<%
    guards = [there(i)] if there(i) else []
    guards += [f"item < {f.vectors - i * f.threads}"] if (i + 1) * f.threads > f.vectors else []
    value = aligned(f.vw, at(i), ctype=ctype)
%>\
        ${name}_v${i} = ${f"{' && '.join(guards)} ? {value} : ({vec_type('float', f.vw)})(0)" if guards else value};
% endfor
</%def>
<%def name="keep(name, f, stage)">\
% for i in range(f.loads):
%  if (i + 1) * f.threads > f.vectors:
        if (item < ${f.vectors - i * f.threads})
%  endif
        {
            __local float *to = ${name}_local + ${stage} * ${f.size} + ${name}_k${i} * ${f.pitch} + ${name}_o${i};
%  if f.along == "rows":
            *(__local ${vec_type("float", f.vw)} *)to = ${name}_v${i};
%  else:
%   for k in range(f.vw):
            to[${k * f.pitch}] = ${lane(f"{name}_v{i}", f.vw, k)};
%   endfor
%  endif
        }
% endfor
</%def>
<%def name="multiply(t, fetches, stage)">\
<% fa, fb = fetches["a"], fetches["b"] %>\
        {
        __local const float *p = a_local + ${stage} * ${fa.size} + down * ${t.vr};
        __local const float *w = b_local + ${stage} * ${fb.size} + across * ${t.vc};
#pragma unroll 4
        for (int k = 0; k < ${t.bk}; ++k) {
% for v in range(t.nv):
            const ${vec_type("float", t.vc)} b${v} = ${aligned(t.vc, f"w + k * {fb.pitch} + {v * t.across * t.vc}", "__local")};
% endfor
% for u in range(t.tm // t.vr):
            const ${vec_type("float", t.vr)} a${u} = ${aligned(t.vr, f"p + k * {fa.pitch} + {u * t.down * t.vr}", "__local")};
%  for j in range(t.vr):
%   for v in range(t.nv):
            c${u * t.vr + j}_${v} = fma((${vec_type("float", t.vc)})(${lane(f"a{u}", t.vr, j)}), b${v}, c${u * t.vr + j}_${v});
%   endfor
%  endfor
% endfor
        }
        }
</%def>
<%def name="sum_chunks(t, fetches, chunk)">\
    {
        ${chunk("from")}
    }
% if t.stages == 2:
    ${keep("a", fetches["a"], 0)}
    ${keep("b", fetches["b"], 0)}
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = from; s < to; ++s) {
        const int now = (s - from) % 2;
        if (s + 1 < to) {
        ${chunk("(s + 1)")}
        }
        ${multiply(t, fetches, "now")}
        if (s + 1 < to) {
        ${keep("a", fetches["a"], "(1 - now)")}
        ${keep("b", fetches["b"], "(1 - now)")}
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
% else:
    for (int s = from; s < to; ++s) {
        ${keep("a", fetches["a"], 0)}
        ${keep("b", fetches["b"], 0)}
        barrier(CLK_LOCAL_MEM_FENCE);
        if (s + 1 < to) {
        ${chunk("(s + 1)")}
        }
        ${multiply(t, fetches, 0)}
        barrier(CLK_LOCAL_MEM_FENCE);
    }
% endif
</%def>
<%def name="operand_lanes(width, pointer, pitch, safe, lanes, ctype)">\
<% V = vec_type("float", width) %>\
% if pitch == 0:
(${V})(${element(ctype, pointer, "0")})\
% elif lanes:
(${V})(${", ".join(element(ctype, pointer, f"{where} * {pitch}") for where in lanes)})\
% elif pitch == 1:
${aligned(width, pointer, ctype=ctype) if safe else load(ctype, width, pointer, "0")}\
% else:
(${V})(${", ".join(element(ctype, pointer, f"{k * pitch}") for k in range(width))})\
% endif
</%def>
<%def name="finish_vector(t, v, value, columns, operands, post_ops, scales, stored)">\
<%
    yt = stored.get("dst", "float")
    vc, by_input = t.vc, {which: (name, pitch, safe) for name, _, pitch, safe, which in operands}
    _, _, step, safe, _ = operands[0]
    def operand(which):
        name, pitch, safe = by_input[which]
        here = f"({name} + {name}_row + column * {pitch})" if pitch else f"({name} + {name}_row)"
        ctype = stored.get(name, "float")
        text = capture(operand_lanes, vc, here, pitch, safe, (), ctype).strip()
        if columns.split and pitch:
            lanes = [f"clamp({k}, {'first_n - column' if columns.shift else 0}, {vc - 1 if columns.shift else f'{columns.extent - 1} - column'})" for k in range(vc)]
            text = f"(whole ? {text} : {capture(operand_lanes, vc, here, pitch, safe, lanes, ctype).strip()})"
        return f"({scalar(scales[which])} * {text})" if which in scales else text
    def one(k):
        if stored_as(yt):
            return store(1, lane(value, vc, k), "to", f"{k * step}", yt)
        return f"to[{k * step}] = {lane(value, vc, k)};"
%>\
        {
            const int column = n0 + ${place(v * vc, t.across, vc, "across")};
% if columns.split:
            const int whole = ${columns.whole("column", "first_n")};
% endif
% if not columns.even:
            if (${columns.any("column", "first_n")})
% endif
            {
            ${st.apply(post_ops, value, "float", vc, operand)}
            __global ${cell(yt)} *to = dst + dst_row + column * ${step};
% if columns.split:
            if (!whole) {
%  for k in range(vc):
                if (${columns.stored(f"column + {k}", "first_n")}) ${one(k)}
%  endfor
            } else
% endif
            {
% if step == 1 and safe and stored_as(yt) == "half" and vc > 1:
                vstorea_half${vc}_rte(${value}, 0, to);
% elif step == 1 and safe and not stored_as(yt):
                *(__global ${vec_type("float", vc)} *)to = ${value};
% elif step == 1:
                ${store(vc, value, "to", "0", yt)}
% else:
%  for k in range(vc):
                ${one(k)}
%  endfor
% endif
            }
            }
        }
</%def>
<%def name="finish_row(t, r, value, ends, extents, operands, post_ops, scales, stored)">\
<% rows, columns = ends %>\
        const int row = m0 + ${place(r, t.down, t.vr, "down")};
% if not rows.even:
        if (${rows.stored("row", "first_m")})
% endif
        {
        ${lp.offsets("row", extents, [p for _, p, *_ in operands], [f"{name}_row" for name, *_ in operands])}
% for v in range(t.nv):
        ${finish_vector(t, v, value(v), columns, operands, post_ops, scales, stored)}
% endfor
        }
</%def>
<%def name="finish(t, ends, extents, operands, post_ops, scales, loop_epilogue, stored={})">\
% if loop_epilogue:
    ${vec_type("float", t.vc)} sums[${t.tm * t.nv}];
%  for r in range(t.tm):
%   for v in range(t.nv):
    sums[${r * t.nv + v}] = c${r}_${v};
%   endfor
%  endfor
    for (int r = 0; r < ${t.tm}; ++r) {
%  for v in range(t.nv):
        ${vec_type("float", t.vc)} sum${v} = sums[r * ${t.nv} + ${v}];
%  endfor
        ${finish_row(t, "r", lambda v: f"sum{v}", ends, extents, operands, post_ops, scales, stored)}
    }
% else:
%  for r in range(t.tm):
    {
        ${finish_row(t, r, lambda v: f"c{r}_{v}", ends, extents, operands, post_ops, scales, stored)}
    }
%  endfor
% endif
</%def>
