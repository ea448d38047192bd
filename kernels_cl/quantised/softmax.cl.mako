<%doc>
quantised/softmax: softmax of each row of bytes, one work-item for a row.

Tensors  src, dst: (rows, length) | terms: [256], exponentials by src - largest + 255
Launch   global (rows)
Params   name | ctype: char or uchar | src, dst: TensorLayout | scale: steps of the result that 1 is |
         zero: of the result | low: the least value of ctype | wg
Order    sums from the first element on, in float32
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
    for (int k = 0; k < ${length}; ++k) {
        const float part = terms[src[k * ${src.pitches[1]}] - most + 255] * ${scalar(scale, "float")} / total;
        dst[k * ${dst.pitches[1]}] = clamp(convert_int_rte(part) + ${zero}, ${low}, ${low + 255});
    }
}
