"""The `clnn` command: finds its subcommands in this package and runs one.

A subcommand is a module with `add_parser(subparsers)` and `run(args) -> int`, named as the
command, whose docstring begins "`clnn NAME`: what it does." Exit status: 0 all well, 1 a check
failed, 2 wrong use or user error, 3 no device.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import os
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import clnn.cli
from clnn import logs
from clnn._version import __version__
from clnn.errors import ClnnError, NoDeviceError, UnsupportedOpError
from clnn.settings import setting, warn_unknown

EXIT_USER_ERROR, EXIT_NO_DEVICE, EXIT_INTERRUPTED = 2, 3, 130


def names() -> list[str]:
    """Return the names of all subcommands, in alphabetical order."""
    found = (info.name for info in pkgutil.iter_modules(clnn.cli.__path__))
    return sorted(name for name in found if name != "main" and not name.startswith("_"))


def summary(name: str) -> str:
    """Return what a subcommand does, from its docstring; the module is not imported."""
    spec = importlib.util.find_spec(f"clnn.cli.{name}")
    source = getattr(spec and spec.loader, "get_source", lambda _: "")(f"clnn.cli.{name}")
    first = (ast.get_docstring(ast.parse(source or "")) or "").partition("\n")[0]
    return first.partition(": ")[2].rstrip(".")


def parser_for(wanted: str) -> tuple[argparse.ArgumentParser, ModuleType | None]:
    """Return the parser of `clnn` with subcommand `wanted` in full, and that one's module.

    Where there is no such subcommand, the parser lists all of them, and imports none.
    """
    parser = argparse.ArgumentParser(
        prog="clnn",
        description="Neural-network inference on any OpenCL device.",
        epilog="Exit status: 0 all well, 1 a check failed, 2 wrong use, 3 no device.",
    )
    parser.add_argument("--version", action="version", version=f"clnn {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    if wanted in names():
        module = importlib.import_module(f"clnn.cli.{wanted}")
        module.add_parser(subparsers)
        return parser, module
    for name in names():
        subparsers.add_parser(name, help=summary(name))
    return parser, None


def main(argv: Sequence[str] | None = None) -> int:
    """Run `clnn` with `argv` (default: the process's own); return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser, module = parser_for(words[0] if words else "")
    args = parser.parse_args(words)
    if module is None:
        parser.error("COMMAND must come first")
    shown = warnings.showwarning
    warnings.showwarning = _Warnings()
    try:
        return _run(module, args)
    finally:
        warnings.showwarning = shown


def _run(module: ModuleType, args: argparse.Namespace) -> int:
    try:
        logs.configure(always=True)
        warn_unknown()
        with _shown_builds():
            return int(module.run(args))
    except BrokenPipeError:
        # Nobody reads on; keep Python from failing again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ClnnError, OSError) as err:
        if _wants_traceback():
            raise
        if isinstance(err, UnsupportedOpError):
            from clnn.cli._common import needs_one_plan

            err = needs_one_plan(args) or err
        print(f"{type(err).__name__}: {err}{_hint(err)}", file=sys.stderr)
        return EXIT_NO_DEVICE if isinstance(err, NoDeviceError) else EXIT_USER_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _shown_builds() -> AbstractContextManager[None]:
    """Return what shows on a terminal, meanwhile, how far the building of kernels is."""
    from clnn.cli._progress import building
    from clnn.runtime.build.progress import heard

    return heard(building if sys.stderr.isatty() else None)


def _hint(err: Exception) -> str:
    """Return how to write on the command line what a message says in Python."""
    if "shapes=" in str(err):
        return "\nHere: --shape NAME:1,3,224,224 or --shape DIMENSION:4"
    return ""


class _Warnings:
    """Shows each warning once, on one line of standard error."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def __call__(self, message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in self._told:
            self._told.add(str(message))
            print(f"warning: {message}", file=sys.stderr)


def _wants_traceback() -> bool:
    try:
        return int(setting("CLNN_DEBUG")) > 0
    except ClnnError:
        return False


if __name__ == "__main__":
    sys.exit(main())
