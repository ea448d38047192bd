<%doc>
shared/strassen: rows times a constant matrix with seven products of blocks for eight (Strassen's algorithm
in Winograd's form).

                     | b: 2 x 2 blocks of k / 2 terms x nv * vw columns
    -----------------+-------------------------------------------------
    a: 2 x 2 blocks  | sums: 2 x 2 blocks of mr rows x nv vectors
    of mr rows x k/2 |

A work-item takes `panels` times 2 * mr rows and `per` pairs of blocks of columns. It writes the seven sums of each
panel's blocks of a to local memory once; then each product of a sum with one of b, made ahead, stays in registers.
Rows are divided by a power of two, so that the largest element of each is about 1, and columns of b were, so that no
row or column takes digits from its neighbours, and those of zeros give zeros. A row that holds a NaN or an infinity is summed plainly.

Tensors  a: rows that count through loops; terms side by side
         b: [pairs of blocks][7][k / 2][nv * vw], as `pack` of clnn/ops/shared/strassen.py adds them
         factors: [columns], by which b's columns were divided; padded to whole pairs of blocks, as bias is
         bias: [columns]
         dst, extras: rows that count through loops; dst's columns side by side, extras' at any pitch
Index    rows behind the last of a panel read the last one again and are not stored
Launch   global (groups of rows, groups of columns)
Params   name, wg
         m, n, k      extents
         rows         extents and pitches of the loops over rows, in the order a, dst, extras
         extras       node input -> (number, pitch of its columns), of operands of the post-ops
         scales       node input -> factor of such an operand
         has_bias     it is added before the post-ops
         post_ops     what is applied to the sums
         prefetch     whether products ask for the places of results
         ahead        rows of b's sums that products ask for ahead; 0: none
         loop_epilogue  whether the post-ops stand once, in a loop over the vectors of a row
         gap          floats between lines of sums, so that those of a block do not meet in a cache's ways
Tunables mr      {4..30}         rows of a block
         nv      {1,2,3}         vectors of columns of a block
         vw      {4,8,16}        lanes of a vector
         va      {4,8,16}        terms that are added at once; divides k / 2
         panels  {1,2,4}         of rows that meet the same products of b one after the other
         per     {1..}           pairs of blocks of columns of a work-item
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="pf" file="/_common/prefetch.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="tl" file="/_common/tile.cl.mako"/>
<%!
PRODUCTS = 7
LINE = 16  # floats of a cache line
%>\
<%
    half, width, lines = k // 2, nv * vw, panels * 2 * mr
    pitch, block_of_b, block_of_c = half + gap, half * width, mr * nv
    pairs = -(-n // (2 * width))
    tail = n % vw
    V, A, I = vec_type("float", vw), vec_type("float", va), vec_type("uint", va)
    names = ["a", "dst"] + [f"extra{place}" for place, _ in extras.values()]
    # What a result's place is asked for ahead of: itself, and operands that differ from column to column.
    asked = ["dst"] + [f"extra{place}" for place, column in extras.values() if column == 1]
    share = -(-2 * mr // PRODUCTS)  # rows of a panel for whose results each product asks
    assert k % (2 * va) == 0, (k, va)
%>
<%def name="finish(there)">\
<%
    def operand(which):
        place, pitch = extras[which]
        where = f"at_extra{place}[line]" + (f" + column * {pitch}" if pitch else "")
        text = capture(tl.load_lanes, vw, f"extra{place}", where, pitch, there).strip()
        return f"({scalar(scales[which])} * {text})" if which in scales else text
%>\
                    ${st.apply(post_ops, "value", "float", vw, operand)}
                    ${tl.store_lanes(vw, "value", "dst", "at_dst[line] + column", 1, 0, there)}\
</%def>
<%def name="plain(side, v)">\
<%
    first, second, third, fifth = (load("float", vw, "w", str(place * block_of_b)) for place in (0, 1, 2, 4))
    def either(left, right):
        return f"{side} ? {right} : {left}" if isinstance(side, str) else right if side else left
%>\
                    if (scale == INFINITY) {
                        __global const float *w = b + pair * ${PRODUCTS * block_of_b} + ${f"{v} * {vw}" if isinstance(v, str) else v * vw};
                        value = (V)(0.0f);
                        for (int i = 0; i < ${half}; ++i, w += ${width}) {
                            const V upper = ${either(first, f"{first} + {fifth}")}, lower = ${either(second, third)};
                            value = fma((V)(a[at_a[line] + i]), upper, value);
                            value = fma((V)(a[at_a[line] + ${half} + i]), lower, value);
                        }
                    }
</%def>
<%def name="result(side, v)">\
                    const int column = pair * ${2 * width} + ${f"k_ * {vw}" if isinstance(v, str) else side * width + v * vw};
% if n % (2 * width):
                    if (column >= ${n}) continue;
% endif
                    V value = sums[((p * ${PRODUCTS} + r / ${mr} * 2 + ${side}) * ${mr} + r % ${mr}) * ${nv} + ${v}];
${plain(side, v)}\
                    value *= ${load("float", vw, "factors", "column")};
                    if (scale < INFINITY) value *= scale;
% if has_bias:
                    value += ${load("float", vw, "bias", "column")};
% endif
% if tail:
                    if (column + ${vw} > ${n}) {
${finish(tail)}
                        continue;
                    }
% endif
${finish(vw)}
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const float *a_base, const int a_offset, __global const float *b, __global const float *factors,
% if has_bias:
    __global const float *bias,
% endif
% for place, _ in extras.values():
    __global const float *extra${place}_base, const int extra${place}_offset,
% endfor
    __global float *dst_base, const int dst_offset)
{
    typedef ${V} V;
    typedef ${A} A;
    __local float spread[${panels * PRODUCTS * mr * pitch}];
    __local V sums[${panels * PRODUCTS * block_of_c}];
    const int first = get_global_id(0) * ${lines}, from = get_global_id(1) * ${per};
    if (first >= ${m} || from >= ${pairs}) return;
    __global const float *a = a_base + a_offset;
    __global float *dst = dst_base + dst_offset;
% for place, _ in extras.values():
    __global const float *extra${place} = extra${place}_base + extra${place}_offset;
% endfor
    int ${", ".join(f"at_{one}[{lines}]" for one in names)};
    float size[${lines}];
    for (int r = 0; r < ${lines}; ++r) {
        ${lp.offsets(f"min(first + r, {m - 1})", rows.extents, rows.pitches, [f"here_{one}" for one in names])}
        ${I} top = (${I})(0);
        for (int i = 0; i < ${k}; i += ${va})
            top = max(top, as_${I}(${load("float", va, "a", "here_a + i")}) & 0x7fffffffu);
        uint largest = top.s0;
        for (int i = 1; i < ${va}; ++i) largest = max(largest, ((const uint *)&top)[i]);
% for one in names:
        at_${one}[r] = here_${one};
% endfor
        size[r] = !largest ? 0.0f : largest < 0x7f800000u ? as_float(clamp(largest >> 23, 1u, 253u) << 23) : INFINITY;
    }
    for (int p = 0; p < ${panels}; ++p) {
        for (int r = 0; r < ${mr}; ++r) {
            const float size0 = size[p * ${2 * mr} + r], size1 = size[p * ${2 * mr} + ${mr} + r];
            const uint keep0 = size0 < INFINITY ? 0xffffffffu : 0u, keep1 = size1 < INFINITY ? 0xffffffffu : 0u;
            const float scale0 = as_float(0x7f000000u - as_uint(size0)), scale1 = as_float(0x7f000000u - as_uint(size1));
            __global const float *upper = a + at_a[p * ${2 * mr} + r], *lower = a + at_a[p * ${2 * mr} + ${mr} + r];
            __local float *to = spread + (p * ${PRODUCTS * mr} + r) * ${pitch};
            for (int i = 0; i < ${half}; i += ${va}) {
% for row, pointer in enumerate(("upper", "lower")):
%  for column in range(2):
                const A a${row}${column} = as_${A}(as_${I}(${load("float", va, pointer, f"i + {column * half}")} * scale${row}) & keep${row});
%  endfor
% endfor
                const A s = a10 + a11, t = s - a00;
% for place, value in enumerate(("a00", "a01", "a01 - t", "a11", "s", "t", "a00 - a10")):
                ${store(va, value, "to", f"i + {place * mr * pitch}", "float", "__local")}
% endfor
            }
        }
    }
    for (int pair = from; pair < ${f"min(from + {per}, {pairs})" if pairs % per else f"from + {per}"}; ++pair) {
        for (int s = 0; s < ${PRODUCTS}; ++s) {
            for (int p = 0; p < ${panels}; ++p) {
                __global const float *w = b + (pair * ${PRODUCTS} + s) * ${block_of_b};
                __local const float *x = spread + (p * ${PRODUCTS} + s) * ${mr * pitch};
                __local V *to = sums + (p * ${PRODUCTS} + s) * ${block_of_c};
% if prefetch:
                for (int r = s * ${share}; r < min(s * ${share} + ${share}, ${2 * mr}); ++r) {
%  for one in asked:
%   for line in range(0, 2 * width, LINE):
                    ${pf.fetch_to_write(f"{one} + at_{one}[p * {2 * mr} + r] + pair * {2 * width} + {line}") if one == "dst" else pf.fetch_far(f"{one} + at_{one}[p * {2 * mr} + r] + pair * {2 * width} + {line}")}
%   endfor
%  endfor
                }
% endif
% for r in range(mr):
                V ${", ".join(f"c{r}_{v} = (V)(0.0f)" for v in range(nv))};
% endfor
                for (int i = 0; i < ${half}; ++i) {
% for v in range(nv):
                    const V b${v} = ${load("float", vw, "w", str(v * vw))};
% endfor
% for r in range(mr):
                    {
                        const V one = (V)(x[${r * pitch}]);
%  for v in range(nv):
                        c${r}_${v} = fma(one, b${v}, c${r}_${v});
%  endfor
                    }
% endfor
% for lane in range(0, width, LINE) if ahead else ():
                    ${pf.fetch(f"w + {ahead * width + lane}")}
% endfor
                    ++x;
                    w += ${width};
                }
% for r in range(mr):
%  for v in range(nv):
                to[${r * nv + v}] = c${r}_${v};
%  endfor
% endfor
            }
        }
        for (int p = 0; p < ${panels}; ++p) {
            for (int i = 0; i < ${block_of_c}; ++i) {
                __local V *of = sums + p * ${PRODUCTS * block_of_c} + i;
                const V top = of[0], left = of[${4 * block_of_c}], u = top + of[${5 * block_of_c}], v = u + of[${6 * block_of_c}];
                of[0] = top + of[${block_of_c}];
                of[${block_of_c}] = u + left + of[${2 * block_of_c}];
                of[${2 * block_of_c}] = v - of[${3 * block_of_c}];
                of[${3 * block_of_c}] = v + left;
            }
            for (int r = 0; r < ${2 * mr}; ++r) {
                const int line = p * ${2 * mr} + r;
                if (first + line >= ${m}) break;
                const float scale = size[line];
% if loop_epilogue:
                for (int k_ = 0; k_ < ${2 * nv}; ++k_) {
                    const int side = k_ / ${nv}, v = k_ % ${nv};
${result("side", "v")}\
                }
% else:
%  for k_ in range(2 * nv):
                {
${result(k_ // nv, k_ % nv)}\
                }
%  endfor
% endif
            }
        }
    }
}
