<%doc>
pool/pool_rows: pooling of images with channels innermost, a vector of channels along output rows.

    columns of src    |.  a  b  c  d  e  .|    each column is pooled over the window's rows once,
    outputs           |   A     B     .   |    then the columns of a window are joined

Tensors  src, dst: images seen as (n, c, h, w), src with channel pitch 1; no border is read
Edges    rows outside of src are left out by the bounds of the loop over a window's rows; output
         columns whose windows leave src are written out one by one, with their inner taps only
Launch   global (channel vectors, bands of output rows, batch)
Params   name, ctype, src, dst, mode, power, count_pad, rule, post_ops, operands, wg   as in pool/pool
         kernel, strides, dilations, pads   (y, x)
         after           padding behind, of a count
         first, stop     output columns whose windows lie inside src
Tunables vw              1, 2, 4, 8 or 16 channels
         tx              output columns at a time
         band            output rows that one work-item takes
</%doc>
<%namespace name="rw" file="/_common/rows.cl.mako"/>
<%namespace name="pl" file="/_common/pooling.cl.mako"/>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%namespace name="ar" file="/${context['rule'].library if context['rule'] else '_arith/float.cl.mako'}"/>
<%
    m, p = rw.module, pl.module
    kh, kw = kernel
    sy, sx = strides
    dy, dx = dilations
    py, px = pads
    channels = dst.shape[1]
    ih, iw = src.shape[2:]
    oh, ow = dst.shape[2:]
    vectors = -(-channels // vw)
    spill = vectors * vw - channels
    acc = "int" if rule else ctype
    V = vec_type(acc, vw)
    assert mode in ("max", "average", "lp"), mode
    assert src.pitches[1] == 1 or channels == 1, "channels of src must be innermost"
    assert vw <= channels, (vw, channels)
    clipped, always = True, False  # as windows may be that reach over some image's rows
    if not is_traced(oh) and not is_traced(ih):
        taps = [[k for k in range(kh) if 0 <= y * sy - py + k * dy < ih] for y in range(oh)]
        clipped, always = any(len(t) < kh for t in taps), all(taps)
    elif dy == 1:  # a window without gaps that begins before the image's end has a row of it
        always = bool(py < kh) and bool((oh - 1) * sy - py < ih)
    whole = stop - first - (stop - first) % tx

    v_ = "result" if rule else "v"

    def column(pointer, at):
        text = load(ctype, vw, pointer, at)
        return f"convert_{V}({text})" if rule else text

    def operand(which):
        k, layout = operands[which]
        pitch = layout.pitches[1] if layout.shape[1] != 1 else 0
        return m.load_lanes(ctype, vw, f"extra{k}", index(layout, "n", "c", "y", "xo"), pitch)

    def columns_of(t, left):
        """Column offsets of output t's window; left: where the tile's first window begins, if known."""
        offsets = [t * sx + k * dx for k in range(kw)]
        return [o for o in offsets if left is None or 0 <= left + o < iw]

    def counted(t, left):
        """Columns that an average of output t divides by."""
        if not count_pad or left is None:
            return len(columns_of(t, left))
        return sum(left + t * sx + k * dx < iw + after[1] for k in range(kw))

    def quotient(v, wide):
        if clipped:
            return f"{v} /= ({ctype})(rows * {wide});"
        taps = kh * wide
        if taps and taps & (taps - 1) == 0:
            return f"{v} *= {scalar(1 / taps, ctype)};"
        return f"{v} /= {scalar(taps, ctype)};"
%>
<%def name="tile(count, left)">\
<% columns = sorted({o for t in range(count) for o in columns_of(t, left)}) %>\
% for o in columns:
        ${V} col${o} = ${p.element(mode, column("p", str(o * src.pitches[3])), acc, vw, power) if always and mode != "lp" else f"({V})({p.start(mode, acc)})"};
% endfor
% if columns:
        for (int k = ${"low + 1" if always and mode != "lp" else "low"}; k < high; ++k) {
            __global const ${cell(ctype)} *q = p + (k - low) * ${dy * src.pitches[2]};
%  for o in columns:
            { const ${V} s = ${column("q", str(o * src.pitches[3]))}; ${p.take(mode, f"col{o}", "s", acc, vw, power)} }
%  endfor
        }
% endif
% for t in range(count):
        {
<% mine = columns_of(t, left) %>\
            const int xo = x + ${t};
            ${V} v = ${f"col{mine[0]}" if mine else f"({V})({p.start(mode, acc)})"};
%  for o in mine[1:]:
            ${p.join(mode, "v", f"col{o}", acc)}
%  endfor
%  if rule:
            ${ar.finish(rule, vw, "v", f"{'rows' if clipped else kh} * {counted(t, left)}", "rates", "result")}
%  elif mode == "average":
            ${quotient("v", counted(t, left))}
%  elif mode == "lp":
            ${p.root("v", ctype, vw, power)}
%  endif
            ${finish_column()}
        }
% endfor
</%def>
<%def name="column_at_run_time()">\
        {
            const int xo = x;
            ${V} v = (${V})(${p.start(mode, acc)});
            int wide = 0;
            for (int t = 0; t < ${kw}; ++t) {
                const int at = x * ${sx} - ${px} + t * ${dx};
% if count_pad:
                wide += at < ${iw + after[1]};
% endif
                if (at < 0 || at >= ${iw}) continue;
% if not count_pad:
                ++wide;
% endif
                ${V} col = (${V})(${p.start(mode, acc)});
                for (int k = low; k < high; ++k) {
                    __global const ${cell(ctype)} *q = row + (k - low) * ${dy * src.pitches[2]};
                    const ${V} s = ${column("q", f"at * {src.pitches[3]}")}; ${p.take(mode, "col", "s", acc, vw, power)}
                }
                ${p.join(mode, "v", "col", acc)}
            }
% if mode == "average":
            v /= (${ctype})(${"rows" if clipped else kh} * wide);
% elif mode == "lp":
            ${p.root("v", ctype, vw, power)}
% endif
            ${finish_column()}
        }
</%def>
<%def name="finish_column()">\
            ${st.apply(post_ops, v_, ctype, vw, operand)}
<% where, pitch = index(dst, "n", "c", "y", "xo"), dst.pitches[1] %>\
%  if spill:
            if (last) { ${m.store_lanes(vw, v_, "dst", where, pitch, spill, ctype)} }
            else { ${m.store_lanes(vw, v_, "dst", where, pitch, 0, ctype)} }
%  else:
            ${m.store_lanes(vw, v_, "dst", where, pitch, 0, ctype)}
%  endif
</%def>
<%def name="edge(begin, end)">\
% if not rule and (is_traced(begin) or is_traced(end) or (begin != end and is_traced(iw))):
    for (int x = ${begin}; x < ${end}; ++x) {
        ${column_at_run_time()}
    }
% else:
% for start in range(begin, end, tx):
    {
        const int x = ${start};
        __global const ${cell(ctype)} *p = row + ${(start * sx - px) * src.pitches[3]};
        ${tile(min(tx, end - start), start * sx - px)}
    }
% endfor
% endif
</%def>
% if rule:
${ar.functions(rule, vw)}
% endif
${group_size(wg)}
__kernel void ${name}(
    __global const ${cell(ctype)} *src_base, const int src_offset,
% for k, _ in operands.values():
    __global const ${cell(ctype)} *extra${k}_base, const int extra${k}_offset,
% endfor
% if rule:
    __global const int *rates,
% endif
    __global ${cell(ctype)} *dst_base, const int dst_offset)
{
    if (get_global_id(0) >= ${vectors}) return;
    const int c = min((int)get_global_id(0) * ${vw}, ${channels - vw}), n = get_global_id(2);
% if spill:
    const int last = get_global_id(0) == ${vectors - 1};
% endif
    const int begin = get_global_id(1) * ${band}, end = min(begin + ${band}, ${oh});
% for k, _ in operands.values():
    __global const ${cell(ctype)} *extra${k} = extra${k}_base + extra${k}_offset;
% endfor
    __global ${cell(ctype)} *dst = dst_base + dst_offset;
    __global const ${cell(ctype)} *image = src_base + src_offset + ${index(src, "n", "c", 0, 0)};
    for (int y = begin; y < end; ++y) {
    const int top = y * ${sy} - ${py};
% if clipped:
    const int low = top < 0 ? (${dy - 1} - top) / ${dy} : 0;
    const int high = min(${kh}, (${ih + dy - 1} - top) / ${dy});
%  if mode == "average":
    const int rows = ${f"min({kh}, ({ih + after[0] + dy - 1} - top) / {dy})" if count_pad else "max(high - low, 0)"};
%  endif
% else:
    const int low = 0, high = ${kh};
% endif
    __global const ${cell(ctype)} *row = image + (top + low * ${dy}) * ${src.pitches[2]};
    ${edge(0, first)}
% if is_traced(whole) or whole:
    for (int x = ${first}; x < ${first + whole}; x += ${tx}) {
        __global const ${cell(ctype)} *p = row + (x * ${sx} - ${px}) * ${src.pitches[3]};
        ${tile(tx, None)}
    }
% endif
% if is_traced(whole):
    for (int x = ${first + whole}; x < ${stop}; ++x) {
        __global const ${cell(ctype)} *p = row + (x * ${sx} - ${px}) * ${src.pitches[3]};
        ${tile(1, None)}
    }
% elif stop - first - whole:
    {
        const int x = ${first + whole};
        __global const ${cell(ctype)} *p = row + ${((first + whole) * sx - px) * src.pitches[3]};
        ${tile(stop - first - whole, None)}
    }
% endif
    ${edge(stop, ow)}
    }
}
