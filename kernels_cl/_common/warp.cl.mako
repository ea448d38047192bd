<%doc>
A warp in plain OpenCL C 1.2: 32 consecutive work-items that exchange words through local memory.

Each function is what one PTX instruction does, with the registers of a lane in private arrays and
the layouts of fragments that the PTX ISA documents. All work-items of the group must call the
functions with `words`, which hold barriers. `words`: the warp's own part of the exchange area.

functions(kinds)
    Text of everything below, for which COPIES and the functions of _common/bits.cl.mako must be
    defined. kinds: of KINDS, which matrix products are wanted. COPIES: how many may be under way.
warp_shuffle(words, value, mode, by)
    shfl.sync.b32 of 32 lanes; mode 0 idx, 1 up, 2 down, 3 bfly.
warp_ldmatrix(words, q, count, trans, at, d)
    `count` times ldmatrix.x4.b16: at[i] is the byte in memory of the row that this lane names,
    d[4 i ..] are its four registers.
warp_mma_KIND(words, mi, ni, a, b, c)
    mi x ni times mma.sync: a[4 i ..], b[2 j ..], and c[(i * ni + j) * 4 ..], which is added to.
struct copies, copy_start, copy_commit, copy_wait, copied
    cp.async.cg of 16 bytes. Bytes arrive when they are waited for, as late as they may, and where
    they will be lies POISON from the start, as early as it may: a wait too few, or a copy over what
    is still read, makes wrong results. `epoch` counts the barriers of the group that the kernel
    itself asks for; those of this file order more than a warp does. copied(q, at) is the word at a
    byte: POISON where no such barrier came between its arrival and this read; and a copy that starts
    without one after a read of the same piece brings POISON. So a missing barrier makes wrong
    results too.
</%doc>
<%!
# Instruction -> type of its sums, and of a product of two words of operands.
KINDS = {"f16": "float", "bf16": "float", "tf32": "float", "s8": "int", "u8": "int"}
%>
<%def name="functions(kinds)">\
<% assert set(kinds) <= set(KINDS), kinds %>\
#define POISON 0xffffffffu
uint warp_shuffle(__local uint *words, const uint value, const int mode, const int distance)
{
    const int lane = get_local_id(0) & 31, by = distance & 31;
    words[lane] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    int from = mode == 0 ? by : mode == 1 ? lane - by : mode == 2 ? lane + by : lane ^ by;
    from = from < 0 || from > 31 ? lane : from;
    const uint found = words[from];
    barrier(CLK_LOCAL_MEM_FENCE);
    return found;
}
typedef struct {
    __global const uchar *src[COPIES];
    uint at[COPIES];
    uint bytes[COPIES];
    uint group[COPIES];
    uint first, end, committed, epoch;
    __local uint *memory, *arrived, *read;
} copies;
uint copied(const copies *q, const uint at)
{
    atomic_xchg(&q->read[at / 16], q->epoch);
    return atomic_or(&q->arrived[at / 16], 0u) >= q->epoch ? POISON : q->memory[at / 4];
}
void warp_ldmatrix(__local uint *words, const copies *q, const int count, const int trans, const uint *at, uint *d)
{
    const int lane = get_local_id(0) & 31;
    for (int i = 0; i < count; ++i) words[i * 32 + lane] = at[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < count; ++i) {
        for (int m = 0; m < 4; ++m) {
            __local const uint *rows = words + i * 32 + m * 8;
            if (trans) {
                // Elements (row 2t, column g) and (row 2t + 1, column g).
                const int g = lane >> 2, t = lane & 3, up = (g & 1) * 16;
                const uint low = copied(q, rows[2 * t] + g / 2 * 4) >> up & 0xffff;
                d[4 * i + m] = low | (copied(q, rows[2 * t + 1] + g / 2 * 4) >> up) << 16;
            } else {
                d[4 * i + m] = copied(q, rows[lane >> 2] + (lane & 3) * 4);
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
void copy_start(copies *q, const uint at, __global const void *src, const uint bytes)
{
    const int spoilt = atomic_or(&q->read[at / 16], 0u) == q->epoch;
    for (int i = 0; i < 4; ++i) q->memory[at / 4 + i] = POISON;
    const uint slot = q->end++ % COPIES;
    q->src[slot] = (__global const uchar *)src;
    q->at[slot] = at;
    q->bytes[slot] = spoilt ? POISON : bytes;
    q->group[slot] = q->committed;
}
void copy_commit(copies *q) { ++q->committed; }
void copy_wait(copies *q, const uint open)
{
    for (; q->first != q->end && q->group[q->first % COPIES] + open < q->committed; ++q->first) {
        const uint slot = q->first % COPIES, bytes = q->bytes[slot];
        for (uint i = 0; i < 4; ++i) {
            uint word = 0;
            for (uint b = 4 * i; b < 4 * i + 4 && b < bytes && bytes <= 16; ++b)
                word |= (uint)q->src[slot][b] << 8 * (b & 3);
            q->memory[q->at[slot] / 4 + i] = bytes <= 16 ? word : POISON;
        }
        atomic_xchg(&q->arrived[q->at[slot] / 16], q->epoch);
    }
}
% for kind in kinds:
${products(kind)}
${mma(kind)}
% endfor
</%def>
<%def name="products(kind)">\
% if kind == "f16":
float products_f16(const uint x, const uint y)
{
    return half_value(x & 0xffff) * half_value(y & 0xffff) + half_value(x >> 16) * half_value(y >> 16);
}
% elif kind == "bf16":
float products_bf16(const uint x, const uint y)
{
    return as_float(x << 16) * as_float(y << 16) + as_float(x & 0xffff0000) * as_float(y & 0xffff0000);
}
% elif kind == "tf32":
float products_tf32(const uint x, const uint y)
{
    // What mma does with more than 10 bits of fraction is not defined.
    return (x | y) & 0x1fff ? NAN : as_float(x) * as_float(y);
}
% else:
int products_${kind}(const uint x, const uint y)
{
    const int4 left = convert_int4(as_${"uchar4" if kind == "u8" else "char4"}(x)), right = convert_int4(as_char4(y));
    return left.x * right.x + left.y * right.y + left.z * right.z + left.w * right.w;
}
% endif
</%def>
<%def name="mma(kind)">\
<% T = KINDS[kind] %>\
void warp_mma_${kind}(__local uint *words, const int mi, const int ni, const uint *a, const uint *b, ${T} *c)
{
    const int lane = get_local_id(0) & 31;
    __local uint *right = words + mi * 128;
    for (int i = 0; i < mi * 4; ++i) words[i * 32 + lane] = a[i];
    for (int i = 0; i < ni * 2; ++i) right[i * 32 + lane] = b[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < mi; ++i) {
        for (int j = 0; j < ni; ++j) {
            for (int e = 0; e < 4; ++e) {
                const int row = (lane >> 2) + 8 * (e >> 1), column = 2 * (lane & 3) + (e & 1);
                ${T} sum = c[(i * ni + j) * 4 + e];
                for (int k = 0; k < 8; ++k) {
                    // Word k of a row of a, and of a column of b.
                    const int from = 4 * i + (row >> 3) + 2 * (k >> 2), also = 2 * j + (k >> 2);
                    const uint x = words[from * 32 + (row & 7) * 4 + (k & 3)];
                    sum += products_${kind}(x, right[also * 32 + column * 4 + (k & 3)]);
                }
                c[(i * ni + j) * 4 + e] = sum;
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
</%def>
