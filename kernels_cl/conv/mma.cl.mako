<%doc>
conv/mma: convolution on tensor cores as a product of pixels and weights, with sums in 32 bits.

Tensors  src, dst, operands: images with channels innermost, seen as (n, c, h, w); src has a border of
         zeros at least as wide as the pads
         weights: a matrix of [kh][kw][ic] and oc, b elements from row to row; ic in whole pieces of
         16 bytes, with zeros behind the last channel. The pixels of src, and the rows of weights,
         begin at multiples of 16 bytes; what lies behind the channels of a pixel is not read
Index    row p of the product is output pixel p in (n, y, x); place k of it is tap k / icp, channel
         k % icp, icp being ic in whole pieces
Launch   global (row tiles * column tiles * 32 * warps, 1), local (32 * warps, 1)
Params   name, src, dst, kernel, strides, dilations, pads, post_ops, operands, extra_types, scales, wg:
         as of conv/direct
         kind {"f16","bf16","tf32","s8","u8"}: of pixels; weights are the same, or int8
         dst_type {"float","half","bf16","int","char","uchar"}
         ic, oc
         b: pitch of rows of weights
         b_rows: "k": rows of oc; "n": rows of [kh][kw][ic]
         b_moves {0,1}: weights have an offset
         arith: Sums or one of its kinds, of bytes, with a table of what sums begin with and are worth; or None
         bias: the input of post_ops that is one float per channel, without an offset, or -1
         rounded {0,1}: tf32 operands are rounded here
         body {"ptx","emulated"}
Tunables bm, bn, bk, wm, wn, stages, raster, slices: as of gemm/mma
</%doc>
<%namespace name="ar" file="/_arith/quantised.cl.mako"/>
<%namespace name="ms" file="/_common/mma_store.cl.mako"/>
<%namespace name="mt" file="/_common/mma_tile.cl.mako"/>
<%namespace name="sc" file="/_common/scales.cl.mako"/>
<%
    t = mt.module.geometry(kind, bm, bn, bk, wm, wn, stages, b_rows, slices)
    T, out = mt.module.TYPES[kind], {"half": "ushort", "bf16": "ushort"}.get(dst_type, cell(dst_type))
    (kh, kw), (sy, sx), (dy, dx), (pad_y, pad_x) = kernel, strides, dilations, pads
    batch, _, oh, ow = dst.shape
    icp = -(-ic // t.per) * t.per
    m, n, k = batch * oh * ow, oc, kh * kw * icp
    line, pixel = src.pitches[2:]
    assert arith is None or (kind in mt.module.OF_BYTES and bias < 0), (kind, bias)
    assert wg[0] == 32 * t.warps and b % t.per == 0 and ic == src.shape[1], (wg, b, ic)
    assert all(p % t.per == 0 for p in (src.pitches[0], line, pixel)) and src.pitches[1] == 1, src.pitches
    assert src.before[2] >= pad_y and src.before[3] >= pad_x, (src.before, pads)
    reach = ((oh - 1) * sy + (kh - 1) * dy - pad_y, (ow - 1) * sx + (kw - 1) * dx - pad_x)
    assert all(r < size + after for r, size, after in zip(reach, src.shape[2:], src.after[2:])), (reach, src)
    down, across = -(-m // bm), -(-n // bn)
    flat = n % 2 == 0 and all(p in (0, 1) for p in (1, *(layout.pitches[1] for _, layout in operands.values())))
    flat = flat and dst.pitches[1] == 1
    def operand(which, column):
        if which == bias:
            return load("float", 2 if flat else 1, "bias", column)
        number, layout = operands[which]
        where = index(layout, "image", column, "y", "x")
        return load(extra_types[number], 2 if flat else 1, f"extra{number}", where, layout.pitches[1] if flat else 1)
    def scaled(total, column):
        width = 2 if flat else 1
        row = lambda r: load("int", width, "table", f"{r * oc} + {column}")
        return capture(ar.finish, arith, width, f"({total} + {row(0)})", "value", row)
    def row_at(row):
        """The first tap of an output pixel, from the corner of the border that taps reach."""
        return (f"{row} / {oh * ow} * {src.pitches[0]} + {row} / {ow} % {oh} * {sy * line}"
                f" + {row} % {ow} * {sx * pixel}")
    def k_at(p):
        if kh * kw == 1:
            return p
        return f"{p} % {icp} + {p} / {icp} % {kw} * {dx * pixel} + {p} / {icp * kw} * {dy * line}"
    def k_left(p):
        """Bytes of channels in the piece at a place."""
        return f"min(({ic} - {p} % {icp}) * {t.size}, 16)"
%>
${mt.declare(t, body)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${T} *a_base, const int a_offset, __global const ${T} *b_base,
% if b_moves:
    const int b_offset,
% endif
% if bias >= 0:
    __global const float *bias,
% endif
% if arith:
    __global const int *table,
% endif
    ${sc.parameters(scales, extra_types)}
    __global ${out} *dst_base, const int dst_offset)
{
    ${sc.declare(scales, arith is not None)}
    // Tiles go down `raster` rows of tiles, then to the next column of them.
    const int tile = get_group_id(0), band = tile / ${raster * across} * ${raster};
    const int high = min(${raster}, ${down} - band), within = tile % ${raster * across};
    const int m0 = (band + within % high) * ${bm}, n0 = within / high * ${bn};
    __global const ${T} *a = a_base + a_offset - ${pad_y * line + pad_x * pixel}, *b = b_base${" + b_offset" if b_moves else ""};
    __global ${out} *dst = dst_base + dst_offset;
% for place_, _ in operands.values():
    __global const ${cell(extra_types[place_])} *extra${place_} = extra${place_}_base + extra${place_}_offset;
% endfor
    ${mt.prepare(t, body)}
    ${mt.main_loop(t, body, m, n, k, row_at, k_at, b, rounded, None if ic == icp else k_left)}
    ${ms.results(t, body, m, n, dst_type, post_ops, operand,
        lambda column: index(dst, "image", column, "y", "x"),
        lambda row: f"const int x = {row} % {ow}, y = {row} / {ow} % {oh}, image = {row} / {oh * ow};", flat,
        scaled if arith else None)}
}
