<%doc>
Rows: walking and folding the rows that clnn/ops/rows/rows.py lays out.

Operands are numbered as in Rows, 0 being the source; each has a pointer (src, extra.., dst) and
offsets o{k} (its row) and r{k} (its run). A callable `at` gives operand k's element offset.

extensions(rows)                  what must stand in front of a kernel
walked(rows, body)                body(rows, narrow) for rows; where vectors lie along an extent that
                                  is read at run time and may be shorter, also body(rows.narrow,
                                  True), which the kernel takes then
begin(rows, operands, narrow), end(rows, narrow)
                                  the loop over items (narrow: and lanes, of rows across); declares
                                  block, lane0, o{k}; with members of a group, `member`, and
                                  `shared_` must be local memory of group * beside elements
vectors(rows, operands, first, last, body)
                                  every vector of the runs first..last: body(slot, at, skip). What
                                  is left of a run is a vector that overlaps the one before; its
                                  lanes below `skip`, a number or a variable, have been met already
fold(rows, name, op, ctype, value, first, last, also, operands)
                                  NAME (along) or NAME0, NAME1, ... (across): value(v, slot) of
                                  all elements under op; also(v, slot, at, skip): a statement for
                                  each vector, which may address `operands`
put(rows, value, slot, width, pointer, where, pitch, skip, ctype, kind)
                                  a store without the lanes below `skip`, nor those of the block that
                                  an overlapping one stores; kind: ctype, where that is left out
</%doc>
<%namespace name="lp" file="loops.cl.mako"/>
<%namespace name="rf" file="row_folds.cl.mako"/>
<%namespace name="sg" file="subgroups.cl.mako"/>
<%!
from clnn.codegen.filters import element, load, scalar, store, vec_type
from clnn.traced import divides, is_one, is_open, is_zero, times

REAL = ("float", "half", "double")
LIMITS = {
    "char": (-2**7, 2**7 - 1), "uchar": (0, 2**8 - 1), "short": (-2**15, 2**15 - 1),
    "ushort": (0, 2**16 - 1), "int": (-2**31, 2**31 - 1), "uint": (0, 2**32 - 1),
    "long": (-2**63, 2**63 - 1), "ulong": (0, 2**64 - 1),
}
NAMES = "0123456789abcdef"
def identity(op, ctype):
    if op in ("max", "min", "peak"):
        low, high = (-float("inf"), float("inf")) if ctype in REAL else LIMITS[ctype]
        return scalar(high if op == "min" else low, ctype)
    return scalar(1 if op == "prod" else 0, ctype)

def combine(op, a, b, ctype):
    """Statement that takes variable `b` into variable `a`; max and min keep a NaN, peak drops it."""
    if op == "sum":
        return f"{a} += {b};"
    if op == "prod":
        return f"{a} *= {b};"
    if op == "peak":
        return f"{a} = {b} > {a} ? {b} : {a};"
    if ctype not in REAL:
        return f"{a} = {op}({a}, {b});"
    sign = ">" if op == "max" else "<"
    return f"{a} = {b} {sign} {a} ? {b} : {a}; {a} = {b} != {b} ? {b} : {a};"

def load_lanes(ctype, width, pointer, where, pitch):
    if width == 1 or is_zero(pitch) or is_one(pitch):
        return load(ctype, width, pointer, where, 1 if width == 1 else pitch)
    lanes = ", ".join(element(ctype, pointer, f"{where} + {times(k, pitch)}") for k in range(width))
    return f"({vec_type(ctype, width)})({lanes})"

def store_lanes(width, value, pointer, where, pitch, skip=0, ctype="", kind=""):
    """Statements that store the lanes of variable `value` from lane `skip` on."""
    if isinstance(skip, str) and width == 1:
        return f"if ({skip} < 1) {store(1, value, pointer, where, ctype)}"
    if isinstance(skip, str):
        each = store(1, "l_[k_]", pointer, f"{where} + k_{'' if is_one(pitch) else f' * {pitch}'}", ctype)
        return (f"{{ {kind or ctype} l_[{width}]; vstore{width}({value}, 0, l_); "
                f"for (int k_ = {skip}; k_ < {width}; ++k_) {{ {each} }} }}")
    if width > 1 and not is_one(pitch):
        return " ".join(store(1, f"{value}.s{NAMES[k]}", pointer, f"{where} + {times(k, pitch)}", ctype) for k in range(skip, width))
    if skip == 0:
        return store(width, value, pointer, where, ctype)
    parts, lane = [], skip
    while lane < width:
        count = max(n for n in (8, 4, 2, 1) if n <= width - lane)
        parts.append(store(count, f"{value}.s{NAMES[lane:lane + count]}", pointer, f"{where} + {lane}", ctype))
        lane += count
    return " ".join(parts)

def narrow_widths(rows):
    """Widths of vectors besides the rows' own: 1 where these lie along an open extent, which may be less."""
    along = is_open(rows.lanes) and rows.width > 1 if rows.across else is_open(rows.extent) and rows.vw > 1
    return [1] if along else []

def of(rows, name, slot):
    """The variable of a folded value that belongs to a slot."""
    return f"{name}{slot}" if rows.across else name

def at_of(rows, lanes):
    """Callable: operand -> element offset, at element i of a run, moved by `lanes` vector lanes."""
    def at(k):
        step, shift = rows.step_pitches[k], lanes * rows.lane_pitches[k]
        terms = [f"o{k}", f"r{k}"]
        terms += [] if is_zero(step) else ["i" if is_one(step) else f"i * {step}"]
        return " + ".join(terms + ([] if is_zero(shift) else [str(shift)]))
    return at

def skipped(rows):
    """Lanes of the vector at the end of a row that overlap the vector before, 0 for none.

    A variable where the row's elements are counted at run time.
    """
    if is_open(rows.extent) or is_open(rows.length):
        return 0 if rows.across or rows.vw == 1 else "skip_"
    last = rows.extent - (rows.runs.extents[-1] - 1) * rows.length
    assert rows.across or rows.runs.extents[-1] == 1 or rows.length % rows.vw == 0, rows
    return -last % rows.vw if not rows.across else 0

def masked(ctype, width, skip, v, other):
    """Variable `v` with `other` in the lanes below `skip`."""
    signed = {"float": "int", "double": "long", "half": "short"}.get(ctype, ctype.lstrip("u"))
    lanes = range(width) if isinstance(skip, str) else [0] * skip + [-1] * (width - skip)
    test = f"({signed}{width})({', '.join(map(str, lanes))})"
    test = f"({test} >= ({signed}{width})({skip}))" if isinstance(skip, str) else test
    return f"{test} ? {v} : ({vec_type(ctype, width)})({other})"
%>
<%def name="extensions(rows)">\
% if rows.subgroups:
${sg.allow_subgroups()}
% endif
</%def>
<%def name="walked(rows, body)">\
% if narrow_widths(rows):
    if (${f"{rows.lanes} >= {rows.width}" if rows.across else f"{rows.extent} >= {rows.vw}"}) {
${body(rows, False)}
    } else {
${body(rows.narrow, True)}
    }
% else:
${body(rows, False)}\
% endif
</%def>
<%def name="begin(rows, operands, narrow=False)">\
<% items = prod(rows.outer.extents) if narrow and rows.across else rows.items %>\
% if rows.group > 1 and rows.across:
<% assert rows.width == 1 and rows.items % rows.beside == 0, rows %>\
    const int item = get_global_id(0), member = get_local_id(2);
    {
% elif rows.group > 1:
    const int item = get_group_id(0), member = get_local_id(0);
    {
% elif is_open(rows.band) or rows.band > 1:
    const int first_item = get_global_id(0) * ${rows.band};
    for (int item = first_item; item < min(first_item + ${rows.band}, ${items}); ++item) {
% else:
    const int item = get_global_id(0);
    if (item >= ${items}) return;
    {
% endif
<% spill = rows.width > 1 and not divides(rows.width, rows.lanes) %>\
% if rows.across and narrow:
    const int row = item;
% elif is_open(rows.blocks) or rows.blocks > 1:
    const int block = item % ${rows.blocks}, row = item / ${rows.blocks};
    const int lane0 = ${f"min(block * {rows.width}, {rows.lanes - rows.width})" if spill else f"block * {rows.width}"};
% else:
    const int row = item, lane0 = 0;
% endif
    ${lp.offsets("row", rows.outer.extents, [rows.outer.pitches[k] for k in operands], [f"base{k}" for k in operands])}
% if rows.across and narrow:
    for (int lane0 = 0; lane0 < ${rows.lanes}; ++lane0) {
% endif
% for k in operands:
    const int o${k} = base${k}${f" + lane0 * {rows.lane_pitches[k]}" if rows.across else ""};
% endfor
</%def>
<%def name="end(rows=None, narrow=False)">\
    }
% if narrow and rows.across:
    }
% endif
</%def>
<%def name="vectors(rows, operands, first, last, body)">\
<%
    G, vw, nv = rows.group, rows.vw, rows.nv
    uneven = not divides(rows.length, rows.extent)
    chunk = f"ax{len(rows.runs.extents) - 1}_"
    begin = f"member * {vw}" if G > 1 else "0"
%>\
% if not is_zero(rows.run_count):
    for (int q = ${first}; q < ${last}; ++q) {
        ${lp.offsets("q", rows.runs.extents, [rows.runs.pitches[k] for k in operands], [f"r{k}" for k in operands])}
        const int len = ${f"min({rows.length}, {rows.extent} - {chunk} * {rows.length})" if uneven else rows.length};
% if rows.across:
        for (int i = ${"member" if G > 1 else 0}; i < len; i += ${G}) {
%  for slot in range(nv):
            { ${body(slot, at_of(rows, slot * vw), 0)} }
%  endfor
        }
% else:
        int i = ${f"member * {vw}" if G > 1 else 0};
%  if nv > 1 and (is_open(rows.length) or rows.length >= nv * G * vw):
        for (; i + ${((nv - 1) * G + 1) * vw} <= len; i += ${nv * G * vw}) {
%   for slot in range(nv):
            { ${body(slot, at_of(rows, slot * G * vw), 0)} }
%   endfor
        }
%  endif
        for (; i + ${vw} <= len; i += ${G * vw}) {
            ${body(0, at_of(rows, 0), 0)}
        }
<%
    ends = ["member == 0"] if G > 1 else []
    if not isinstance(skipped(rows), str) and (is_open(rows.runs.extents[-1]) or rows.runs.extents[-1] > 1):
        ends.insert(0, f"{chunk} == {rows.runs.extents[-1] - 1}")
%>\
%  if isinstance(skipped(rows), str):
        const int skip_ = -len & ${vw - 1};
        if (${" && ".join(["skip_", *ends])}) {
            i = len - ${vw};
            ${body(0, at_of(rows, 0), skipped(rows))}
        }
%  elif skipped(rows):
        ${f"if ({' && '.join(ends)}) " if ends else ""}{
            i = len - ${vw};
            ${body(0, at_of(rows, 0), skipped(rows))}
        }
%  endif
% endif
    }
% endif
</%def>
<%def name="fold(rows, name, op, ctype, value, first, last, also=None, operands=(0,))">\
<%
    vw, nv = rows.vw, rows.nv
    zero, V = identity(op, ctype), vec_type(ctype, vw)
    # Numbers that are read at run time: what is right for many blocks is right for one.
    deep = op == "sum" and (is_open(rows.block) or is_open(rows.share) or rows.block < rows.share)
    slots = range(nv)
    stage, total = ("part_", "all_") if deep else ("all_", "all_")
    if rows.across and not deep:
        stage = total = name
    elif rows.across:
        total = name
    def take(slot, at, skip):
        loaded = load_lanes(ctype, vw, "src", at(0), rows.lane_pitches[0])
        extra = also("v_", slot, at, skip) if also else ""
        mask = f"v_ = {masked(ctype, vw, skip, 'v_', zero)};" if skip else ""
        return (f"const {V} x_ = {loaded}; {V} v_ = {value('x_', slot)}; {extra} {mask} "
                + combine(op, f"{stage}{slot}", "v_", ctype))
%>\
% if rows.across:
%  for slot in slots:
    ${V} ${name}${slot} = (${V})(${zero});
%  endfor
% else:
    ${ctype} ${name};
    {
%  for slot in slots:
    ${V} all_${slot} = (${V})(${zero});
%  endfor
% endif
% if deep:
    for (int q0 = ${first}; q0 < ${last}; q0 += ${rows.block}) {
%  for slot in slots:
    ${V} part_${slot} = (${V})(${zero});
%  endfor
    ${vectors(rows, operands, "q0", f"min(q0 + {rows.block}, {last})", take)}
%  for slot in slots:
    ${combine("sum", f"{total}{slot}", f"part_{slot}", ctype)}
%  endfor
    }
% else:
    ${vectors(rows, operands, first, last, take)}
% endif
% if not rows.across:
    ${rf.lanes_to_one(rows, op, ctype, combine)}
    ${name} = one_;
    ${rf.members_to_one(rows, name, op, ctype, combine, zero)}
    }
% else:
    ${rf.members_to_one(rows, f"{name}0", op, ctype, combine, zero)}
% endif
</%def>
<%def name="put(rows, value, slot, width, pointer, where, pitch, skip=0, ctype='', kind='')">\
<%
    spill = rows.blocks * rows.width - rows.lanes if rows.across and rows.width > 1 else 0
    shared = f"{spill} - {slot * rows.vw}" if is_open(spill) else ""
    twice = 0 if shared else min(max(spill - slot * rows.vw, 0), width) if spill else 0
%>\
% if shared:
    {
        const int twice_ = block < ${rows.blocks - 1} ? 0 : ${shared};
        if (twice_ <= 0) { ${store_lanes(width, value, pointer, where, pitch, 0, ctype)} }
        else { ${store_lanes(width, value, pointer, where, pitch, "twice_", ctype, kind)} }
    }
% elif twice:
    if (block < ${rows.blocks - 1}) { ${store_lanes(width, value, pointer, where, pitch, skip, ctype)} }
%  if twice < width:
    else { ${store_lanes(width, value, pointer, where, pitch, twice, ctype)} }
%  endif
% else:
    ${store_lanes(width, value, pointer, where, pitch, skip, ctype, kind)}
% endif
</%def>
