<%doc>
gemm/mma: matrix product on tensor cores, dst[m][n] = a[m][k] * b[k][n] with sums in 32 bits.

                  | chunk of b    bk x bn, local memory
    --------------+--------------------------------
    chunk of a    | results of a group      bm x bn:
    bm x bk,      | warps of wm x wn each, in registers
    local memory  |

Tensors  a: rows of k
         b: rows of n where b_rows is "k", rows of k where it is "n"
         dst, extras: any pitches
         All rows of a and b begin at multiples of 16 bytes: the buffers, offsets, pitches and what
         batch adds. f16 and bf16 are bits in ushort.
Index    a[i * a + p]   b[p * b + j] or b[j * b + p]   dst[i * PM + j * PN]
Launch   global (row tiles * column tiles * 32 * warps, batch), local (32 * warps, 1)
Params   name, wg
         kind              {"f16", "bf16", "tf32", "s8"}: of a and b
         m, n, k           extents
         a, b              elements from row to row
         b_rows            {"k", "n"}: which index of b counts its rows; "n" alone for s8
         dst               pitches (row, column)
         dst_type          {"float", "half", "bf16", "int"}; "int" for s8 alone, without post-ops
         rounded           tf32 operands are floats of any precision, rounded here
         moves             whether a and b have an offset each: constants have none
         extra_type        of extras in memory
         batch             extents and pitches of the outer loops, in the order a, b, dst, extras
         extras            node input -> (number, pitches), of operands of the post-ops
         scales            node input -> factor of such an operand
         post_ops          what is applied to the sums
         body              {"ptx", "emulated"}: instructions, or plain OpenCL C that gives the same
Tunables bm, bn  {16..256}       rows and columns of a work-group; multiples of wm, wn
         wm, wn  {16, 32, 64}    rows and columns of a warp
         bk      32, 64.. bytes  terms of a chunk
         stages  {1,2,3,4}       chunks in local memory
         raster  {1..}           row tiles that follow one another before the next column of tiles
         slices  {1,2,4}         warps that share results, each with its part of a chunk's terms
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="ms" file="/_common/mma_store.cl.mako"/>
<%namespace name="mt" file="/_common/mma_tile.cl.mako"/>
<%
    t = mt.module.geometry(kind, bm, bn, bk, wm, wn, stages, b_rows, slices)
    T, out = mt.module.TYPES[kind], {"half": "ushort", "bf16": "ushort"}.get(dst_type, dst_type)
    assert wg[0] == 32 * t.warps and a % t.per == 0 and b % t.per == 0, (wg, a, b)
    down, across = -(-m // bm), -(-n // bn)
    names = ["at_a", "at_b", "at_dst"] + [f"at_extra{place}" for place, _ in extras.values()]
    flat = n % 2 == 0 and dst[1] == 1 and all(p[1] in (0, 1) for _, p in extras.values())
    def place(pitches, column):
        terms = [f"{text} * {pitch}" for text, pitch in (("row", pitches[0]), (column, pitches[1])) if pitch]
        return " + ".join(terms) or "0"
    def operand(which, column):
        number, pitches = extras[which]
        text = load(extra_type, 2 if flat else 1, f"extra{number}", place(pitches, column), pitches[1] if flat else 1)
        return f"({scalar(scales[which])} * {text})" if which in scales else text
%>
${mt.declare(t, body)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${T} *a_base,
% if moves[0]:
    const int a_offset,
% endif
    __global const ${T} *b_base,
% if moves[1]:
    const int b_offset,
% endif
% for place_, _ in extras.values():
    __global const ${cell(extra_type)} *extra${place_}_base, const int extra${place_}_offset,
% endfor
    __global ${out} *dst_base, const int dst_offset)
{
    ${lp.offsets("get_group_id(1)", batch.extents, batch.pitches, names)}
    // Tiles go down `raster` rows of tiles, then to the next column of them.
    const int tile = get_group_id(0), band = tile / ${raster * across} * ${raster};
    const int high = min(${raster}, ${down} - band), within = tile % ${raster * across};
    const int m0 = (band + within % high) * ${bm}, n0 = within / high * ${bn};
    __global const ${T} *a = a_base + at_a${" + a_offset" if moves[0] else ""}, *b = b_base + at_b${" + b_offset" if moves[1] else ""};
    __global ${out} *dst = dst_base + dst_offset + at_dst;
% for place_, _ in extras.values():
    __global const ${cell(extra_type)} *extra${place_} = extra${place_}_base + extra${place_}_offset + at_extra${place_};
% endfor
    ${mt.prepare(t, body)}
    ${mt.main_loop(t, body, m, n, k, lambda row: f"{row} * {a}", lambda p: p, b, rounded)}
    ${ms.results(t, body, m, n, dst_type, post_ops, operand, lambda column: place(dst, column), lambda row: "", flat)}
}
