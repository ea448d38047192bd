"""What PoCL 3 need not read of a program's binary.

Such a binary holds the machine code of the program's kernels, and the compiler's intermediate code of the whole
program, from which PoCL makes kernels for fixed work-groups where it is asked to. Reading that takes most of
the time in which a program is loaded. A file in the binary is its path and its bytes, each behind a count:

    "poclbin\0"  device id (8)  version (4)  kernels (4)  flags (12)  folder (41)
    bytes of the program's files (8)  "/program.bc"
    of each kernel: ...  "/NAME/0-0-0/NAME.so", machine code for any work-group

The folder, in PoCL's own cache, is where the files go, and where a build of the same source looks for what was built
before: without that code, a binary has another.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct

MAGIC, VERSION = b"poclbin\0", 9
_VERSION_AT, _FOLDER_AT, _FILES_AT = 16, 36, 77
_FOLDER = re.compile(rb"[A-P]{2}/[A-P]{37}\0")
_PATH = b"/program.bc"
_CODE = b"BC\xc0\xde"  # what the compiler's code begins with
# Such code of nothing: an identification block and a module block with the version of its records.
NOTHING = _CODE + bytes.fromhex("350c0000030000000b8871600777708709010000210c0000010000000b820000")
_ANY_GROUP = re.compile(rb"/([^/\0]+)/0-0-0/\1\.so")
_SPECIALISES = "POCL_WORK_GROUP_SPECIALIZATION"


def quick_to_load(binary: bytes) -> bytes:
    """Return a binary without the intermediate code; as it is where that may be needed, or is not of this form."""
    if os.environ.get(_SPECIALISES) != "0" or not binary.startswith(MAGIC):
        return binary
    try:
        version, kernels = struct.unpack_from("<II", binary, _VERSION_AT)
        whole, path = struct.unpack_from("<QI", binary, _FILES_AT)
        begin = _FILES_AT + 8
        code = begin + 4 + len(_PATH) + 4
        (size,) = struct.unpack_from("<I", binary, code - 4)
    except struct.error:
        return binary
    end = begin + whole
    is_such = (
        version == VERSION
        and _FOLDER.match(binary, _FOLDER_AT)
        and path == len(_PATH)
        and binary[code - 4 - path : code - 4] == _PATH
        and binary[code : code + len(_CODE)] == _CODE
        and code + size == end <= len(binary)
    )
    if not is_such or len(_ANY_GROUP.findall(binary, end)) != kernels:
        return binary
    files = struct.pack("<I", path) + _PATH + struct.pack("<I", len(NOTHING)) + NOTHING
    head = binary[:_FOLDER_AT] + _another(binary[_FOLDER_AT:_FILES_AT])
    return head + struct.pack("<Q", len(files)) + files + binary[end:]


def with_id_of(sample: bytes, binary: bytes) -> bytes | None:
    """Return a binary for the device of another one, None where either is not of this form."""
    if not all(one.startswith(MAGIC) and len(one) > _FILES_AT for one in (sample, binary)):
        return None
    if sample[_VERSION_AT : _VERSION_AT + 4] != struct.pack("<I", VERSION):
        return None
    return MAGIC + sample[len(MAGIC) : _VERSION_AT] + binary[_VERSION_AT:]


def _another(folder: bytes) -> bytes:
    """Return a folder's name of the same form that follows from one."""
    digest = hashlib.sha1(folder, usedforsecurity=False).digest()
    letters = bytes(ord("A") + half for byte in digest for half in (byte >> 4, byte & 15))
    return letters[:2] + b"/" + letters[2:39] + b"\0"
