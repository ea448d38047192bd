"""Keys of cache entries: SHA-256 over length-prefixed fields, so that no two inputs collide."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

_KEY = re.compile(r"[0-9a-f]{64}")


def is_key(text: str) -> bool:
    """Tell whether `text` is a key: 64 lower-case hexadecimal digits."""
    return _KEY.fullmatch(text) is not None


def fields_key(domain: str, fields: Iterable[str | bytes]) -> str:
    """Return the key of an ordered list of fields.

    `domain` names what is keyed; equal fields of two domains get different keys. Each field is
    hashed with its kind (text or bytes) and its length in front, so that moving a character from
    one field to the next, or splitting a field, changes the key. Text is taken as UTF-8; lone
    surrogates (which undecodable names of drivers become) count as themselves.
    """
    digest = hashlib.sha256()
    for field in (domain, *fields):
        data = field.encode("utf-8", "surrogatepass") if isinstance(field, str) else field
        digest.update(b"s" if isinstance(field, str) else b"b")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def program_key(
    source: str | bytes,
    options: str | Sequence[str],
    device_name: str,
    driver_version: str,
    platform_version: str,
    abi: str,
) -> str:
    """Return the key of a built program: all that decides what its binary is.

    `options` are the build options, as one text or as a list in order; `abi` names the version
    of what clnn itself expects of a binary and its meta data.
    """
    listed = [options] if isinstance(options, str) else list(options)
    return fields_key(
        "clnn program",
        [source, *listed, device_name, driver_version, platform_version, abi],
    )
