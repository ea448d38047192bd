<%doc>
shared/workgroup_sum: adds the partial sums that the k-slices of gemm/workgroup or conv/workgroup left.

Tensors  src: [k_slices][rows][columns]
         bias: [columns]
         dst, extras: any pitches
Index    rows count through `extents`; dst[row + column * pitch]
Launch   global (vectors of columns, rows)
Params   name, wg
         k_slices          partial sums of a result
         extents           of the loops over rows
         columns           extent
         operands          pitches on the rows and of the columns, of dst and extras
         extras            node input -> number, of operands of the post-ops
         scales            node input -> factor of such an operand
         has_bias          sums begin with it
         post_ops          what is applied to the sums
         types             of dst, and of extras by number
Tunables vw  {1,2,4}, divides columns
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%namespace name="wk" file="/_common/workgroup.cl.mako"/>
<%
    rows = 1
    for extent in extents:
        rows *= extent
    V, vectors = vec_type("float", vw), columns // vw
    yt, extra_types = types
    names = ["at_dst"] + [f"at_extra{k}" for k in extras.values()]
    assert columns % vw == 0, (columns, vw)
    def operand(which):
        k, pitch = extras[which], operands[extras[which] + 1][1]
        text = capture(tl.load_lanes, vw, f"extra{k}", f"at_extra{k} + column * {pitch}", pitch, vw, extra_types[k]).strip()
        return f"({scalar(scales[which])} * {text})" if which in scales else text
%>
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
% if has_bias:
    __global const float *bias,
% endif
% for k in extras.values():
    __global const ${cell(extra_types[k])} *extra${k}_base, const int extra${k}_offset,
% endfor
    __global ${cell(yt)} *dst_base, const int dst_offset)
{
    const int vector = get_global_id(0), row = get_global_id(1), column = vector * ${vw};
    if (vector >= ${vectors}) return;
    ${lp.offsets("row", extents, [p for p, _ in operands], names)}
    __global const float *src = src_base + src_offset + row * ${columns} + column;
    __global ${cell(yt)} *dst = dst_base + dst_offset;
% for k in extras.values():
    __global const ${cell(extra_types[k])} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    ${V} sum = ${wk.module.aligned(vw, "bias + column") if has_bias else f"({V})(0)"};
    for (int part = 0; part < ${k_slices}; ++part) sum += ${wk.module.aligned(vw, f"src + part * {rows * columns}")};
    ${st.apply(post_ops, "sum", "float", vw, operand)}
    ${tl.store_lanes(vw, "sum", "dst", f"at_dst + column * {operands[0][1]}", operands[0][1], 0, vw, yt)}
}
