<%doc>
rows/suppress: of candidates sorted by score, those that overlap no better one of their class.

    candidate  0    1    2    3        2 overlaps 0, which stays; 3 is below the lowest score
    score     .9   .8   .7   .1
    result    .9   .8   -1   -1

Tensors  boxes (n, boxes, 4): two opposite corners x0, y0, x1, y1; scores, places, dst (n, classes, k)
Index    candidate (n, c, k) has the box boxes[n, places[n, c, k]]
Launch   global (classes of all images): each walks its candidates in turn, and reads from dst which stay
Params   name | boxes, scores, places, dst: TensorLayout | count: candidates of a class |
         classes: of an image | lines: of all images | overlap, lowest: limits | wg
NaN      a score that is NaN does not stay; coordinates that are NaN overlap nothing
</%doc>
<%
    assert scores.shape == places.shape == dst.shape, "each candidate has a score and a place"
    assert boxes.shape[2] == 4, boxes.shape
    limit, least = scalar(overlap, "float"), scalar(lowest, "float")
    pitch = boxes.pitches[2]
%>
float4 ${name}_corners(__global const float *boxes, const int at)
{
    const float ax = boxes[at], ay = boxes[at + ${pitch}];
    const float bx = boxes[at + ${2 * pitch}], by = boxes[at + ${3 * pitch}];
    return (float4)(fmin(ax, bx), fmin(ay, by), fmax(ax, bx), fmax(ay, by));
}

${group_size(wg)}
__kernel void ${name}(
    __global const float *boxes_base, const int boxes_offset,
    __global const float *scores_base, const int scores_offset,
    __global const long *places_base, const int places_offset,
    __global float *dst_base, const int dst_offset)
{
    const int line = get_global_id(0);
    if (line >= ${lines}) return;
    const int n = line / ${classes}, c = line % ${classes};
    __global const float *boxes = boxes_base + boxes_offset;
    __global const float *scores = scores_base + scores_offset;
    __global const long *places = places_base + places_offset;
    __global float *dst = dst_base + dst_offset;
    for (int k = 0; k < ${count}; ++k) {
        const float score = scores[${index(scores, "n", "c", "k")}];
        bool stays = score > ${least};
        if (stays) {
            const int mine = (int)places[${index(places, "n", "c", "k")}];
            const float4 a = ${name}_corners(boxes, ${index(boxes, "n", "mine", "0")});
            const float area = (a.z - a.x) * (a.w - a.y);
            for (int j = 0; stays && j < k; ++j) {
                if (dst[${index(dst, "n", "c", "j")}] == -1.0f) continue;
                const int other = (int)places[${index(places, "n", "c", "j")}];
                const float4 b = ${name}_corners(boxes, ${index(boxes, "n", "other", "0")});
                const float w = fmax(fmin(a.z, b.z) - fmax(a.x, b.x), 0.0f);
                const float h = fmax(fmin(a.w, b.w) - fmax(a.y, b.y), 0.0f);
                const float both = w * h, all = area + (b.z - b.x) * (b.w - b.y) - both;
                stays = !(both > ${limit} * all);
            }
        }
        dst[${index(dst, "n", "c", "k")}] = stays ? score : -1.0f;
    }
}
