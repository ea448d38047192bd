<%doc>
quantised/softmax: softmax of each row of bytes, one work-item for `held` rows.

Tensors  src, dst: (rows, length) | terms: [256], exponentials by src - largest + 255
Launch   global (rows / held, rounded up)
Params   name | ctype: char or uchar | src, dst: TensorLayout |
         scale: steps of the result that 1 is, times shrink | shrink: a power of two |
         zero: of the result | low: the least value of ctype | wg
Tunables vw {0,2,4,8,16}   lanes in which a row's results are computed, once for each distance from its largest
                           element, and then looked up; 0: for each element
         held {1,2,4}      rows whose sums are added in turn, as each waits for its last addition; those behind
                           the last are the last one again
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
% if vw:
<%doc>Results of a row: `total` is its sum times shrink, `most` and `least` are its ends.</%doc>\
void ${name}_put(__global const ${ctype} *src, __global ${ctype} *dst, __global const float *terms,
                 const float total, const int most, const int least)
{
    ${ctype} found[256];
    for (int k = (255 - most + least) & -${vw}; k < 256; k += ${vw}) {
${steps_of(f"vload{vw}(0, terms + k)")}
        vstore${vw}(convert_${ctype}${vw}(steps), 0, found + k);
    }
    for (int k = 0; k < ${length}; ++k)
        dst[k * ${dst.pitches[1]}] = found[src[k * ${src.pitches[1]}] - most + 255];
}
% endif
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset, __global const float *terms,
    __global ${ctype} *dst_base, const int dst_offset)
{
    const int first = get_global_id(0) * ${held};
    if (first >= ${rows}) return;
% for r in range(held):
    const int row${r} = ${f"min(first + {r}, {rows} - 1)" if r else "first"};
    __global const ${ctype} *src${r} = src_base + src_offset + ${index(src, f"row{r}", 0)};
    __global ${ctype} *dst${r} = dst_base + dst_offset + ${index(dst, f"row{r}", 0)};
    int most${r} = src${r}[0], least${r} = most${r};
    for (int k = 1; k < ${length}; ++k) {
        most${r} = max(most${r}, (int)src${r}[k * ${src.pitches[1]}]);
        least${r} = min(least${r}, (int)src${r}[k * ${src.pitches[1]}]);
    }
    float total${r} = 0.0f;
% endfor
    for (int k = 0; k < ${length}; ++k) {
% for r in range(held):
        total${r} += terms[src${r}[k * ${src.pitches[1]}] - most${r} + 255];
% endfor
    }
% for r in range(held):
% if vw:
    ${name}_put(src${r}, dst${r}, terms, total${r} * ${scalar(shrink, "float")}, most${r}, least${r});
% else:
    const float total = total${r} * ${scalar(shrink, "float")};
    for (int k = 0; k < ${length}; ++k) {
${steps_of(f"terms[src{r}[k * {src.pitches[1]}] - most{r} + 255]")}
        dst${r}[k * ${dst.pitches[1]}] = steps;
    }
% endif
% endfor
}
