"""Options of compile_model."""

from __future__ import annotations

from clnn.errors import SettingError
from clnn.records import dataclass

DTYPES = ("f32", "tf32", "f16", "bf16", "int8")
LONGEST_TIMEOUT = 1_000_000
_CHOICES = {
    "dtype": DTYPES,
    "tune": ("off", "cached", "quick", "full"),
    "arena": ("", "shared", "separate"),
    "specialise": ("", "background", "always", "never"),
}


@dataclass(frozen=True)
class Options:
    """How a model is compiled.

    dtype: storage of the network's float32 values and constants: "f32", or 16 bits, "f16" (half) or
    "bf16", rounded to nearest; sums are float32 always, inputs and outputs of the network too.
    Products of 16 bits run on tensor cores where the device has them that clnn uses, else in float32.
    "tf32" stores float32, and products and convolutions may round their operands to TF32 (10 bits of
    fraction) on tensor cores; a device without computes in float32 and says so (Session.placement,
    log). Of 16 bits, ops that cannot, and those with a constant beyond the type's range, keep float32 storage
    with conversions around them (see Session.placement). "int8": the network is quantised first, as `clnn quantize`
    does it, by samples or ranges (see compile_model). calibration: file of ranges for "int8", as JSON. tune:
    how kernels are chosen; "off" ranks them by estimates, "cached" takes measurements of this device, else shipped
    ones, else ranks, "quick" and "full" measure what is missing first (half a minute, some minutes). arena:
    "shared" reuses memory between tensors, "separate" gives each its own buffer ("": as
    CLNN_ARENA says). fuse: run the fusing passes. states: how many callers may run at once, each
    with its own buffers. guard: bytes kept free and poisoned around every tensor (for checks).
    winograd: use Winograd's products for convolutions, and Strassen's for 1x1 ones and matrix products, where
    that is faster; rounding errors are then about ten times those of plain sums, or two to three times, and Winograd's
    spread a NaN or infinity over its tile of outputs.
    merge: on CPUs, make few kernels of all launches; profiles, guards and separate arenas keep each
    launch apart. specialise: which kernels a model with open dimensions runs on. "never": those that
    serve all shapes, and nothing else. "background": the same at first, while child processes of low
    priority build those that small images will need, and kernels of their own for shapes that are met
    often; these are checked, and taken where they are faster, after which results may differ by
    rounding. "always": each shape's own, built in the call that meets it ("": as CLNN_SPECIALISE says).
    On CPUs the option, not the variable, is about float32 and quantised models of known shapes, too. "never": they
    run on the universal set (`clnn prepare`), which needs no build for most of a network and is slower.
    "background": they begin on it, unless the cache has what they need or the set lacks much of them, and
    change to kernels of their own when child processes have built these and both give the same.
    timeout: seconds that a call waits for the device; one that takes longer is lost
    (DeviceLostError). None: as CLNN_TIMEOUT says, without which there is no end.
    Raises SettingError for a value that is not allowed.
    """

    dtype: str = "f32"
    tune: str = "cached"
    arena: str = ""
    fuse: bool = True
    states: int = 1
    guard: int = 0
    winograd: bool = True
    merge: bool = True
    calibration: str = ""
    specialise: str = ""
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                listed = ", ".join(a for a in allowed if a)
                raise SettingError(
                    f"Options({name}={getattr(self, name)!r}) is not allowed. Use one of {listed}."
                )
        if self.calibration and self.dtype != "int8":
            raise SettingError(
                f"Options(calibration={self.calibration!r}) is of no use with dtype={self.dtype!r}."
                " Use dtype='int8', or leave it out."
            )
        if self.states < 1 or self.guard < 0 or self.guard % 64:
            raise SettingError(
                f"Options(states={self.states}, guard={self.guard}): states must be at least 1, "
                "guard a multiple of 64."
            )
        number = isinstance(self.timeout, (int, float)) and 0 < self.timeout <= LONGEST_TIMEOUT
        if self.timeout is not None and not number:
            raise SettingError(
                f"Options(timeout={self.timeout!r}) is not allowed. Use seconds above 0, at most"
                f" {LONGEST_TIMEOUT}, or None."
            )
