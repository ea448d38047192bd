<%doc>
movement/pad_rows: a tensor with elements added on the sides of its axes, a row at a time.

Tensors  seen as outer axes x positions of a row x inner run
             front | middle: the row of src | back          positions of a row of dst
Launch   global (rows / band)
Params   name, ctype, mode, value, wg   as in movement/pad
         extents, sources, before, src_pitches, dst_pitches   as there, of the outer axes
         row             (extent in src, before, after)
         row_pitches     (src, dst)
         inner           elements that lie next to each other, at least 1
Tunables vw              1, 2, 4, 8 or 16
         band            rows that one work-item walks
</%doc>
<%namespace name="lp" file="/_common/loops.cl.mako"/>
<%namespace name="pm" file="/_common/padding.cl.mako"/>
<%
    rows = prod(extents)
    middle, front, back = row
    sp, dp = row_pitches
    def lie_joined(pitches):
        """Whether positions follow one another; those whose pitch is read at run time are walked apart."""
        return not any(map(is_open, [inner, *pitches])) and all(p == inner for p in pitches)
    joined = lie_joined([sp, dp])
    total = front + middle + back
    V = vec_type(ctype, vw)
%>
<%def name="run(count, each)">\
<%doc>each(width, at) for all elements of a run; the last vector may overlap the one before it</%doc>\
% if is_open(count) and vw > 1:
        int k = 0;
        for (; k + ${vw} <= ${count}; k += ${vw}) {
            ${each(vw, "k")}
        }
        for (; k < ${count}; ++k) {
            ${each(1, "k")}
        }
% elif count >= vw > 1:
        for (int j = 0; j < ${count}; j += ${vw}) {
            const int k = min(j, ${count - vw});
            ${each(vw, "k")}
        }
% else:
        for (int k = 0; k < ${count}; ++k) {
            ${each(1, "k")}
        }
% endif
</%def>
<%def name="fill(first, count)">\
<% put = lambda width, at: store(width, "fill" if width > 1 else "one", "to", at) %>\
% if not is_zero(count) and lie_joined([dp]):
        {
        __global ${ctype} *to = dst + ${first * dp};
        ${run(count * inner, put)}
        }
% elif not is_zero(count):
        for (int p = ${first}; p < ${first + count}; ++p) {
        __global ${ctype} *to = dst + p * ${dp};
        ${run(inner, put)}
        }
% endif
</%def>
<%def name="copies(first, count)">\
<% move = lambda width, at: store(width, load(ctype, width, "from", at), "to", at) %>\
% if not is_zero(count):
        for (int p = ${first}; p < ${first + count}; ++p) {
        int i = p;
        int within = 1;
        ${pm.source("i", "within", front, middle, total, mode)}
        __global ${ctype} *to = dst + p * ${dp};
        __global const ${ctype} *from = src + i * ${sp};
        ${run(inner, move)}
        }
% endif
</%def>
<%def name="copy_middle()">\
<% move = lambda width, at: store(width, load(ctype, width, "from", at), "to", at) %>\
% if joined:
        {
        __global ${ctype} *to = dst + ${front * dp};
        __global const ${ctype} *from = src;
        ${run(middle * inner, move)}
        }
% else:
        ${copies(front, middle)}
% endif
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global ${ctype} *dst_base, const int dst_offset)
{
    const int begin = get_global_id(0) * ${band};
    const ${ctype} one = ${scalar(value, ctype)};
    const ${V} fill = one;
    for (int row = begin; row < min(begin + ${band}, ${rows}); ++row) {
    int rest = row, s = src_offset, d = dst_offset, inside = 1;
% for a in reversed(range(len(extents))):
    {
        int i = rest % ${extents[a]};
        rest /= ${extents[a]};
        d += i * ${dst_pitches[a]};
        ${pm.source("i", "inside", before[a], sources[a], extents[a], mode)}
        s += i * ${src_pitches[a]};
    }
% endfor
    __global const ${ctype} *src = src_base + s;
    __global ${ctype} *dst = dst_base + d;
% if mode == "constant":
    if (inside) {
        ${fill(0, front)}
        ${copy_middle()}
        ${fill(front + middle, back)}
    } else {
        ${fill(0, total)}
    }
% else:
        ${copies(0, front)}
        ${copy_middle()}
        ${copies(front + middle, back)}
% endif
    }
}
