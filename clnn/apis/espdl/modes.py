"""How layers compute: generation of ESP-DL, chip and device."""

from __future__ import annotations

from clnn.apis.scoped import Scoped
from clnn.arith.espdl import CHIPS, FLOOR
from clnn.errors import SettingError
from clnn.ops.espdl.build import Way
from clnn.records import dataclass

GENERATIONS = ("1.x", "3.x")


@dataclass(frozen=True)
class Modes:
    """generation: "1.x", which rounds down, or "3.x", which rounds to nearest as `chip` does.

    chip: "c" (the C kernels), "esp32s3", "esp32p4" and others of clnn.arith.espdl.CHIPS. lanes: sums of
    int8 of 3.x have the 20 bits of the ESP32-S3's vector unit. device: as compile_model takes it.
    Raises SettingError for others.
    """

    generation: str = "1.x"
    chip: str = "esp32s3"
    lanes: bool = False
    device: str | int | None = None

    def __post_init__(self) -> None:
        if self.generation not in GENERATIONS:
            raise SettingError(
                f"generation {self.generation!r} is not known. Use {' or '.join(GENERATIONS)}."
            )
        if self.chip not in CHIPS:
            raise SettingError(f"chip {self.chip!r} is not known. Use one of {', '.join(CHIPS)}.")
        if self.lanes and (self.chip != "esp32s3" or self.generation != "3.x"):
            raise SettingError("lanes of 20 bits are those of 3.x on esp32s3.")

    @property
    def way(self) -> Way:
        """How sums are rounded, and their width."""
        return Way(FLOOR if self.generation == "1.x" else CHIPS[self.chip], self.lanes)


_held = Scoped("clnn_espdl", Modes())
modes, configure, using = _held.modes, _held.configure, _held.using
