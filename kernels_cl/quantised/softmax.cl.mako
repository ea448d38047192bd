<%doc>
quantised/softmax: softmax of each row of bytes, one work-item for a row.

Tensors  src, dst: (rows, length) | terms: [256], exponentials by src - largest + 255
Launch   global (rows)
Params   name | ctype: char or uchar | src, dst: TensorLayout |
         scale: steps of the result that 1 is, times shrink | shrink: a power of two |
         zero: of the result | low: the least value of ctype | wg
Order    sums from the first element on, in float32; quotients are rounded once, ties to even, as if they
         were exact: `over` has the sign of what a product is above so many and a half times the sum
</%doc>
<%
    rows, length = src.shape
%>
#pragma OPENCL FP_CONTRACT OFF
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset, __global const float *terms,
    __global ${ctype} *dst_base, const int dst_offset)
{
    const int row = get_global_id(0);
    if (row >= ${rows}) return;
    __global const ${ctype} *src = src_base + src_offset + ${index(src, "row", 0)};
    __global ${ctype} *dst = dst_base + dst_offset + ${index(dst, "row", 0)};
    int most = src[0];
    for (int k = 1; k < ${length}; ++k) most = max(most, (int)src[k * ${src.pitches[1]}]);
    float total = 0.0f;
    for (int k = 0; k < ${length}; ++k) total += terms[src[k * ${src.pitches[1]}] - most + 255];
    total *= ${scalar(shrink, "float")};
    for (int k = 0; k < ${length}; ++k) {
        const float term = terms[src[k * ${src.pitches[1]}] - most + 255];
        const float product = term * ${scalar(scale, "float")}, rest = fma(term, ${scalar(scale, "float")}, -product);
        const float whole = floor(fmin(product / total, 511.0f)), half_way = whole + 0.5f;
        const float bound = half_way * total, more = fma(half_way, total, -bound);
        const float over = (product - bound) + (rest - more);
        const int steps = (int)whole, up = over > 0.0f || (over == 0.0f && (steps & 1));
        dst[k * ${dst.pitches[1]}] = clamp(steps + up + ${zero}, ${low}, ${low + 255});
    }
}
