<%doc>
rows/mli_argmax: indices of the largest elements of each row, as a binary heap orders them.

The heap of indices lies in dst, its least element in front. An element that is not less than that
one takes its place. At the end the least elements move to the back one after the other.

Tensors  src: (rows, length) | dst: (rows, count), int
Launch   global (rows)
Params   name | ctype | src, dst: TensorLayout | wg
</%doc>
<%
    rows, length = src.shape
    count = dst.shape[1]
    assert 1 <= count <= length, (count, length)
    at = lambda k: f"heap[({k}) * {dst.pitches[1]}]"
    value = lambda k: f"src[({at(k)}) * {src.pitches[1]}]"
%>
void sift(__global const ${ctype} *src, __global int *heap, const int size, int node)
{
    for (int least = node;; node = least) {
        const int left = 2 * node + 1, right = left + 1;
        if (left < size && ${value("left")} < ${value("least")}) least = left;
        if (right < size && ${value("right")} < ${value("least")}) least = right;
        if (least == node) return;
        const int moved = ${at("node")};
        ${at("node")} = ${at("least")};
        ${at("least")} = moved;
    }
}
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global int *dst_base, const int dst_offset)
{
    const int row = get_global_id(0);
    if (row >= ${rows}) return;
    __global const ${ctype} *src = src_base + src_offset + ${index(src, "row", 0)};
    __global int *heap = dst_base + dst_offset + ${index(dst, "row", 0)};
    for (int k = 0; k < ${count}; ++k) ${at("k")} = k;
    for (int node = ${count // 2 - 1}; node >= 0; --node) sift(src, heap, ${count}, node);
    for (int k = ${count}; k < ${length}; ++k) {
        if (src[k * ${src.pitches[1]}] >= ${value(0)}) {
            ${at(0)} = k;
            sift(src, heap, ${count}, 0);
        }
    }
    for (int last = ${count - 1}; last > 0; --last) {
        const int moved = ${at(0)};
        ${at(0)} = ${at("last")};
        ${at("last")} = moved;
        sift(src, heap, last, 0);
    }
}
