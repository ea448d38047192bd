<%doc>
The main loop of matrix products on tensor cores: one work-group computes a tile of c = a * b.

Chunks of bk terms of a and b go from global to local memory in pieces of 16 bytes with zeros beyond
the edges, `stages` of them in turn; each warp multiplies its own rows and columns of the tile. With
`slices`, as many warps share these, and each takes its own part of every chunk; the first one adds the
sums of the others to its own at the end.
Local    a: bm rows of k. b: bn rows of k where b_rows is "n", bk rows of n where it is "k". The pieces
         of a row change places with the key of the row (`at`), so that neither the 8 rows of a
         matrix of ldmatrix, nor the words of a fragment that is read by words, share banks.
Warps    of wm x wn results each, by columns of warps of the tile; c[(i * ni + j) * 4 + e] is element
         e of the 16x8 block (i, j) of mma.

geometry(kind, bm, bn, bk, wm, wn, stages, b_rows, slices)
    Everything that follows from the tunables. Asserts what is possible: bk of 32, 64.. bytes in each slice;
    wm a multiple of 16, wn of 16; "k" only for kinds of 16 and 32 bits. memory: bytes of the chunks, or of the
    sums of all slices but one, which take their place.
declare(t, body), prepare(t, body)
    Text in front of the kernel, and at its top. prepare declares id, lane, slice, warp_m, warp_n and c.
main_loop(t, body, m, n, k, row_at, k_at, b_pitch, rounded, k_left)
    Adds all products to c, which holds the sums where slice is 0. Needs `m0`, `n0`: first row and column
    of the tile, and the pointers a and b. row_at(row), k_at(k): expressions of the element where a row of a begins, and how much
    further place k of it is; 16 bytes lie together. b_pitch: elements from row to row of b.
    k_left(k): expression of how many of the 16 bytes at place k of a there are, the others counting
    as zeros; None where all are there up to k.
rounded: kind "tf32" with operands that are floats of any precision; they are rounded in registers.
</%doc>
<%namespace name="pt" file="ptx.cl.mako"/>
<%!
from math import gcd
from types import SimpleNamespace

from clnn.ops.shared.tensor_cores import BYTES, OF_BYTES

TYPES = {"f16": "ushort", "bf16": "ushort", "tf32": "float", "s8": "char", "u8": "char"}  # of bytes: as they lie, whatever their sign

def plane(rows, pieces, threads, by_words=False):
    """A matrix of `rows` rows of `pieces` pieces of 16 bytes in local memory, copied by `threads`."""
    assert threads % pieces == 0, (threads, pieces)
    step = threads // pieces
    return SimpleNamespace(rows=rows, pieces=pieces, bytes=16 * rows * pieces, step=step,
                           passes=-(-rows // step), keys=gcd(pieces, 8), by_words=by_words)

def geometry(kind, bm, bn, bk, wm, wn, stages, b_rows, slices=1):
    size = BYTES[kind]
    assert bk * size % (32 * slices) == 0 and wm % 16 == 0 and wn % 16 == 0, (kind, bk, wm, wn)
    assert bm % wm == 0 and bn % wn == 0 and stages in (1, 2, 3, 4), (bm, wm, bn, wn, stages)
    assert b_rows == "n" or (b_rows == "k" and size > 1), (kind, b_rows)
    warps = (bm // wm) * (bn // wn) * slices
    a = plane(bm, bk * size // 16, 32 * warps)
    wide = (bn, bk * size // 16) if b_rows == "n" else (bk, bn * size // 16)
    b = plane(*wide, 32 * warps, b_rows == "k" and size == 4)
    sums = (slices - 1) * bm * bn * 4
    return SimpleNamespace(kind=kind, size=size, per=16 // size, bm=bm, bn=bn, bk=bk, wm=wm, wn=wn,
                           stages=stages, b_rows=b_rows, warps=warps, a=a, b=b, mi=wm // 16,
                           ni=wn // 8, steps=bk * size // 32 // slices, stage=a.bytes + b.bytes,
                           slices=slices, memory=max(stages * (a.bytes + b.bytes), sums))

def at(p, row, piece):
    """Return the byte of a piece: its place in the row is changed by the row's key."""
    key = f"2 * (({row}) & 3)" if p.by_words else f"({row}) / {8 // p.keys}"
    return f"({row}) * {16 * p.pieces} + (({piece}) ^ ({key} & {p.keys - 1})) * 16"
%>
<%def name="declare(t, body)">\
${pt.declare(body, [t.kind], t.stages * (t.a.passes + t.b.passes))}\
</%def>
<%def name="prepare(t, body)">\
    __local uint memory[${t.memory // 4}] __attribute__((aligned(128)));
    const int id = get_local_id(0), lane = id & 31, slice = id / ${32 * t.warps // t.slices};
    const int warp = ${f"id % {32 * t.warps // t.slices}" if t.slices > 1 else "id"} >> 5;
    const int warp_m = warp % ${t.bm // t.wm} * ${t.wm}, warp_n = warp / ${t.bm // t.wm} * ${t.wn};
    ${pt.prepare(body, pt.module.exchange_words(t.mi, t.ni), t.warps, "memory", t.memory)}
    ${"int" if t.kind in OF_BYTES else "float"} c[${t.mi * t.ni * 4}] = {0};
</%def>
<%def name="copies(t, body, p, pointer, start, kt, into)">\
<% whole = p.rows % p.step == 0 %>\
% for i in pt.module.over(body, "p", p.passes):
    ${pt.module.begin(body, "p", p.passes)}
        const int row = id / ${p.pieces} + ${i} * ${p.step}, piece = id % ${p.pieces};
        ${"" if whole else f"if (row < {p.rows}) {{"}
        ${start(i, kt)}
        ${pt.copy(body, f"{into} + {at(p, 'row', 'piece')}", f"{pointer} + (bytes ? from : 0)", "bytes")}
        ${"" if whole else "}"}
    }
% endfor
</%def>
<%def name="fragments(t, body, s)">\
        uint a_[${4 * t.mi}], b_[${2 * t.ni}];
        ${pt.ldmatrix(body, t.mi, False, "a_", lambda i: "now + " + at(
            t.a, f"warp_m + {i} * 16 + (lane & 15)", f"2 * {s} + (lane >> 4)"))}
% if t.b_rows == "n":
        ${pt.ldmatrix(body, t.ni // 2, False, "b_", lambda j: f"now + {t.a.bytes} + " + at(
            t.b, f"warp_n + {j} * 16 + (lane & 7) + (lane >> 4) * 8", f"2 * {s} + (lane >> 3 & 1)"))}
% elif t.size == 2:
        ${pt.ldmatrix(body, t.ni // 2, True, "b_", lambda j: f"now + {t.a.bytes} + " + at(
            t.b, f"{s} * 16 + (lane & 15)", f"warp_n / 8 + {j} * 2 + (lane >> 4)"))}
% else:
%  for j in pt.module.over(body, "j", t.ni):
        ${pt.module.begin(body, "j", t.ni)}
%   for r in range(2):
            b_[${j} * 2 + ${r}] = ${pt.word(body, "memory", f"(now + {t.a.bytes} + 4 * (lane >> 2 & 3) + " + at(
                t.b, f"{s} * 8 + {4 * r} + (lane & 3)", f"warp_n / 4 + {j} * 2 + (lane >> 4)") + ")")};
%   endfor
        }
%  endfor
% endif
</%def>
<%def name="multiply(t, body, rounded)">\
% for s in pt.module.over(body, "s", t.steps):
    ${pt.module.begin(body, "s", t.steps)}
        ${fragments(t, body, f"(slice * {t.steps} + {s})" if t.slices > 1 else s)}
% if rounded:
        ${pt.round_tf32(body, 4 * t.mi, "a_")}
        ${pt.round_tf32(body, 2 * t.ni, "b_")}
% endif
        ${pt.mma(body, t.kind, t.mi, t.ni, "a_", "b_", "c")}
    }
% endfor
</%def>
<%def name="main_loop(t, body, m, n, k, row_at, k_at, b_pitch, rounded=False, k_left=None)">\
<%
    chunks, prefetch = -(-k // t.bk), t.stages - 1
    even_k = k % t.bk == 0
    def left(place, limit, even):
        """How many of 16 bytes there are from an element on."""
        return "16" if even else f"clamp(({limit} - ({place})) * {t.size}, 0, 16)"
    def a_start(i, kt):
        there = k_left("k") if k_left else left("k", k, even_k)
        there = there if even_k or not k_left else f"k < {k} ? {there} : 0"
        return (f"const int k = {kt} * {t.bk} + piece * {t.per}; "
                f"const uint bytes = a_row[{i}] < 0 ? 0 : {there}; "
                f"const int from = a_row[{i}] + {k_at('k')};")
    def b_start(i, kt):
        if t.b_rows == "n":
            inside = "" if n % t.bn == 0 else f"n0 + row >= {n} ? 0 : "
            return (f"const int k = {kt} * {t.bk} + piece * {t.per}; "
                    f"const uint bytes = {inside}{left('k', k, even_k)}; "
                    f"const int from = (n0 + row) * {b_pitch} + k;")
        inside = "" if even_k else f"{kt} * {t.bk} + row >= {k} ? 0 : "
        return (f"const int column = n0 + piece * {t.per}; "
                f"const uint bytes = {inside}{left('column', n, n % t.bn == 0)}; "
                f"const int from = ({kt} * {t.bk} + row) * {b_pitch} + column;")
    def load(kt, slot):
        into = f"shared_ + {slot} * {t.stage}"
        copies(t, body, t.a, "a", a_start, kt, into)
        copies(t, body, t.b, "b", b_start, kt, f"{into} + {t.a.bytes}")
        pt.commit(body)
        return ""
%>\
    int a_row[${t.a.passes}];
% for i in pt.module.over(body, "p", t.a.passes):
    ${pt.module.begin(body, "p", t.a.passes)}
        const int row = m0 + id / ${t.a.pieces} + ${i} * ${t.a.step};
        a_row[${i}] = ${"" if m % t.bm == 0 else f"row >= {m} ? -1 : "}${row_at("row")};
    }
% endfor
% for q in range(min(prefetch, chunks)):
    ${load(q, q)}
% endfor
% for q in range(min(prefetch, chunks), prefetch):
    ${pt.commit(body)}
% endfor
    for (int kt = 0; kt < ${chunks}; ++kt) {
        const uint now = shared_ + kt % ${t.stages} * ${t.stage};
% if t.stages == 1:
        ${load("kt", "0")}
% endif
        ${pt.wait(body, max(prefetch - 1, 0))}
        ${pt.sync(body)}
% if t.stages > 1:
        if (kt + ${prefetch} < ${chunks}) {
            ${load(f"(kt + {prefetch})", f"(kt + {prefetch}) % {t.stages}")}
        } else {
            ${pt.commit(body)}
        }
% endif
        ${multiply(t, body, rounded)}
% if t.stages == 1:
        ${pt.sync(body)}
% endif
    }
% if t.slices > 1:
    ${add_slices(t, body)}
% endif
</%def>
<%def name="add_slices(t, body)">\
<% S, each, count = "int" if t.kind in OF_BYTES else "float", 32 * t.warps // t.slices, t.mi * t.ni * 4 %>\
    ${pt.wait(body, 0)}
    ${pt.sync(body)}
    __local ${S} *sums_ = (__local ${S} *)memory;
    if (slice > 0) {
% for e in pt.module.over(body, "e", count):
        ${pt.module.begin(body, "e", count)} sums_[((slice - 1) * ${count} + ${e}) * ${each} + id % ${each}] = c[${e}]; }
% endfor
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice == 0) {
% for e in pt.module.over(body, "e", count):
        ${pt.module.begin(body, "e", count)} for (int s = 0; s < ${t.slices - 1}; ++s) c[${e}] += sums_[(s * ${count} + ${e}) * ${each} + id]; }
% endfor
    }
</%def>
