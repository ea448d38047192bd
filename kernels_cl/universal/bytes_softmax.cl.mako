<%doc>
universal/bytes_softmax: softmax of rows of bytes, as quantised/softmax computes it; all else is arguments.

Tensors  src, dst: elements of a row at a pitch, flip: 128 of signed bytes, which count as unsigned ones, moved up by that
         terms: [256], exponentials by src - largest + 255
Launch   global (rows)
Params   name     kernel name
         wg       local size
         scale: steps of the result that 1 is, times shrink | zero: of the result | low: the least value of the type
Tunables vw       elements of a tile
</%doc>
<%
    F, I = vec_type("float", vw), vec_type("int", vw)
%>
#pragma OPENCL FP_CONTRACT OFF
void softmax_steps(int *steps, const float *terms, const float total, const float scale, const int zero, const int low)
{
    const ${F} term = vload${vw}(0, terms), product = term * scale, rest = fma(term, (${F})(scale), -product);
    const ${F} whole = floor(fmin(product / total, (${F})(511.0f))), half_way = whole + 0.5f;
    const ${F} bound = half_way * total, more = fma(half_way, (${F})(total), -bound);
    const ${F} over = (product - bound) + (rest - more);
    const ${I} odd = convert_${I}(whole);
    const ${I} up = -((over > 0.0f) | ((over == 0.0f) & ((odd & 1) == 1)));
    vstore${vw}(clamp(odd + up + zero, (${I})(low), (${I})(low + 255)), 0, steps);
}
${group_size(wg)}
__kernel void ${name}(
    __global const uchar *src_base, const int src_offset, __global const float *terms,
    __global uchar *dst_base, const int dst_offset,
    const int length, const int sr, const int si, const int dr, const int di, const int flip,
    const float scale, const float shrink, const int zero, const int low)
{
    __global const uchar *s = src_base + src_offset + (int)get_global_id(0) * sr;
    __global uchar *d = dst_base + dst_offset + (int)get_global_id(0) * dr;
    int most = 0;
    for (int k = 0; k < length; ++k) most = max(most, s[k * si] ^ flip);
    float total = 0.0f;
    for (int k = 0; k < length; ++k) total += terms[(s[k * si] ^ flip) - most + 255];
    total *= shrink;
    float tile[${vw}];
    int steps[${vw}];
    for (int k = 0; k < length; k += ${vw}) {
        for (int j = 0; j < ${vw}; ++j) tile[j] = k + j < length ? terms[(s[(k + j) * si] ^ flip) - most + 255] : 0.0f;
        softmax_steps(steps, tile, total, scale, zero, low);
        for (int j = 0; j < min(${vw}, length - k); ++j) d[(k + j) * di] = steps[j];
    }
}
