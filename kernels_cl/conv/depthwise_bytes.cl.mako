<%doc>
conv/depthwise_bytes: convolution of one filter per channel, of bytes, four rows of a window at a time.

Of a column, the bytes of up to four rows are brought together channel by channel, once for all windows that
meet the column; an instruction then adds four products of each channel:

    row 0   a0 a1 a2 ..         a0 b0 c0 d0 | a1 b1 c1 d1 | ..     x  w0 w1 w2 w3 of each channel
    row 1   b0 b1 b2 ..   ->
    row 2   c0 c1 c2 ..         x86's unpacks work within 128 bits, so that vector v of a block holds the channels
    row 3   d0 d1 d2 ..         16 l + 4 v + 0..3 of each part l, an order that packs of the results undo

Tensors  src: image of bytes with channels innermost, seen as (n, c, h, w), with the border that the taps reach
         dst: image of bytes, channels innermost
         weights: [blocks][kw][ceil(kh / 4)][4][vw][4 rows], in that order of channels, 0 beyond the window
         table: [rows][blocks][4][vw], constants of the arithmetic, likewise
         extra0: 256 bytes that results are looked up in, where post_ops is such a step
Index    where 4 vw does not divide c, the last block begins earlier and stores what others do not
Launch   global (blocks of channels, row bands, batch): a work-item walks all columns of a band
Params   name, arith, types, rows, src, dst, kernel, strides, dilations, pads, wg: as of conv/direct
Tunables vw {8,16}  channels of a vector; 4 vw are at most c
         tx         output columns at a time
         band       output rows of a work-item
</%doc>
<%namespace name="ar" file="/${context['arith'].library}"/>
<%namespace name="na" file="/_common/narrow.cl.mako"/>
<%namespace name="sc" file="/_common/scales.cl.mako"/>
<%!
GROUP = 4  # rows of a window
REGISTER = {16: "v", 8: "x"}
%>
<%
    (kh, kw), (sy, sx), (dy, dx) = kernel, strides, dilations
    channels, (oh, ow) = dst.shape[1], dst.shape[2:]
    xt, yt = types[0], types[3]
    I, r, block = vec_type("int", vw), REGISTER[vw], 4 * vw
    blocks, groups, over = -(-channels // block), -(-kh // GROUP), -channels % block
    assert channels >= block and over % 4 == 0 and src.pitches[1] == dst.pitches[1] == 1, (channels, block)
    whole = ow - ow % tx
    def runs(first):
        """Words from `first` to the end of a vector, as (first, count) of powers of two."""
        found = []
        while first < vw:
            count = next(n for n in (16, 8, 4, 2, 1) if n <= vw - first)
            found.append((first, count))
            first += count
        return found
%>
<%def name="unpack(how, result, a, b)">\
                ${I} ${result};
                __asm__("vpunpck${how} %2, %1, %0" : "=${r}"(${result}) : "${r}"(${a}), "${r}"(${b}));
</%def>
<%def name="column(j, g, taps)">\
<% there = min(GROUP, kh - g * GROUP) %>\
            {
% for k in range(there):
                const ${I} c${k} = ${small_vector(I, "p", str((g * GROUP + k) * dy * src.pitches[2] + j * src.pitches[3]))}${f" ^ ({I})(0x80808080)" if xt == "char" else ""};
% endfor
<% c = [f"c{min(k, there - 1)}" for k in range(GROUP)] %>\
${unpack("lbw", "low01", c[0], c[1])}\
${unpack("hbw", "high01", c[0], c[1])}\
${unpack("lbw", "low23", c[2], c[3])}\
${unpack("hbw", "high23", c[2], c[3])}\
${unpack("lwd", "q0", "low01", "low23")}\
${unpack("hwd", "q1", "low01", "low23")}\
${unpack("lwd", "q2", "high01", "high23")}\
${unpack("hwd", "q3", "high01", "high23")}\
% for t, kx in taps:
%  for v in range(4):
                __asm__("vpdpbusd %2, %1, %0" : "+${r}"(a${t}_${v}) : "${r}"(q${v}), "${r}"(w${kx}_${g}_${v}));
%  endfor
% endfor
            }
</%def>
<%def name="finished(t)">\
        {
% for v in range(4):
            ${I} i${v};
            {
            ${ar.scaled(arith, vw, f"a{t}_{v}", lambda k: f"r{k}_{v}")}
            ${na.rounded("x86", vw, "steps_", "whole_")}\
            i${v} = whole_;
            }
            ${na.limited(vw, f"i{v}", arith.low, arith.high, arith.zero_out, yt)}
% endfor
            ${na.quarters("x86", vw, ["i0", "i1", "i2", "i3"], arith.zero_out, yt, "q", False, "entries" * len(post_ops))}
            __global ${yt} *to = dst + ${index(dst, "n", "c", "y", f"(x + {t})")};
% if over:
            if (c != lane) {
%  for first, count in runs(over // 4):
                ${small_vector(vec_type("int", count), "to", str(4 * first), "")} = q.s${"0123456789abcdef"[first:first + count]};
%  endfor
            } else
% endif
            ${small_vector(I, "to", "0", "")} = q;
        }
</%def>
<%def name="columns(count)">\
<%
    meets = {}
    for t in range(count):
        for kx in range(kw):
            meets.setdefault(t * sx + kx * dx, []).append((t, kx))
%>\
% for t in range(count):
        ${I} ${", ".join(f"a{t}_{v} = r0_{v}" for v in range(4))};
% endfor
% for j in sorted(meets):
%  for g in range(groups):
${column(j, g, meets[j])}\
%  endfor
% endfor
% for t in range(count):
${finished(t)}\
% endfor
</%def>
${ar.functions(arith, vw)}
${group_size(wg)}
__kernel void ${name}(
    __global const ${xt} *src_base, const int src_offset, __global const char *weights, __global const int *table,
${sc.parameters(0, extra_types)}\
    __global ${yt} *dst_base, const int dst_offset)
{
    #pragma OPENCL FP_CONTRACT OFF
    const int number = get_global_id(0), lane = number * ${block}, n = get_global_id(2);
    const int c = ${f"min(lane, {channels - block})" if over else "lane"};
    const int from = get_global_id(1) * ${band}, to_row = min(from + ${band}, ${oh});
    if (number >= ${blocks}) return;
    __global const char *w = weights + number * ${kw * groups * 4 * block};
    __global ${yt} *dst = dst_base + dst_offset;
% for kx in range(kw):
%  for g in range(groups):
%   for v in range(4):
    const ${I} w${kx}_${g}_${v} = vload${vw}(0, (__global const int *)(w + ${((kx * groups + g) * 4 + v) * 4 * vw}));
%   endfor
%  endfor
% endfor
% for k in range(rows):
%  for v in range(4):
    const ${I} r${k}_${v} = vload${vw}(0, table + ${k * blocks * block} + number * ${block} + ${v * vw});
%  endfor
% endfor
% if post_ops:
${na.entries("entries", "(extra0_base + extra0_offset)")}\
% endif
    __global const ${xt} *image = src_base + src_offset + ${index(src, "n", "c", 0, 0)} - ${pads[0] * src.pitches[2] + pads[1] * src.pitches[3]};
    for (int y = from; y < to_row; ++y) {
    __global const ${xt} *row = image + y * ${sy * src.pitches[2]};
% if is_traced(ow):
    if (${ow} >= ${tx}) {
        for (int start_x = 0; start_x < ${ow}; start_x += ${tx}) {
            const int x = min(start_x, ${ow - tx});
            __global const ${xt} *p = row + x * ${sx * src.pitches[3]};
            ${columns(tx)}
        }
    } else {
        for (int x = 0; x < ${ow}; ++x) {
            __global const ${xt} *p = row + x * ${sx * src.pitches[3]};
            ${columns(1)}
        }
    }
% else:
%  if whole:
    for (int x = 0; x < ${whole}; x += ${tx}) {
        __global const ${xt} *p = row + x * ${sx * src.pitches[3]};
        ${columns(tx)}
    }
%  endif
%  if ow % tx:
    {
        const int x = ${whole};
        __global const ${xt} *p = row + x * ${sx * src.pitches[3]};
        ${columns(ow % tx)}
    }
%  endif
% endif
    }
}
