<%doc>
rows/arg: where the largest or smallest element of each row is, as its index or as a one among zeros.

Tensors  src | dst: one index per row (long), or src's shape and type (one_hot)
Rows     operand 0 src, 1 dst, 2 no tensor but the index of each element within its row
Order    a NaN is beyond all numbers; of equal elements the first is taken, or the last one
Launch   global (blocks of rows)
Params   name            kernel name
         ctype           type of src
         rows            Rows; when along, lanes keep an index each, and one is chosen at the end
         largest         whether the largest element is sought
         latest          the last of equal elements
         ordered         elements are met in the order of their index
         one_hot         whether dst holds ones and zeros
         wg              local size
</%doc>
<%namespace name="rw" file="/_common/rows.cl.mako"/>
<%
    m = rw.module
    real = ctype in m.REAL
    beats = ">" if largest else "<"
    worst = m.identity("max" if largest else "min", ctype)
%>
<%def name="walk(rows, narrow)">\
<%
    width, slots = rows.vw, range(rows.nv)
    T, I = vec_type(ctype, width), vec_type("int", width)
    folds = not rows.across and width * rows.nv > 1
    best, which = ("lane_best", "lane_which") if folds else ("best", "which")
    kept = 1 if folds else width
    assert width == 1 or ctype in ("float", "int", "uint"), "a lane's comparison must be as wide as an int"

    def takes(v, k, best, which, tie):
        """Whether (v, k) goes before (best, which); tie: indices decide between equals."""
        later = f"{k} > {which}" if latest else f"{k} < {which}"
        test = f"{v} {beats} {best}"
        equal = f"{v} == {best}"
        if real:
            test = f"{test} || ({v} != {v} && {best} == {best})"
            equal = f"{equal} || ({v} != {v} && {best} != {best})"
        if tie:
            return f"{test} || (({equal}) && ({later}))"
        return f"{test} || {equal}" if latest else test

    def numbers(at):
        """Index within the row of each lane."""
        if rows.across or width == 1:
            return f"({I})({at(2)})"
        return f"({I})({at(2)}) + ({I})({', '.join(map(str, range(width)))}) * {rows.lane_pitches[2]}"

    def meet(slot, at, skip):
        loaded = m.load_lanes(ctype, width, "src", at(0), rows.lane_pitches[0])
        return (f"const {T} v_ = {loaded}; const {I} k_ = {numbers(at)}; "
                f"const {I} take_ = {takes('v_', 'k_', f'{best}{slot}', f'{which}{slot}', not ordered)} || {which}{slot} < 0; "
                f"{best}{slot} = take_ ? v_ : {best}{slot}; {which}{slot} = take_ ? k_ : {which}{slot};")

    def join(lanes, value, place, met, best, which):
        """Statements that take what other lanes found; met: text of whether they, and these, found anything."""
        t, i = vec_type(ctype, lanes), vec_type("int", lanes)
        test = met.format(takes("v_", "k_", best, which, True))
        return (f"{{ const {t} v_ = {value}; const {i} k_ = {place}; const {i} take_ = {test}; "
                f"{best} = take_ ? v_ : {best}; {which} = take_ ? k_ : {which}; }}")

    def mark(slot, at, skip):
        one, zero = scalar(1, ctype), scalar(0, ctype)
        value = f"{numbers(at)} == ({I})(which{0 if folds else slot}) ? ({T})({one}) : ({T})({zero})"
        return f"const {T} y_ = {value}; {capture(rw.put, rows, 'y_', slot, width, 'dst', at(1), rows.lane_pitches[1], kind=ctype)}"
%>\
    ${rw.begin(rows, [0, 1, 2], narrow)}
% for slot in slots:
    ${T} ${best}${slot} = (${T})(${worst});
    ${I} ${which}${slot} = (${I})(-1);
% endfor
    ${rw.vectors(rows, [0, 2], 0, rows.run_count, meet)}
% if folds:
%  for slot in slots[1:]:
    ${join(width, f"{best}{slot}", f"{which}{slot}", f"k_ >= 0 && ({which}0 < 0 || ({{}}))", f"{best}0", f"{which}0")}
%  endfor
<% lanes, from_best, from_which = width, f"{best}0", f"{which}0" %>\
%  while lanes > 1:
<% lanes //= 2 %>\
    ${vec_type(ctype, lanes)} best_of${lanes} = ${from_best}.lo;
    ${vec_type("int", lanes)} which_of${lanes} = ${from_which}.lo;
    ${join(lanes, f"{from_best}.hi", f"{from_which}.hi", "{}", f"best_of{lanes}", f"which_of{lanes}")}
<% from_best, from_which = f"best_of{lanes}", f"which_of{lanes}" %>\
%  endwhile
    const ${ctype} best0 = ${from_best};
    const int which0 = ${from_which};
% endif
% if rows.group > 1:
    values_[member] = best0;
    places_[member] = which0;
    barrier(CLK_LOCAL_MEM_FENCE);
<% half = rows.group // 2 %>\
%  while half:
    if (member < ${half}) {
        const ${ctype} v_ = values_[member + ${half}];
        const int k_ = places_[member + ${half}];
        if (k_ >= 0 && (which0 < 0 || ${takes("v_", "k_", "best0", "which0", True)})) {
            values_[member] = best0 = v_;
            places_[member] = which0 = k_;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
<% half //= 2 %>\
%  endwhile
    which0 = places_[0];
% endif
% if one_hot:
    ${rw.vectors(rows, [1, 2], 0, rows.run_count, mark)}
% else:
%  if rows.group > 1:
    if (member == 0) {
%  endif
%  for slot in ([0] if folds else slots):
    const ${vec_type("long", kept)} index${slot} = convert_${vec_type("long", kept)}(which${slot});
    ${rw.put(rows, f"index{slot}", slot, kept, "dst", f"o1 + {slot * width * rows.lane_pitches[1]}" if rows.across else "o1", rows.lane_pitches[1], kind="long")}
%  endfor
%  if rows.group > 1:
    }
%  endif
% endif
    ${rw.end(rows, narrow)}\
</%def>
${group_size(wg)}
__kernel void ${name}(
    __global const ${ctype} *src_base, const int src_offset,
    __global ${ctype if one_hot else "long"} *dst_base, const int dst_offset)
{
% if rows.group > 1:
    __local ${ctype} values_[${rows.group}];
    __local int places_[${rows.group}];
% endif
    __global const ${ctype} *src = src_base + src_offset;
    __global ${ctype if one_hot else "long"} *dst = dst_base + dst_offset;
${rw.walked(rows, walk)}
}
