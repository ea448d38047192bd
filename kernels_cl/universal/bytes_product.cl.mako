<%doc>
universal/bytes_product: products of matrices of int32, modulo 2^32; all else is arguments.

    dst[i][j] = sum over k of a[i][k] * b[k][j]

Tensors  a, b, dst: pitches of rows and columns, of groups and of the matrices of a batch
Launch   global (tiles of `mr` rows, tiles of `vw` columns, groups * matrices of a batch)
Params   name     kernel name
         wg       local size
Tunables vw       columns of a tile
         mr       rows of a tile
</%doc>
<%
    I = vec_type("int", vw)
%>
${group_size(wg)}
__kernel void ${name}(
    __global const int *a_base, const int a_offset,
    __global const int *b_base, const int b_offset,
    __global int *dst_base, const int dst_offset,
    const int rows, const int columns, const int terms, const int groups,
    ${", ".join(f"const int {t}r, const int {t}c, const int {t}g, const int {t}2" for t in "abd")})
{
    const int group = get_global_id(2) % groups, matrix = get_global_id(2) / groups;
    const int i0 = get_global_id(0) * ${mr}, j0 = get_global_id(1) * ${vw};
    const int high = min(${mr}, rows - i0), lanes = min(${vw}, columns - j0);
    __global const int *a = a_base + a_offset + group * ag + matrix * a2 + i0 * ar;
    __global const int *b = b_base + b_offset + group * bg + matrix * b2 + j0 * bc;
    __global int *d = dst_base + dst_offset + group * dg + matrix * d2 + i0 * dr + j0 * dc;
    int tile[${mr * vw}], row[${vw}];
    ${I} ${", ".join(f"s{m} = ({I})(0)" for m in range(mr))};
    for (int j = 0; j < ${vw}; ++j) row[j] = 0;
    for (int k = 0; k < terms; ++k) {
        ${I} x;
        if (bc == 1 && lanes == ${vw}) x = vload${vw}(0, b + k * br);
        else {
            for (int j = 0; j < lanes; ++j) row[j] = b[k * br + j * bc];
            x = vload${vw}(0, row);
        }
% for m in range(mr):
        s${m} += (${I})(a[min(${m}, high - 1) * ar + k * ac]) * x;
% endfor
    }
% for m in range(mr):
    vstore${vw}(s${m}, ${m}, tile);
% endfor
    for (int m = 0; m < high; ++m)
        for (int j = 0; j < lanes; ++j) d[m * dr + j * dc] = tile[m * ${vw} + j];
}
