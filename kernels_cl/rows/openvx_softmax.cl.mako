<%doc>
rows/openvx_softmax: softmax of integers along one axis, one work-item per row.

    y[k] = cut(e[k] / (e[0] + e[1] + ...) * 2**fraction), clamped; e = table[...] in float32

Tensors  src, dst: any layouts | table: e of each difference to the largest element (0, 1, ...), or
         with `conformance` of each element from the smallest one on
Launch   global (rows)
Params   name            kernel name
         source, result  Format
         conformance     which e the table holds
         rows            number of rows
         extents         of the loops over rows
         pitches         of those: [src, dst]
         count           elements of a row
         steps           pitch along the row: (src, dst)
         wg              local size
NaN      of a quotient gives the smallest element, as does a sum of 0
Range    with `conformance` sums may be below the smallest normal number: rows whose elements are all below
         2**40 are taken times 2**64, which changes no quotient, on devices without subnormals too
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%
    xt, yt = source.dtype.cl, result.dtype.cl
    entry = f"(int)s[k * {steps[0]}] - ({source.low})" if conformance else f"top - (int)s[k * {steps[0]}]"
    e = f"power(table[{entry}], is_low)" if conformance else f"table[{entry}]"
%>
% if conformance:
float power(const float e, const int is_low)
{
    const uint bits = as_uint(e);
    if (!is_low) return e;
    return bits < 0x800000u ? (float)bits * 0x1p-85f : e * 0x1p64f;
}

% endif
${group_size(wg)}
__kernel void ${name}(
    __global const ${xt} *src_base, const int src_offset,
    __global const float *table,
    __global ${yt} *dst_base, const int dst_offset)
{
    const int row = get_global_id(0);
    if (row >= ${rows}) return;
    ${lp.offsets("row", extents, pitches, ["from", "to"])}
    __global const ${xt} *s = src_base + src_offset + from;
    __global ${yt} *d = dst_base + dst_offset + to;
% if not conformance:
    int top = ${source.low};
    for (int k = 0; k < ${count}; ++k) top = max(top, (int)s[k * ${steps[0]}]);
% else:
    uint most = 0;
    for (int k = 0; k < ${count}; ++k) most = max(most, as_uint(table[${entry}]));
    const int is_low = most < as_uint(0x1p40f);
% endif
    float total = 0;
    for (int k = 0; k < ${count}; ++k) total = total + ${e};
    for (int k = 0; k < ${count}; ++k) {
        const float e = ${e};
        float q = e / total;
        q = fma(fma(-q, total, e), 1 / total, q);  // as if the quotient were rounded once
        const float scaled = clamp(q * ${scalar(2.0 ** result.fraction)}, 0.0f, ${scalar(float(result.high))});
        const int regular = total > 0 && total < INFINITY;
        const int broken = total == 0 || e == INFINITY;
        d[k * ${steps[1]}] = regular ? (${yt})(int)scaled : (${yt})(broken ? ${result.low} : 0);
    }
}
