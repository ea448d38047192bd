<%doc>
quantised/softmax: softmax of each row of bytes, one work-item for a row.

Tensors  src, dst: (rows, length) | terms: [256], exponentials by src - largest + 255
Launch   global (rows)
Params   name | ctype: char or uchar | src, dst: TensorLayout |
         scale: steps of the result that 1 is, times shrink | shrink: a power of two |
         zero: of the result | low: the least value of ctype | wg
Tunables vw {0,2,4,8,16}   lanes in which a row's results are computed, once for each distance from its largest
                           element, and then looked up; 0: for each element
Order    sums from the first element on, in float32; quotients are rounded once, ties to even, as if they
         were exact: `over` has the sign of what a product is above so many and a half times the sum
</%doc>
<%
    rows, length = src.shape
    F, I = vec_type("float", vw or 1), vec_type("int", vw or 1)
    truth = "-" if vw else ""
%>
<%def name="steps_of(term)">\
        const ${F} term = ${term};
        const ${F} product = term * ${scalar(scale, "float")}, rest = fma(term, (${F})(${scalar(scale, "float")}), -product);
        const ${F} whole = floor(fmin(product / total, (${F})(511.0f))), half_way = whole + 0.5f;
        const ${F} bound = half_way * total, more = fma(half_way, (${F})(total), -bound);
        const ${F} over = (product - bound) + (rest - more);
        const ${I} odd = ${"convert_int" + str(vw) if vw else "(int)"}(whole);
        const ${I} up = ${truth}((over > 0.0f) | ((over == 0.0f) & ((odd & 1) == 1)));
        const ${I} steps = clamp(odd + up + ${zero}, (${I})(${low}), (${I})(${low + 255}));
</%def>
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
% if vw:
    ${ctype} found[256];
    for (int k = 0; k < 256; k += ${vw}) {
${steps_of(f"vload{vw}(0, terms + k)")}
        vstore${vw}(convert_${ctype}${vw}(steps), 0, found + k);
    }
    for (int k = 0; k < ${length}; ++k)
        dst[k * ${dst.pitches[1]}] = found[src[k * ${src.pitches[1]}] - most + 255];
% else:
    for (int k = 0; k < ${length}; ++k) {
${steps_of(f"terms[src[k * {src.pitches[1]}] - most + 255]")}
        dst[k * ${dst.pitches[1]}] = steps;
    }
% endif
}
