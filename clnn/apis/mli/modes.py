"""How calls are computed: the device, and the modes that MLI fixes when it is built."""

from __future__ import annotations

from clnn.apis.scoped import Scoped
from clnn.errors import SettingError
from clnn.records import dataclass

CONVERGENT, UP = "convergent", "up"


@dataclass(frozen=True)
class Modes:
    """Build modes of MLI, and the device.

    round_mode: "convergent" (ties to even, as EM and HS processors) or "up" (as VPX). full_accu:
    FULL_ACCU, sums are scaled at full width. avepool_16bit_mul: AVEPOOL_16BIT_MUL. device: as
    compile_model takes it. Raises SettingError for another round mode.
    """

    round_mode: str = CONVERGENT
    full_accu: bool = False
    avepool_16bit_mul: bool = False
    device: str | int | None = None

    def __post_init__(self) -> None:
        if self.round_mode not in (CONVERGENT, UP):
            raise SettingError(
                f"round_mode {self.round_mode!r} is not allowed. Use 'convergent' or 'up'."
            )

    @property
    def up(self) -> bool:
        """Whether ties go up."""
        return self.round_mode == UP


_held = Scoped("clnn_mli", Modes())
modes, configure, using = _held.modes, _held.configure, _held.using
