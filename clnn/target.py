"""What code generation knows of a device."""

from __future__ import annotations

from dataclasses import dataclass

from clnn.types import F32, STORED_BF16, STORED_F16, DType

REGISTERS = {16: 32, 8: 16, 4: 20}  # by vector width


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
    it that can be counted on.
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

    @property
    def registers(self) -> int:
        """Vector registers that a tile of sums and its operands may fill."""
        return REGISTERS.get(self.vector, 16)

    def tensor_kind(self, memory: DType) -> str:
        """Return the kind of product that tensor cores have for operands of a type, "" for none."""
        kinds = {STORED_F16: "f16", STORED_BF16: "bf16", F32: "tf32" if self.tf32 else ""}
        kind = "s8" if memory.scale else kinds.get(memory, "")
        return kind if self.tensor else ""

    @property
    def is_cpu(self) -> bool:
        """Whether work-items run as plain loops (explicit vectors, local size 1)."""
        return self.kind == "cpu"
