"""Whether a cache folder is its user's own: who may write to it decides what programs run.

As ssh does with its files: a folder must belong to the user or to root, and nobody else may write to
it. Its group may where that is the user's private group (the name of the user, no other members), as
a umask of 0002 has it. A symbolic link in the folder's place is refused. Folders above it may belong
to anybody and be writable for a group, but not for all, unless they are sticky as /tmp is.
"""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path


class CacheWarning(UserWarning):
    """The cache cannot do all of its work; results are not affected, only build times."""


_told: set[Path] = set()
_proven: set[Path] = set()


def tell(root: Path, text: str) -> None:
    """Warn of a cache folder: once for each, whatever is wrong with it and whoever meets it."""
    if root not in _told:
        _told.add(root)
        warnings.warn(text, CacheWarning, stacklevel=2)


def forget() -> None:
    """Forget what is known of all folders, as a new process does."""
    _told.clear()
    _proven.clear()


def is_private(root: Path, *inside: Path) -> bool:
    """Whether the cache folder `root` may be used; warns of one that may not.

    inside: folders in it on the way to what is read. Those that are not there yet are fine: clnn makes
    them, for their owner only.
    """
    folders = (root, *inside)
    if _proven.issuperset(folders):
        return True
    why = why_not(root)
    for folder in inside:
        why = why or _why_not_own(folder)
    if why:
        tell(
            root,
            f"the cache folder {why}. Whoever can write there decides what this process runs, so no"
            f" cache is used: programs are built anew each time. {advice(root)}",
        )
        return False
    _proven.update(folder for folder in folders if os.path.isdir(folder))
    return True


def why_not(root: Path) -> str:
    """Return why the cache folder `root` is not its user's own, "" where it is or is not there."""
    return _why_not_own(root) or _why_not_above(root)


def advice(root: Path) -> str:
    """Return what to do about such a folder."""
    return (
        f"Make it yours (chown, chmod 700 {root}) after removing what others may have put there, or"
        " set CLNN_CACHE_DIR to another folder."
    )


def is_own(info: os.stat_result) -> bool:
    """Whether a file or folder belongs to the user or to root, and nobody else may write to it."""
    return not _why_not_info(info)


def _why_not_own(folder: Path) -> str:
    try:
        info = os.lstat(folder)
    except OSError:  # whoever uses it says what is wrong
        return ""
    if stat.S_ISLNK(info.st_mode):
        return f"{folder} is a symbolic link. Name the folder itself"
    why = _why_not_info(info) if stat.S_ISDIR(info.st_mode) else ""
    return why and f"{folder} {why}"


def _why_not_info(info: os.stat_result) -> str:
    if not hasattr(os, "geteuid"):
        return ""
    if info.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({info.st_uid}, this one is {os.geteuid()})"
    mode = stat.S_IMODE(info.st_mode)
    if mode & stat.S_IWOTH:
        return f"can be written by all users (mode {mode:04o})"
    if mode & stat.S_IWGRP and not _is_private_group(info.st_gid):
        return f"can be written by its group {info.st_gid} (mode {mode:04o})"
    return ""


def _why_not_above(root: Path) -> str:
    """Return which folder above would let all users put another one in the place of `root`."""
    for folder in root.resolve().parents:
        try:
            mode = os.stat(folder).st_mode
        except OSError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"{root} can be replaced by all users, who can write to {folder}"
    return ""


def _is_private_group(gid: int) -> bool:
    """Whether a group is that of the user alone."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    alone = {user.pw_name}.issuperset(group.gr_mem)
    return user.pw_gid == gid and group.gr_name == user.pw_name and alone
