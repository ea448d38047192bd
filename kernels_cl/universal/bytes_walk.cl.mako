<%doc>
universal/bytes_walk: elementwise functions of quantised tensors, copies and choices of elements of any size, sums,
differences and products of integers that wrap, and integers made smaller; all else is arguments.

    dst[...] = steps(src[...])    src[...]    src[...] ? e0[...] : e1[...]    src[...] + e0[...]

Tensors  src, e0, e1 (operands of steps), dst: types, and pitches of some outer loops, a middle and an inner one
         table: results of bytes, floats, then as bytes
Launch   global (inner / chunk * middle / rows, product of outer extents), as elementwise/eltwise has it
Params   name     kernel name
         wg       local size
         size     bytes of an element, 0: types say them, and steps are taken
         how      0: a copy, 1: a choice by bytes, 2: + of integers, 3: -, 4: *, 5: src + 256 * e0, 6: int to d_type,
                  7: & of bytes, 8: |, 9: ^, 10: 1 for bytes that are 0; 11: elements at the places that e0, integers of e0_type
                  bytes, says along an axis of `extent`, `along` apart; 12: whether elements of s_type bytes are not 0
Tunables vw       elements of a vector
         piece    elements of a tile, a multiple of vw
         vbmi     {0,1}: of _common/byte_results
</%doc>
<%namespace name="bc" file="/_common/byte_codes.cl.mako"/>
<%namespace name="br" file="/_common/byte_results.cl.mako"/>
<%!
from clnn.ops.universal.byte_steps import CODES, MANY, OPERANDS
from clnn.ops.universal.walk import OUTER
NAMES = ("s", "e0", "e1", "d")
COPIED = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}
%>
<%
    def gather(k):
        return f"""\
                for (int r = 0; r < held; ++r)
                    read_typed(other + r * count, e{k} + (i * e{k}i + r * e{k}m) * e{k}_size, e{k}_type, e{k}i, count, r + 1 < held ? count : all - r * count);"""
%>
#define VW ${vw}
${bc.define(vw)}
${br.define(vw, vbmi)}
% for size, ctype in COPIED.items():
void copy_${ctype}(__global uchar *to, __global const uchar *from, const int di, const int si, const int first, const int stop)
{
    __global ${ctype} *d = (__global ${ctype} *)to;
    __global const ${ctype} *s = (__global const ${ctype} *)from;
    int i = first;
% if size < 8:
    if (si == 1 && di == 1)
        for (; i + ${vw} <= stop; i += ${vw}) {
            const ${vec_type(ctype, vw)} v = ${load(ctype, vw, "s", "i")};
            ${store(vw, "v", "d", "i", ctype)}
        }
% endif
    for (; i < stop; ++i) d[i * di] = s[i * si];
}
void choose_${ctype}(__global uchar *to, __global const uchar *s, __global const uchar *a, __global const uchar *b, const int di, const int si, const int ai, const int bi, const int first, const int stop)
{
    for (int i = first; i < stop; ++i)
        ((__global ${ctype} *)to)[i * di] = s[i * si] ? ((__global const ${ctype} *)a)[i * ai] : ((__global const ${ctype} *)b)[i * bi];
}
% endfor
void look_row(__global uchar *d, __global const uchar *s, __global const float *table, const int count)
{
    int i = 0;
    for (; i + ${vw} <= count; i += ${vw}) {
        const ${vec_type("uchar", vw)} y = look_bytes(${load("uchar", vw, "s", "i")}, table);
        ${store(vw, "y", "d", "i", "uchar")}
    }
    for (; i < count; ++i) d[i] = ((__global const uchar *)(table + 256))[s[i]];
}
void add_words(__global uchar *to, __global const uchar *from, __global const uchar *by, const int how, const int di, const int si, const int bi, const int first, const int stop)
{
    __global uint *d = (__global uint *)to;
    __global const uint *s = (__global const uint *)from, *b = (__global const uint *)by;
    for (int i = first; i < stop; ++i) {
        const uint x = s[i * si], y = b[i * bi];
        d[i * di] = how == 2 ? x + y : how == 3 ? x - y : how == 4 ? x * y : x + (y << 8);
    }
}
void logic_bytes(__global uchar *d, __global const uchar *s, __global const uchar *by, const int how, const int di, const int si, const int bi, const int first, const int stop)
{
    for (int i = first; i < stop; ++i) {
        const int x = s[i * si], y = by[i * bi];
        d[i * di] = how == 7 ? x & y : how == 8 ? x | y : how == 9 ? x ^ y : x == 0;
    }
}
void are_true(__global uchar *d, __global const uchar *s, const int bytes, const int di, const int si, const int first, const int stop)
{
    for (int i = first; i < stop; ++i) {
        int any = 0;
        for (int k = 0; k < bytes; ++k) any |= s[(long)i * si * bytes + k];
        d[i * di] = any != 0;
    }
}
long place_of(__global const uchar *index, const int bytes, const int at, const int extent)
{
    long k = bytes == 8 ? ((__global const long *)index)[at] : ((__global const int *)index)[at];
    k = k < 0 ? k + extent : k;
    return k < 0 ? 0 : k >= extent ? extent - 1 : k;
}
% for size, ctype in COPIED.items():
void gather_${ctype}(__global uchar *to, __global const uchar *from, __global const uchar *index, const int bytes, const int extent, const int along, const int di, const int si, const int ii, const int first, const int stop)
{
    __global ${ctype} *d = (__global ${ctype} *)to;
    __global const ${ctype} *s = (__global const ${ctype} *)from;
    if (ii == 0) {
        s += place_of(index, bytes, 0, extent) * along;
        for (int i = first; i < stop; ++i) d[i * di] = s[i * si];
    } else
        for (int i = first; i < stop; ++i) d[i * di] = s[i * si + place_of(index, bytes, i * ii, extent) * along];
}
% endfor
void narrow_words(__global uchar *to, __global const uchar *from, const int bytes, const int di, const int si, const int first, const int stop)
{
    __global const int *s = (__global const int *)from;
    if (bytes == 1)
        for (int i = first; i < stop; ++i) to[i * di] = (uchar)s[i * si];
    else
        for (int i = first; i < stop; ++i) ((__global ushort *)to)[i * di] = (ushort)s[i * si];
}
${group_size(wg)}
__kernel void ${name}(
    __global const uchar *src_base, const int src_offset,
    __global const uchar *e0_base, const int e0_offset,
    __global const uchar *e1_base, const int e1_offset,
    __global const float *table,
    __global uchar *dst_base, const int dst_offset,
    const int size, const int how, const int extent, const int along,
    const int s_type, const int e0_type, const int e1_type, const int d_type,
    const int inner, const int chunk, const int middle, const int rows,
% for k in range(OUTER):
    const int extent${k},
% endfor
% for name_ in NAMES:
    ${" ".join(f"const int {name_}{k}," for k in range(OUTER))} const int ${name_}_middle, const int ${name_}_inner,
% endfor
${bc.params(MANY)})
{
${bc.decode(MANY)}\
    const int parts = (inner + chunk - 1) / chunk, part = get_global_id(0);
    const int begin = part % parts * chunk, end = min(begin + chunk, inner);
    const int top = part / parts * rows, bottom = min(top + rows, middle);
    const int turned = end - begin < VW && bottom - top > end - begin;  // along the longer of both
    const int first = turned ? top : begin, stop = turned ? bottom : end;
    const int from = turned ? begin : top, to = turned ? end : bottom;
% for n in NAMES:
    const int ${n}m = turned ? ${n}_inner : ${n}_middle, ${n}i = turned ? ${n}_middle : ${n}_inner;
% endfor
    int rest = get_global_id(1), ${", ".join(f"{n}_at = 0" for n in NAMES)};
% for n in NAMES:
    const int ${n}_size = ${{"s": "how == 1 ? 1 : how == 12 ? s_type : ", "e0": "how == 11 ? e0_type : ", "d": "how == 6 ? size_of_type(d_type) : "}.get(n, "")}size ? size : size_of_type(${n}_type);
% endfor
% for k in reversed(range(OUTER)):
    {
        const int at = rest % extent${k};
        rest /= extent${k};
        ${" ".join(f"{n}_at += at * {n}{k};" for n in NAMES)}
    }
% endfor
    float tile[${piece}], other[${piece}];
    const int looks = !size && how == 0 && steps == 1 && code0 == ${CODES.index("byte_table")} && s_type < 2 && d_type < 2 && si == 1 && di == 1;
    const int together = size || how || looks ? 1 : max(1, ${piece} / max(stop - first, 1));  // rows of a tile
    for (int j = from; j < to; j += together) {
        const int held = min(together, to - j);
        __global const uchar *s = src_base + (long)(src_offset + s_at + j * sm) * s_size;
        __global const uchar *e0 = e0_base + (long)(e0_offset + e0_at + j * e0m) * e0_size;
        __global const uchar *e1 = e1_base + (long)(e1_offset + e1_at + j * e1m) * e1_size;
        __global uchar *d = dst_base + (long)(dst_offset + d_at + j * dm) * d_size;
        if (how == 12) are_true(d, s, s_type, di, si, first, stop);
        else if (how > 6 && how < 11) logic_bytes(d, s, e0, how, di, si, e0i, first, stop);
        else if (how == 6) narrow_words(d, s, d_size, di, si, first, stop);
        else if (how > 1 && how < 6) add_words(d, s, e0, how, di, si, e0i, first, stop);
% for size, ctype in COPIED.items():
        else if (size == ${size} && how == 1) choose_${ctype}(d, s, e0, e1, di, si, e0i, e1i, first, stop);
        else if (size == ${size} && how == 11) gather_${ctype}(d, s, e0, e0_type, extent, along, di, si, e0i, first, stop);
        else if (size == ${size}) copy_${ctype}(d, s, di, si, first, stop);
% endfor
        else if (looks)
            look_row(d + first * di, s + first * si, table, stop - first);
        else
            for (int i = first; i < stop; i += ${piece}) {
                const int count = min(${piece}, stop - i), all = (held * count + VW - 1) / VW * VW;
                for (int r = 0; r < held; ++r)
                    read_typed(tile + r * count, s + (i * si + r * sm) * s_size, s_type, si, count, r + 1 < held ? count : all - r * count);
${bc.apply("tile", "other", "all", gather, MANY, OPERANDS)}
                for (int r = 0; r < held; ++r) write_typed(d + (i * di + r * dm) * d_size, tile + r * count, d_type, di, count);
            }
    }
}
