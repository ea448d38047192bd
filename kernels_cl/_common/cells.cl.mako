<%doc>
What a recurrent cell computes behind its sums, as statements on vectors of `width` floats.

whereabouts(extras, backward, steps, b)
    declares `place`, the step at which direction d reads and writes at its step t; of sequences with lengths or
    a mask `live`, whether sequence b has this step, and with lengths `length`. It reads t, d, and both inputs.
rounding(low, high)
    declares `worth` and `zero`, the step and zero point of a state with elements and 0 in low..high, as
    DynamicQuantizeLinear finds them
rounded(value)
    module function: an element of that state as an integer, counted from `zero`
rounded_state(state, kept, hidden, row, width, as_bytes)
    writes the `hidden` elements of a float state so to `kept`, up to `row` elements, and `worth` behind them;
    as_bytes: as bytes from 0 on, whole fours of them, and `zero` behind `worth`
first_lanes(ctypes, width)
    functions first_NAME(from, count): a vector of the first elements, of which those from `count` on are 0
apply(functions, which, v, width)
    activation `which` (0 f, 1 g, 2 h) of variable v, in place; tanh of wide vectors as a quotient of
    polynomials, within 3e-7. functions: of one direction, chains of elementwise functions
    (clnn/ops/recurrent/cells.py)
finish(kind, functions, width, phase, input_forget, peepholes, late_bias)
    declares `h` and (lstm) `c`, the state and cell behind the step, in the last phase of a cell; in the
    first of two, `z` and `rh`, the update gate and the state behind the reset gate.
    It reads x0, x1, ..: products of the inputs for each gate of the phase; s0, s1, ..: sums of the
    state's products; h_old, c_old; of peepholes p0, p1, p2; of late_bias `lb`; in a second phase z.
</%doc>
<%namespace name="st" file="/_common/epilogue.cl.mako"/>
<%!
def place(backward, ends, steps):
    if not any(backward):
        return "t"
    parts = ([] if all(backward) else [f"d == {backward.index(True)}"]) + (["live"] if ends else [])
    turned = f"{'length' if ends else steps} - 1 - t"
    return f"{' && '.join(parts)} ? {turned} : t" if parts else turned
def byte(value):
    return f"clamp(rint({value} / worth) + zero, 0.0f, 255.0f)"
def rounded(value):
    return f"{byte(value)} - zero"
%>
<%def name="whereabouts(extras, backward, steps, b)">\
% if "lengths" in extras:
                const int length = clamp((int)lengths[(${b}) * ${extras["lengths"][1][0]}], 0, ${steps}), live = t < length;
% endif
                const int place = ${place(backward, "lengths" in extras, steps)};
% if "mask" in extras:
                const int live = mask[place * ${extras["mask"][1][0]} + (${b}) * ${extras["mask"][1][1]}] != 0;
% endif
</%def>
<%def name="rounding(low, high)">\
                const float worth = ${high} > ${low} ? (${high} - ${low}) / 255.0f : 1.0f;
                const float zero = rint(clamp(-${low} / worth, 0.0f, 255.0f));
</%def>
<%def name="rounded_state(state, kept, hidden, row, width, as_bytes=False)">\
<% kind = "uchar" if as_bytes else "float" %>\
<% made = (lambda v: f"convert_{vec_type('uchar', width)}({byte(v)})") if as_bytes else rounded %>\
<% V, near, whole = vec_type("float", width), load("float", width, "h_", "k"), hidden // width * width %>\
                __global const float *h_ = ${state};
                __global ${kind} *q_ = ${f"(__global uchar *)({kept})" if as_bytes else kept};
                float low = 0.0f, high = 0.0f;
% if whole and width > 1:
                ${V} lows = 0.0f, highs = 0.0f;
                for (int k = 0; k < ${whole}; k += ${width}) {
                    lows = fmin(lows, ${near});
                    highs = fmax(highs, ${near});
                }
                float ends[${2 * width}];
                vstore${width}(lows, 0, ends);
                vstore${width}(highs, 1, ends);
                for (int k = 0; k < ${width}; ++k) {
                    low = fmin(low, ends[k]);
                    high = fmax(high, ends[${width} + k]);
                }
% endif
                for (int k = ${whole if width > 1 else 0}; k < ${hidden}; ++k) {
                    low = fmin(low, h_[k]);
                    high = fmax(high, h_[k]);
                }
${rounding("low", "high")}
% if whole and width > 1:
                for (int k = 0; k < ${whole}; k += ${width}) ${store(width, made(near), "q_", "k", kind)};
% endif
                for (int k = ${whole if width > 1 else 0}; k < ${hidden}; ++k) q_[k] = ${byte("h_[k]") if as_bytes else rounded("h_[k]")};
% if as_bytes:
                for (int k = ${hidden}; k < ${-(-hidden // 4) * 4}; ++k) q_[k] = 0;
                (${kept})[${row} + 1] = zero;
% endif
                (${kept})[${row}] = worth;
</%def>
<%def name="first_lanes(ctypes, width)">\
% for name, ctype in ctypes.items():
${vec_type("float", width)} first_${name}(__global const ${cell(ctype)} *from, const int count)
{
    if (count >= ${width}) return ${load(ctype, width, "from", "0")};
    float lanes[${width}];
    for (int k = 0; k < ${width}; ++k) lanes[k] = k < count ? ${element(ctype, "from", "k")} : 0.0f;
    return vload${width}(0, lanes);
}
% endfor
</%def>
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
