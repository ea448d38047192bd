"""The `clnn` command: finds its subcommands in this package and runs one.

A subcommand is a module with `add_parser(subparsers)` and `run(args) -> int`, named as the
command. Exit status: 0 all well, 1 a check failed, 2 wrong use or user error, 3 no device.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

import clnn.cli
from clnn._version import __version__
from clnn.errors import ClnnError, NoDeviceError
from clnn.settings import setting

EXIT_USER_ERROR, EXIT_NO_DEVICE, EXIT_INTERRUPTED = 2, 3, 130


def subcommands() -> dict[str, ModuleType]:
    """Return name -> module of every subcommand, in alphabetical order."""
    names = sorted(info.name for info in pkgutil.iter_modules(clnn.cli.__path__))
    modules = {
        name: importlib.import_module(f"clnn.cli.{name}") for name in names if name != "main"
    }
    return {name: module for name, module in modules.items() if hasattr(module, "add_parser")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `clnn` with `argv` (default: the process's own); return the exit status."""
    parser = argparse.ArgumentParser(
        prog="clnn", description="Neural-network inference on any OpenCL device."
    )
    parser.add_argument("--version", action="version", version=f"clnn {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = subcommands()
    for module in modules.values():
        module.add_parser(subparsers)
    args = parser.parse_args(argv)
    try:
        return int(modules[args.command].run(args))
    except ClnnError as err:
        if _wants_traceback():
            raise
        print(f"{type(err).__name__}: {err}", file=sys.stderr)
        return EXIT_NO_DEVICE if isinstance(err, NoDeviceError) else EXIT_USER_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _wants_traceback() -> bool:
    try:
        return int(setting("CLNN_DEBUG")) > 0
    except ClnnError:
        return False


if __name__ == "__main__":
    sys.exit(main())
