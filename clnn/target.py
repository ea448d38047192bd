"""What code generation knows of a device."""

from __future__ import annotations

from clnn.records import dataclass
from clnn.types import F32, I8, STORED_BF16, STORED_F16, U8, DType

REGISTERS = {16: 32, 8: 16, 4: 20}  # by vector width
# Registers of a work-item in subgroups of 32, which Intel's compilers take for its Xe-HPC, and where they take
# narrower ones by themselves; lanes of those that a kernel asks for there.
OF_THIRTY_TWO, OF_FEWER, ASKED = 64, 128, 16

LARGE_REGISTERS = "// Built with twice the registers."  # which the build of a program looks for


@dataclass(frozen=True)
class RegisterMode:
    """A way in which a compiler divides registers between work-items, as a kernel asks for it.

    registers: of 32 bits that a work-item has; 0: enough for all kernels. lanes: of a subgroup, which the
    kernel has to say (16: Intel's, 64: AMD's attribute), 0 where the compiler chooses. large: half as many
    threads with twice the registers (an option of Intel's compiler). room: values that were seen to fit,
    0: as many as into others of so many registers.
    """

    registers: int = 0
    lanes: int = 0
    large: bool = False
    room: int = 0

    @property
    def label(self) -> str:
        """What a kernel's name says of it."""
        return f"_w{self.lanes}" * bool(self.lanes) + "_large" * self.large


UNASKED = RegisterMode()


@dataclass(frozen=True)
class Target:
    """What code generation knows of a device: no handle, so that planning needs no device.

    kind: "cpu" or "gpu". vector: preferred float vector width of explicit-vector kernels. winograd:
    whether convolutions may use Winograd's products. cache_way: bytes after which addresses share a
    set of a core's nearest cache. tensor: how products use tensor cores, "ptx" (NVIDIA's instructions)
    or "emulated" (what does the same in plain OpenCL C), "" where there are none. tf32: whether
    products of float32 may round their operands to TF32 there. max_rounds: after so many rounds in
    all the device ends the loops of a work-item; 0: never. Of a compute unit, which holds a work-group:
    lanes: products of float32 that it adds at a time; unit_registers: of 32 bits; resident: work-items of
    it that can be counted on. item_registers: of 32 bits, of a work-item in the narrowest subgroups that
    the compiler takes by itself; 0: enough for all kernels. item_room: RegisterMode.room of kernels that ask
    for nothing. asks_for: lanes of the subgroups that kernels with large registers have to ask for, too, since
    the compiler would take wider ones; 0: it would not. Where they were measured, 0 where not:
    launch_products: that a unit adds while a further launch begins; element_products: that a lane adds
    while its share of memory's rate brings a float.
    """

    kind: str = "cpu"
    vector: int = 16
    compute_units: int = 2
    max_work_group: int = 256
    local_bytes: int = 32768
    features: frozenset[str] = frozenset()
    winograd: bool = True
    cache_way: int = 4096
    tensor: str = ""
    tf32: bool = False
    max_rounds: int = 0
    lanes: int = 128
    unit_registers: int = 65536
    resident: int = 1024
    item_registers: int = 0
    item_room: int = 0
    asks_for: int = 0
    launch_products: int = 0
    element_products: int = 0

    @property
    def registers(self) -> int:
        """Vector registers that a tile of sums and its operands may fill."""
        return REGISTERS.get(self.vector, 16)

    @property
    def register_modes(self) -> tuple[RegisterMode, ...]:
        """What kernels may ask of registers: nothing, then what gives a work-item more of them."""
        has, asks = self.item_registers, "required_subgroups" in self.features
        large = "large_registers" in self.features
        modes = [RegisterMode(has, room=self.item_room)]
        if "wave64" in self.features:
            modes.append(RegisterMode(has, 64))
        if has == OF_THIRTY_TWO and asks:
            modes += [RegisterMode(2 * has, ASKED), RegisterMode(4 * has, ASKED, True)][: 1 + large]
        if has == OF_FEWER and large and (asks or not self.asks_for):
            modes.append(RegisterMode(2 * has, self.asks_for, True))
        return tuple(modes)

    def tensor_kind(self, memory: DType) -> str:
        """Return the kind of product that tensor cores have for operands of a type, "" for none."""
        kinds = {STORED_F16: "f16", STORED_BF16: "bf16", F32: "tf32" if self.tf32 else ""}
        kinds |= {I8: "s8", U8: "u8"}
        return kinds.get(memory, "") if self.tensor else ""

    @property
    def is_cpu(self) -> bool:
        """Whether work-items run as plain loops (explicit vectors, local size 1)."""
        return self.kind == "cpu"

    @property
    def can_fuse(self) -> bool:
        """Whether launches run as few kernels, whose work-groups wait for each other in loops without a bound."""
        return self.is_cpu and not self.max_rounds
