<%doc>
NVIDIA's warp instructions, each with two bodies: body "ptx" is inline assembly (compute capability
8.0 and later), body "emulated" is plain OpenCL C 1.2 for any device (_common/warp.cl.mako).

A kernel that uses them has local size (32 * warps, 1, 1). Registers of fragments are elements of
private arrays `uint a[]`; loops over them are unrolled for "ptx", so that indices are constant.

declare(body, kinds, copies)
    Functions that the emulated body needs, in front of the kernel. kinds: of warp.KINDS. copies: how
    many copies of one work-item may be under way.
prepare(body, words, warps, memory, bytes)
    Statements at the top of the kernel. words: of exchange per warp (exchange_words). memory: name of
    the `__local uint` array of `bytes` bytes that addresses are within. Declares `shared_`, the
    address of its byte 0.
sync(body)
    A barrier of the group for local memory.
word(body, memory, at)
    Expression of the word at address `at`.
over(body, name, count), begin(body, name, count)
    A loop of text: for each index of over(), the text behind begin() up to a closing brace.
ldmatrix(body, count, trans, d, at)
    ldmatrix.x4 `count` times; at(i): expression of the address of the lane's row of the i-th;
    registers d[4 * i ..].
mma(body, kind, mi, ni, a, b, c)
    mi x ni products 16x8 of depth 8 words; fragments at a[4 * i], b[2 * j], c[(i * ni + j) * 4].
copy(body, at, src, bytes), commit(body), wait(body, open)
    cp.async.cg: 16 bytes to address `at`, of which `bytes` are read at `src` and the rest are 0.
    wait: until at most `open` of the latest groups are under way.
round_tf32(body, count, d)
    d[0 .. count - 1] from floats to the nearest TF32.
pack(body, kind, d, low, high)
    Word `d` from two floats rounded to kind "half" or "bf16".
dp4a(body, d, a, b)
    d += the dot product of four signed bytes.
shuffle(body, d, value, mode, by)
    Word `d` from another lane; mode of MODES.
</%doc>
<%namespace name="bi" file="bits.cl.mako"/>
<%namespace name="wa" file="warp.cl.mako"/>
<%!
BODIES = ("ptx", "emulated")
MODES = {"idx": (0, 31), "up": (1, 0), "down": (2, 31), "bfly": (3, 31)}
SHAPES = {"f16": "m16n8k16.row.col.f32.f16.f16.f32", "bf16": "m16n8k16.row.col.f32.bf16.bf16.f32",
          "tf32": "m16n8k8.row.col.f32.tf32.tf32.f32", "s8": "m16n8k32.row.col.s32.s8.s8.s32",
          "u8": "m16n8k32.row.col.s32.u8.s8.s32"}
PACKS = {"half": ("cvt.rn.f16x2.f32", "half_bits"), "bf16": ("cvt.rn.bf16x2.f32", "bf16_bits")}

def over(body, name, count):
    return range(count) if body == "ptx" else [name]

def begin(body, name, count):
    return "{" if body == "ptx" else f"for (int {name} = 0; {name} < {count}; ++{name}) {{"

def exchange_words(mi, ni):
    """Words of exchange that products of mi x ni fragments need, and ldmatrix of as many."""
    return 32 * max(4 * mi + 2 * ni, 1)

def operands(letter, name, first, count):
    return ", ".join(f'"{letter}"({name}[{first + k}])' for k in range(count))
%>
<%def name="declare(body, kinds, copies=0)">\
<% assert body in BODIES, body %>\
% if body == "emulated":
#define COPIES ${max(copies, 1)}
${bi.functions()}
${wa.functions(kinds)}
% endif
</%def>
<%def name="prepare(body, words, warps, memory, bytes)">\
% if body == "ptx":
    const uint shared_ = (uint)(size_t)${memory};
% else:
    __local uint exchange_[${words * warps}], arrived_[${bytes // 16}], read_[${bytes // 16}];
    __local uint *words_ = exchange_ + (get_local_id(0) >> 5) * ${words};
    const uint shared_ = 0;
    copies copies_;
    copies_.first = copies_.end = copies_.committed = 0;
    copies_.epoch = 1;
    copies_.memory = ${memory};
    copies_.arrived = arrived_;
    copies_.read = read_;
    for (int i = get_local_id(0); i < ${bytes // 16}; i += ${32 * warps}) arrived_[i] = read_[i] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
% endif
</%def>
<%def name="sync(body)">\
    barrier(CLK_LOCAL_MEM_FENCE);
% if body == "emulated":
    ++copies_.epoch;
% endif
</%def>
<%def name="word(body, memory, at)">\
% if body == "ptx":
${memory}[(${at} - shared_) / 4]\
% else:
copied(&copies_, ${at})\
% endif
</%def>
<%def name="ldmatrix(body, count, trans, d, at)">\
% if body == "ptx":
%  for i in range(count):
    asm volatile("ldmatrix.sync.aligned.m8n8.x4${".trans" if trans else ""}.shared.b16 {%0,%1,%2,%3}, [%4];"
        : ${operands("=r", d, 4 * i, 4)} : "r"(${at(i)}) : "memory");
%  endfor
% else:
    {
        uint at_[${count}];
        for (int i = 0; i < ${count}; ++i) at_[i] = ${at("i")};
        warp_ldmatrix(words_, &copies_, ${count}, ${int(trans)}, at_, ${d});
    }
% endif
</%def>
<%def name="mma(body, kind, mi, ni, a, b, c)">\
% if body == "ptx":
<% letter = "+r" if kind in ("s8", "u8") else "+f" %>\
%  for i in range(mi):
%   for j in range(ni):
    asm("mma.sync.aligned.${SHAPES[kind]} {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : ${operands(letter, c, (i * ni + j) * 4, 4)}
        : ${operands("r", a, 4 * i, 4)}, ${operands("r", b, 2 * j, 2)});
%   endfor
%  endfor
% else:
    warp_mma_${kind}(words_, ${mi}, ${ni}, ${a}, ${b}, ${c});
% endif
</%def>
<%def name="copy(body, at, src, bytes)">\
% if body == "ptx":
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(${at}), "l"(${src}), "r"(${bytes}) : "memory");
% else:
    copy_start(&copies_, ${at}, ${src}, ${bytes});
% endif
</%def>
<%def name="commit(body)">\
% if body == "ptx":
    asm volatile("cp.async.commit_group;" : : : "memory");
% else:
    copy_commit(&copies_);
% endif
</%def>
<%def name="wait(body, open)">\
% if body == "ptx":
    asm volatile("cp.async.wait_group ${open};" : : : "memory");
% else:
    copy_wait(&copies_, ${open});
% endif
</%def>
<%def name="round_tf32(body, count, d)">\
% if body == "ptx":
%  for i in range(count):
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(${d}[${i}]) : "f"(as_float(${d}[${i}])));
%  endfor
% else:
    for (int i = 0; i < ${count}; ++i) ${d}[i] = tf32_bits(as_float(${d}[i]));
% endif
</%def>
<%def name="pack(body, kind, d, low, high)">\
<% instruction, function = PACKS[kind] %>\
% if body == "ptx":
    asm("${instruction} %0, %1, %2;" : "=r"(${d}) : "f"(${high}), "f"(${low}));
% else:
    ${d} = ${function}(${low}) | ${function}(${high}) << 16;
% endif
</%def>
<%def name="dp4a(body, d, a, b)">\
% if body == "ptx":
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(${d}) : "r"(${a}), "r"(${b}));
% else:
    ${d} += products_s8(${a}, ${b});
% endif
</%def>
<%def name="shuffle(body, d, value, mode, by)">\
<% number, clamp = MODES[mode] %>\
% if body == "ptx":
    asm volatile("shfl.sync.${mode}.b32 %0, %1, %2, ${clamp}, 0xffffffff;" : "=r"(${d}) : "r"(${value}), "r"(${by}));
% else:
    ${d} = warp_shuffle(words_, ${value}, ${number}, ${by});
% endif
</%def>
