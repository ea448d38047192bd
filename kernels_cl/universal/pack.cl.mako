<%doc>
universal/pack: a computed matrix as the weights of universal/conv.

    dst[block][k][j] = src[k][block * wide + j], zeros behind the last column

Tensors  src: pitches of rows (k) and columns (j), of groups and of the matrices of a batch
         dst: dense, [matrix][group][block][k][nv * vw]
Launch   global (blocks, groups, matrices of a batch)
Params   name     kernel name
         wg       local size
Tunables vw, nv   elements of a vector, and vectors of a block
</%doc>
<%
    V, wide = vec_type("float", vw), nv * vw
%>
${group_size(wg)}
__kernel void ${name}(
    __global const float *src_base, const int src_offset,
    __global float *dst_base, const int dst_offset,
    const int terms, const int columns, const int sk, const int sj, const int sg, const int s2,
    const int blocks, const int groups)
{
    const int block = get_global_id(0), group = get_global_id(1), matrix = get_global_id(2);
    const int lanes = min(${wide}, columns - block * ${wide});
    __global const float *s = src_base + src_offset + block * ${wide} * sj + group * sg + matrix * s2;
    __global float *d = dst_base + dst_offset + ((long)(matrix * groups + group) * blocks + block) * terms * ${wide};
    if (sj == 1 && lanes == ${wide}) {
        for (int k = 0; k < terms; ++k, d += ${wide}, s += sk) {
% for v in range(nv):
            vstore${vw}(vload${vw}(${v}, s), ${v}, d);
% endfor
        }
        return;
    }
    for (int from = 0; from < terms; from += ${vw}, d += ${vw * wide}, s += ${vw} * sk) {
        const int rows = min(${vw}, terms - from);
        for (int j = 0; j < lanes; ++j)
            for (int k = 0; k < rows; ++k) d[k * ${wide} + j] = s[k * sk + j * sj];
        for (int k = 0; k < rows; ++k)
            for (int j = lanes; j < ${wide}; ++j) d[k * ${wide} + j] = 0.0f;
    }
}
