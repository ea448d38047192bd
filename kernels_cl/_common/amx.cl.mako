<%doc>
Products of matrices by tiles of registers (x86's AMX), 16 rows of 64 bytes each.

    sums  16 x 16 ints or floats  +=  rows  16 x k bytes  times  columns  k / 4 rows of 16 times 4 bytes

how  "x86": the instructions, as bytes that every assembler takes; tiles are registers. "plain": the same in C, of an
     array that stands for them.

begin(how, rows, depth, sums, left, right)
    statements that shape the tiles: `rows` rows of sums and of left operands, which have `depth` bytes in each, and
    depth / 4 rows of right ones; the last three name their numbers
end(how)
    statement behind the last product
read(how, tile, pointer, pitch, side, space)
    statement that reads a tile whose rows lie at a pitch of bytes in global memory, or in a `space` that the kernel writes;
    side: which register holds the pitch, "a" or "b"
write(how, tile, pointer, pitch, space)
    statement that writes a tile of sums to private memory, or to a `space`
stay_awake(how, tile)
    statement that writes a tile where nobody reads it: a tile that is written more than some 2,000 cycles after the one before
    takes 1,000 cycles more (docs/benchmarks/diary.md)
add(how, kind, sums, left, right)
    statement that adds the products of two tiles to a third; kind: of OPCODES
products(how, kind, ma, nv, used, left, right)
    statements that read operands and add their products to ma by nv tiles of sums, of which the first `used` columns
    count. left(j, tile), right(v, tile): statements that read one
registers(ma, nv)
    numbers of the tiles of sums, of left and of right operands

Of bfloat16, the products of even and those of odd elements are added in two sums, by fused multiply-adds; then these two
are, then what the tile held. The instruction takes numbers below the smallest normal one as 0, and makes none.
</%doc>
<%!
ROW = 64  # bytes of a tile's row
# kind -> (prefix, opcode): of bytes of either sign by signed ones, and of pairs of bfloat16.
OPCODES = {"u8": (1, 0x5E), "s8": (3, 0x5E), "bf16": (2, 0x5C)}
TYPES = {"u8": ("uchar", "char"), "s8": ("char", "char")}
INDEX = {"a": ("d", 0x16), "b": ("D", 0x3E)}
def vex(prefix, opcode, last, source=0):
    """Return an instruction in VEX's encoding with a prefix of three bytes."""
    return ".byte " + ", ".join(f"0x{part:02x}" for part in (0xC4, 0xE2, (~source & 15) << 3 | prefix, opcode, *last))
def shape(rows, depth, sums, left, right):
    """Return the 64 bytes that shape the tiles."""
    widths, heights = [0] * 16, [0] * 16
    for tiles, width, height in ((sums, ROW, rows), (left, depth, rows), (right, ROW, depth // 4)):
        for tile in tiles:
            widths[tile], heights[tile] = width, height
    return [1, *[0] * 15, *(part for width in widths for part in (width, 0)), *heights]
def registers(ma, nv):
    """Return the tiles of sums, and of left and right operands: the fewer ones stay while others pass."""
    stay = range(ma * nv, ma * nv + min(ma, nv))
    passing = range(stay.stop, min(stay.stop + min(2, max(ma, nv)), 8))
    return range(ma * nv), *((passing, stay) if ma >= nv else (stay, passing))
%>
<%def name="begin(how, rows, depth, sums, left, right)">\
% if how == "x86":
    const uchar shape_[64] __attribute__((aligned(64))) = {${", ".join(map(str, shape(rows, depth, sums, left, right)))}};
    uchar awake_[${16 * ROW}] __attribute__((aligned(64)));
    __asm__ volatile("${vex(0, 0x49, [0x06])}" :: "S"(shape_) : "memory");
% else:
    const uchar shape_[64] = {${", ".join(map(str, shape(rows, depth, sums, left, right)))}};
    int tiles_[${8 * ROW * 4}];
% endif
</%def>
<%def name="end(how)">\
% if how == "x86":
    __asm__ volatile("${vex(0, 0x49, [0xC0])}");
% endif
</%def>
<%def name="read(how, tile, pointer, pitch, side, space='')">\
% if how == "x86":
<% register, sib = INDEX[side] %>\
    __asm__ volatile("${vex(3, 0x4B, [4 + 8 * tile, sib])}" :: "S"(${pointer}), "${register}"((long)(${pitch}))${' : "memory"' if space else ""});
% else:
    for (int row_ = 0; row_ < shape_[${48 + tile}]; ++row_)
        for (int at_ = 0; at_ < shape_[${16 + 2 * tile}]; ++at_)
            ((uchar *)tiles_)[${tile * 1024} + row_ * 64 + at_] = ((${space or "__global"} const uchar *)(${pointer}))[row_ * (${pitch}) + at_];
% endif
</%def>
<%def name="write(how, tile, pointer, pitch, space='__private')">\
% if how == "x86":
    __asm__ volatile("${vex(2, 0x4B, [4 + 8 * tile, INDEX['a'][1]])}" :: "S"(${pointer}), "d"((long)(${pitch})) : "memory");
% else:
    for (int row_ = 0; row_ < shape_[${48 + tile}]; ++row_)
        for (int at_ = 0; at_ < 64; ++at_)
            ((${space} uchar *)(${pointer}))[row_ * (${pitch}) + at_] = ((uchar *)tiles_)[${tile * 1024} + row_ * 64 + at_];
% endif
</%def>
<%def name="stay_awake(how, tile)">\
% if how == "x86":
    __asm__ volatile("${vex(2, 0x4B, [4 + 8 * tile, INDEX['a'][1]])}" :: "S"(awake_), "d"((long)${ROW}));
% endif
</%def>
<%def name="add(how, kind, sums, left, right)">\
<% prefix, opcode = OPCODES[kind] %>\
% if how == "x86":
    __asm__ volatile("${vex(prefix, opcode, [0xC0 + 8 * sums + left], right)}");
% else:
    for (int row_ = 0; row_ < shape_[${48 + sums}]; ++row_)
        for (int at_ = 0; at_ < 16; ++at_) {
% if kind == "bf16":
            float even_ = 0, odd_ = 0;
% endif
            for (int k_ = 0; k_ < shape_[${48 + right}]; ++k_) {
% if kind == "bf16":
                const uint left_ = tiles_[${left * 256} + row_ * 16 + k_], right_ = tiles_[${right * 256} + k_ * 16 + at_];
                even_ = fma(as_float(left_ << 16), as_float(right_ << 16), even_);
                odd_ = fma(as_float(left_ & 0xffff0000u), as_float(right_ & 0xffff0000u), odd_);
% else:
                for (int part_ = 0; part_ < 4; ++part_)
                    tiles_[${sums * 256} + row_ * 16 + at_] += (int)((${TYPES[kind][0]} *)tiles_)[${left * 1024} + row_ * 64 + 4 * k_ + part_]
                        * (int)((${TYPES[kind][1]} *)tiles_)[${right * 1024} + k_ * 64 + 4 * at_ + part_];
% endif
            }
% if kind == "bf16":
            ((float *)tiles_)[${sums * 256} + row_ * 16 + at_] += even_ + odd_;
% endif
        }
% endif
</%def>
<%def name="products(how, kind, ma, nv, used, left, right)">\
<% _, lefts, rights = registers(ma, nv) %>\
% if ma >= nv:
%  for v in range(used):
        ${right(v, rights[v])}\
%  endfor
%  for j in range(ma):
        ${left(j, lefts[j % len(lefts)])}\
%   for v in range(used):
        ${add(how, kind, j * nv + v, lefts[j % len(lefts)], rights[v])}\
%   endfor
%  endfor
% else:
%  for j in range(ma):
        ${left(j, lefts[j])}\
%  endfor
%  for v in range(used):
        ${right(v, rights[v % len(rights)])}\
%   for j in range(ma):
        ${add(how, kind, j * nv + v, lefts[j], rights[v % len(rights)])}\
%   endfor
%  endfor
% endif
        ${stay_awake(how, rights[0])}\
</%def>
