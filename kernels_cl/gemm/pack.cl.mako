<%doc>
gemm/pack: copies matrices into panels of `nv * vw` columns, as gemm/tiled reads them.

A work-item packs a strip of `vw` columns. Where they lie side by side they are copied, zeros behind
the last; else each is read on its own, the last one again for those behind it, and where rows lie
side by side squares of vw x vw elements are transposed in registers.

Tensors  src: matrices k x n of any pitches
         dst: panels of float, see Index
Index    src[i * PK + j * PN]   dst[j / (nv * vw) * panel + i * row + j % (nv * vw)]
         pairs: rows 2 i and 2 i + 1 of bfloat16 as one of 32 bits, 0 behind the last row where k is odd;
         dst is of bfloat16
Launch   global (strips, chunks of k, batch); one work-item packs `chunk` rows, or pairs, of a strip
Params   name, wg
         ctype             type of src
         pairs {0,1}
         k, n              extents
         src               pitches (row, column)
         batch             extents and pitches of the outer loops, in the order src, dst
         row, panel        elements of dst from row to row and from panel to panel
         strips            of a matrix
         to                rows, or pairs, of dst, 0 behind those of a matrix; 0: as many as these are
Tunables nv     {1,2,3,4}             vectors of columns of a panel
         vw     {1,4,8,16}            lanes of a vector
         chunk  {vw, 2 vw, 3 vw..}    rows that a work-item packs
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%
    V = vec_type("float", vw)
    copies, squares = is_one(src[1]), is_one(src[0]) and vw > 1
    whole = n - n % vw if not is_open(n) else f"({n} & ~{vw - 1})"
    assert chunk % vw == 0, (chunk, vw)
    of_dst, unit = ("ushort", 2) if pairs else ("float", 1)
    items, odd = -(-k // unit), pairs and not divides(2, k)
    fills = to and to > items
    def put(value, where):
        """Statement that stores a vector of dst, of pairs as floats of the same bits."""
        return f"{small_vector(V, 'w', where, '')} = {value};" if pairs else store(vw, value, "w", where)
    def one(where, last=False):
        """Expression of an element, or of the pair that begins with it."""
        if not pairs:
            return element(ctype, "p", where)
        return f"as_float((uint)p[{where}]" + ("" if last else f" | (uint)p[{where} + {src[0]}] << 16") + ")"
    def dense(last=False):
        """Expression of a vector of neighbouring columns, or of their pairs."""
        if not pairs:
            return load(ctype, vw, "p", "0")
        low, high = (f"convert_{vec_type('uint', vw)}({small_vector(vec_type('ushort', vw), 'p', at)})" for at in ("0", str(src[0])))
        return f"as_{V}({low}" + ("" if last else f" | {high} << 16") + ")"
    def some(there, last=False):
        """The same, of as many columns as there are."""
        if not pairs:
            return capture(tl.load_lanes, vw, "p", "0", 1, there, ctype).strip()
        return f"({V})(" + ", ".join([one(str(c), last) for c in range(there)] + ["0"] * (vw - there)) + ")"
    def sides(block):
        """Swizzles of the lanes in the lower and in the upper half of each 2 * block lanes."""
        digits = "0123456789abcdef"[:vw]
        low = "".join(d for i, d in enumerate(digits) if not i & block)
        return "s" + low, "s" + "".join(d for d in digits if d not in low)
%>
<%def name="copy(text)">\
        for (; i < ${"whole_end" if odd else "end"}; ++i, p += ${times(unit, src[0])}, w += ${row}) {
            ${put(text(False), "0")}
        }
% if odd:
        if (i < end) {
            ${put(text(True), "0")}
        }
% endif
</%def>
<%def name="fill()">\
    for (int z = max(from, ${items}); z < min(from + ${chunk}, ${to}); ++z) {
        ${put(f"({V})(0)", f"(z - from) * {row}")}
    }
</%def>
<%def name="transpose()">\
% for c in range(vw):
        ${V} t${c} = ${small_vector(V, "p", f"o{c}") if pairs else load(ctype, vw, "p", f"o{c}")};
% endfor
<% block = vw // 2 %>\
% while block:
<%
    low, high = sides(block)
    half = vec_type("float", vw // 2)
%>\
%  for c in range(vw):
%   if not c & block:
        { const ${half} s = t${c}.${high}; t${c}.${high} = t${c + block}.${low}; t${c + block}.${low} = s; }
%   endif
%  endfor
<% block //= 2 %>\
% endwhile
% for c in range(vw):
        ${put(f"t{c}", times(c, row))}
% endfor
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(ctype)} *src_base, const int src_offset, __global ${of_dst} *dst_base, const int dst_offset)
{
    const int strip = get_global_id(0), column = strip * ${vw};
    if (strip >= ${strips}) return;
    int i = get_global_id(1) * ${chunk};
    const int end = min(i + ${chunk}, ${items});
% if fills:
    const int from = i;
% endif
% if odd:
    const int whole_end = min(end, ${items - 1});
% endif
    ${lp.offsets("get_global_id(2)", batch.extents, batch.pitches, ["at_src", "at_dst"])}
    __global const ${cell(ctype)} *p = src_base + src_offset + at_src + i * ${times(unit, src[0])};
    __global ${of_dst} *w = dst_base + dst_offset + at_dst + strip / ${nv} * ${panel} + strip % ${nv} * ${vw * unit} + i * ${row};
% if fills:
    ${fill()}
% endif
% if copies:
    p += column;
    if (column < ${whole}) {
        ${copy(dense)}
    }
%  if is_open(n):
    if (column >= ${whole} && column < ${n}) {
        const int there = ${n} - column;
        ${copy(lambda last: f"({V})(" + ", ".join(f"{c} < there ? {one(str(c), last)} : 0.0f" for c in range(vw)) + ")")}
    }
%  elif n > whole:
    if (column == ${whole}) {
        ${copy(lambda last: some(n - whole, last))}
    }
%  endif
    if (column >= ${n}) {
        ${copy(lambda last: f"({V})(0)")}
    }
% else:
%  for c in range(vw):
    const int o${c} = min(column + ${c}, ${n - 1}) * ${src[1]};
%  endfor
%  if squares:
    for (; i + ${vw} <= ${"whole_end" if odd else "end"}; i += ${vw}, p += ${vw * unit}, w += ${times(vw, row)}) {
        ${transpose()}
    }
%  endif
    ${copy(lambda last: f"({V})(" + ", ".join(one(f"o{c}", last) for c in range(vw)) + ")")}
% endif
}
