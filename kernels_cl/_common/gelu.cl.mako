<%doc>
gelu(x) of 16 floats, where AVX-512 looks up 16 numbers at once: relu(x) - a q(a), a = |x|, where q is the normal
distribution's upper tail, a polynomial of 5th degree around each multiple of 0.4 from 0 to 6, within 3e-8; from
5.8 on it is 0. Other compilers, and vectors of other widths, have a polynomial of _common/epilogue.

text(other, width)    what becomes of the variable v of so many floats, for str.format; other: the text
                      without the instruction
</%doc>
<%!
STEP = 0.4
TAIL = (  # coefficients of the powers 5 to 0 of a / STEP - k, for k = 0 to 15
    (-9.93857175e-05, -6.44861357e-05, 1.03158936e-05, 5.85012058e-05, 5.46646552e-05, 2.31192516e-05,
     -2.89352943e-06, -1.16550027e-05, -9.42491806e-06, -4.88603564e-06, -1.87975297e-06, -5.65755727e-07,
     -1.36722306e-07, -2.69335541e-08, -4.3672701e-09, 0.0),
    (-2.05426204e-06, -0.000442049262, -0.000578964711, -0.000386419328, -8.48126583e-05, 0.000113115719,
     0.000157149887, 0.000114326525, 5.91988428e-05, 2.36534397e-05, 7.55015935e-06, 1.96134988e-06,
     4.19358827e-07, 7.43500763e-08, 1.0987721e-08, 0.0),
    (0.00425598305, 0.00329964724, 0.00111245597, -0.000911305484, -0.00184568588, -0.0017277213, -0.00113706966,
     -0.00057752576, -0.000234978041, -7.80599439e-05, -2.14105548e-05, -4.88362593e-06, -9.30899716e-07,
     -1.48811637e-07, -2.00022665e-08, 0.0),
    (-7.47548441e-08, 0.0117842518, 0.0185398441, 0.0186417364, 0.0141980089, 0.00863874797, 0.00429985113,
     0.00177307019, 0.000610300223, 0.000176204296, 4.28137537e-05, 8.77541152e-06, 1.51992492e-06, 2.22749364e-07,
     2.76496799e-08, 0.0),
    (-0.159576908, -0.147308052, -0.115876622, -0.0776744261, -0.0443683341, -0.021596387, -0.00895781163,
     -0.0031661801, -0.000953635201, -0.000244760857, -5.35321633e-05, -9.97702318e-06, -1.58453133e-06,
     -2.14444427e-07, -2.47310936e-08, 0.0),
    (0.5, 0.344578266, 0.211855412, 0.115069672, 0.0547992885, 0.0227501299, 0.00819753483, 0.00255513028,
     0.000687138294, 0.000159108909, 3.16714068e-05, 5.41260442e-06, 7.93345009e-07, 9.96480196e-08,
     1.07182654e-08, 0.0),
)

WIDTH = 16
LOOKED_UP = [f"__builtin_ia32_permvarsf512(({{D}})({', '.join(f'{c!r}f' for c in row)}), as_{{I}}(place))" for row in TAIL]
BY_TABLES = [
    "const {D} a = fabs({v}) > {T}(6.0f) ? {T}(6.0f) : fabs({v});",
    f"const {{D}} place = fma(a, {{T}}({1 / STEP!r}f), {{T}}(12582912.0f));",
    f"const {{D}} rest = fma(a, {{T}}({1 / STEP!r}f), {{T}}(12582912.0f) - place);",
    f"{{D}} tail = {LOOKED_UP[0]};",
    *(f"tail = fma(tail, rest, {row});" for row in LOOKED_UP[1:]),
    "{v} = fma({v} < -a ? {v} : -a, tail, {v} < {T}(0) ? {T}(0) : {v});",
]
BEFORE = ["", "    #ifdef __AVX512F__", "    {{", *(f"    {line}" for line in BY_TABLES), "    }}", "    #else", "    "]
AFTER = ["", "    #endif", "    "]

def text(other, width):
    return "\n".join(BEFORE) + other + "\n".join(AFTER) if width == WIDTH else other
%>
