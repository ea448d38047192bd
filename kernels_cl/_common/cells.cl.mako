<%doc>
What a recurrent cell computes behind its sums, as statements on vectors of `width` floats.

place(backward, masked, steps)
    module function: the expression of the step at which direction d reads and writes at its step t; of
    sequences with lengths (masked) it reads `length` and `live`
apply(functions, which, v, width)
    activation `which` (0 f, 1 g, 2 h) of variable v, in place. functions: of one direction, chains of
    elementwise functions (clnn/ops/recurrent/cells.py)
finish(kind, functions, width, phase, input_forget, peepholes, late_bias)
    declares `h` and (lstm) `c`, the state and cell behind the step, in the last phase of a cell; in the
    first of two, `z` and `rh`, the update gate and the state behind the reset gate.
    It reads x0, x1, ..: products of the inputs for each gate of the phase; s0, s1, ..: sums of the
    state's products; h_old, c_old; of peepholes p0, p1, p2; of late_bias `lb`; in a second phase z.
</%doc>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%!
def place(backward, masked, steps):
    if not any(backward):
        return "t"
    parts = ([] if all(backward) else [f"d == {backward.index(True)}"]) + (["live"] if masked else [])
    turned = f"{'length' if masked else steps} - 1 - t"
    return f"{' && '.join(parts)} ? {turned} : t" if parts else turned
%>
<%def name="apply(functions, which, v, width)">\
${st.apply(functions[which], v, "float", width, None)}\
</%def>
<%def name="finish(kind, functions, width, phase, input_forget, peepholes, late_bias)">\
<% V = vec_type("float", width) %>\
% if kind == "rnn":
            ${V} h = x0 + s0;
            ${apply(functions, 0, "h", width)}
% elif kind == "lstm":
            ${V} taken = x0 + s0${" + p0 * c_old" if peepholes else ""};
            ${apply(functions, 0, "taken", width)}
%  if input_forget:
            const ${V} kept = (${V})(1.0f) - taken;
%  else:
            ${V} kept = x2 + s2${" + p2 * c_old" if peepholes else ""};
            ${apply(functions, 0, "kept", width)}
%  endif
            ${V} fresh = x3 + s3;
            ${apply(functions, 1, "fresh", width)}
            const ${V} c = kept * c_old + taken * fresh;
            ${V} out = x1 + s1${" + p1 * c" if peepholes else ""};
            ${apply(functions, 0, "out", width)}
            ${V} h = c;
            ${apply(functions, 2, "h", width)}
            h = out * h;
% else:
%  if phase == 0:
            ${V} z = x0 + s0;
            ${apply(functions, 0, "z", width)}
            ${V} reset = x1 + s1;
            ${apply(functions, 0, "reset", width)}
%  endif
%  if kind == "gru" and phase == 0:
            const ${V} rh = reset * h_old;
%  else:
            ${V} h = ${"x2 + s2" if kind == "gru" else "x2 + reset * (s2 + lb)" if late_bias else "x2 + reset * s2"};
            ${apply(functions, 1, "h", width)}
            h = ((${V})(1.0f) - z) * h + z * h_old;
%  endif
% endif
</%def>
