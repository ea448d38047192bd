"""Where each field of sTIDL_IOBufDesc_t lies, for every version of the SDK.

The structure is packed and little-endian. Versions differ in the fields that there are and in the
lengths of the arrays; each size stands for one version.

    sdk          bytes   inputs  outputs  cores
    08_06        37256       32       32      1
    09_00        37272       32       32      1   adds the four numbers of cores and batches
    09_02        93976       32      128      1   adds DIM1, DIM2, numValidTensorDims
    09_02       187928       64      256      2
    09_02       375832      128      512      4
    10_00        94616       32      128      1   adds inBufSize, outBufSize
    10_00       189208       64      256      2
    10_00       378392      128      512      4   from 11_02 on this one, whatever the device
"""

from __future__ import annotations

from functools import cached_property

from clnn.errors import ModelError
from clnn.records import dataclass

NAME_BYTES = 512  # of a tensor's name, TIDL_STRING_SIZE
_WORD = 4
SDK_08_06, SDK_09_00, SDK_09_02, SDK_10_00 = "08_06", "09_00", "09_02", "10_00"
SDKS = (SDK_08_06, SDK_09_00, SDK_09_02, SDK_10_00)

# name, type ("i4", "f4", or "S" for a name), first SDK that has it
_HEAD = (
    ("numInputBuf", "i4", SDK_08_06),
    ("numOutputBuf", "i4", SDK_08_06),
    ("numCores", "i4", SDK_09_00),
    ("numVirtualCores", "i4", SDK_09_00),
    ("numSuperBatches", "i4", SDK_09_00),
    ("inferenceMode", "i4", SDK_09_00),
)
_IN = (
    ("inDataFormat", "i4", SDK_08_06),
    ("inResizeType", "i4", SDK_08_06),
    ("resizeWidth", "i4", SDK_08_06),
    ("resizeHeight", "i4", SDK_08_06),
    ("inWidth", "i4", SDK_08_06),
    ("inHeight", "i4", SDK_08_06),
    ("inNumChannels", "i4", SDK_08_06),
    ("inDIM2", "i4", SDK_09_02),
    ("inDIM1", "i4", SDK_09_02),
    ("inChannelPitch", "i4", SDK_08_06),
    ("inNumBatches", "i4", SDK_08_06),
    ("inPadL", "i4", SDK_08_06),
    ("inPadT", "i4", SDK_08_06),
    ("inPadR", "i4", SDK_08_06),
    ("inPadB", "i4", SDK_08_06),
    ("inPadCh", "i4", SDK_08_06),
    ("rawDataInElementType", "i4", SDK_08_06),
    ("inElementType", "i4", SDK_08_06),
    ("inZeroPoint", "i4", SDK_08_06),
    ("inLayout", "i4", SDK_08_06),
    ("inDataId", "i4", SDK_08_06),
    ("inTensorScale", "f4", SDK_08_06),
    ("inDataName", "S", SDK_08_06),
    ("inBufSize", "i4", SDK_10_00),
)
_OUT = (
    ("outWidth", "i4", SDK_08_06),
    ("outHeight", "i4", SDK_08_06),
    ("outDIM2", "i4", SDK_09_02),
    ("outDIM1", "i4", SDK_09_02),
    ("outNumChannels", "i4", SDK_08_06),
    ("outChannelPitch", "i4", SDK_08_06),
    ("outNumBatches", "i4", SDK_08_06),
    ("outPadL", "i4", SDK_08_06),
    ("outPadT", "i4", SDK_08_06),
    ("outPadR", "i4", SDK_08_06),
    ("outPadB", "i4", SDK_08_06),
    ("outPadCh", "i4", SDK_08_06),
    ("outElementType", "i4", SDK_08_06),
    ("outDataId", "i4", SDK_08_06),
    ("outDataName", "S", SDK_08_06),
    ("outTensorScale", "f4", SDK_08_06),
    ("outZeroPoint", "i4", SDK_08_06),
    ("outLayout", "i4", SDK_08_06),
    ("outBufSize", "i4", SDK_10_00),
    ("numValidTensorDims", "i4", SDK_09_02),
)


@dataclass(frozen=True)
class Field:
    """A field: `count` elements of `kind` ("i4", "f4", or "S", names of 512 bytes) from `offset` on."""

    name: str
    kind: str
    count: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.count * (NAME_BYTES if self.kind == "S" else _WORD)


@dataclass(frozen=True)
class Version:
    """A version of the structure. sdk: the first release that has it; cores: of the device."""

    sdk: str
    cores: int = 1

    @property
    def inputs(self) -> int:
        """How many inputs a structure has room for, TIDL_MAX_ALG_IN_BUFS."""
        return 32 * self.cores

    @property
    def outputs(self) -> int:
        """How many outputs a structure has room for, TIDL_MAX_ALG_OUT_BUFS."""
        return (32 if self.sdk in (SDK_08_06, SDK_09_00) else 128) * self.cores

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The fields in the order in which they lie in memory."""
        offset, found = 0, []
        for rows, count in ((_HEAD, 1), (_IN, self.inputs), (_OUT, self.outputs)):
            for name, kind, since in rows:
                if SDKS.index(since) <= SDKS.index(self.sdk):
                    found.append(Field(name, kind, count, offset))
                    offset += found[-1].nbytes
        return tuple(found)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the structure."""
        return self.fields[-1].offset + self.fields[-1].nbytes


VERSIONS = (
    Version(SDK_08_06),
    Version(SDK_09_00),
    *(Version(sdk, cores) for sdk in (SDK_09_02, SDK_10_00) for cores in (1, 2, 4)),
)


def version_of(sdk: str, cores: int = 1) -> Version:
    """Return the version of a release such as "09_02" or "11_01". Raises ModelError.

    cores: of the device; from 11_02 on there is room for four on each device.
    """
    at = max((s for s in SDKS if s <= sdk), default="")
    wanted = Version(at, 4 if sdk >= "11_02" else cores)
    if wanted not in VERSIONS:
        known = ", ".join(f"{v.sdk} ({v.cores})" for v in VERSIONS)
        raise ModelError(
            f"no layout of sTIDL_IOBufDesc_t is known for SDK {sdk!r} with {cores} cores. Known are,"
            f" by first release (cores): {known}."
        )
    return wanted


def version_of_size(nbytes: int) -> Version:
    """Return the version of a structure of so many bytes. Raises ModelError where there is none."""
    for version in VERSIONS:
        if version.nbytes == nbytes:
            return version
    known = ", ".join(str(v.nbytes) for v in VERSIONS)
    raise ModelError(
        f"{nbytes} bytes are no sTIDL_IOBufDesc_t: its versions have {known} bytes. The file is cut"
        " short, is another one, or is of an SDK that is not known."
    )
