"""What the commands on a model share: arguments, input data, and how results are written."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.errors import ClnnError, SettingError, UnsupportedOpError
from clnn.options import DTYPES, Options

if TYPE_CHECKING:
    from clnn.runtime.run.session import Session
    from clnn.runtime.stages.session import StagedSession
    from clnn.types import Array

STDOUT = "-"
# Commands that take models that run in stages, too.
TAKE_STAGES = ("inspect", "run", "bench", "profile", "verify")
Shape = tuple[str, "tuple[int, ...] | int"]


def add_model(parser: argparse.ArgumentParser, *option: str) -> None:
    """Add MODEL and the options on how it is compiled. option: names of the one for compile options."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="an .onnx, .espdl or .clnn file")
    parser.add_argument(
        "-d",
        "--device",
        metavar="DEVICE",
        help="auto, cpu, gpu, an index of `clnn devices`, or part of a name",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        type=shape_option,
        metavar="NAME:1,3,224,224",
        help="shape of an input, or extent of a symbolic dimension (NAME:4)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="storage and products: f32; tf32: products may round operands; 16 bits: f16 or bf16;"
        " int8: quantised, with -o calibration=FILE of `clnn calibrate`",
    )
    parser.add_argument(
        *(option or ("-o", "--option")),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"compile option: {', '.join(f.name for f in fields(Options))}",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="write JSON to FILE, or print it in place of the text",
    )
    parser.set_defaults(usage=parser)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the options that give input data."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="data of an input, or a FILE.npz with several; others are random",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")


def settle(args: argparse.Namespace) -> None:
    """Take `--json MODEL` for what it means; ends the program where there is no MODEL."""
    if args.model is None and args.json not in (None, STDOUT):
        args.model, args.json = args.json, STDOUT
    if args.model is None:
        args.usage.error("the following arguments are required: MODEL")


def shape_option(text: str) -> Shape:
    """Parse NAME:1,3,224,224 (a shape; NAME:4, is one axis) or NAME:4 (a dimension)."""
    name, colon, dims = text.rpartition(":")
    try:
        numbers = tuple(int(d) for d in dims.rstrip(",").split(",")) if dims else ()
    except ValueError:
        numbers = (-1,)
    if not (colon and name) or any(n < 0 for n in numbers):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape. Write NAME:1,3,224,224, or DIMENSION:4."
        )
    return name, numbers[0] if len(numbers) == 1 and not dims.endswith(",") else numbers


def shapes_of(args: argparse.Namespace) -> dict[str, tuple[int, ...] | int]:
    """Return the --shape options as compile_fixed wants them."""
    return dict(args.shape)


def options_of(args: argparse.Namespace) -> Options:
    """Return the --option and --dtype values as Options; --dtype wins. Raises SettingError for what is not allowed."""
    kinds = {f.name: float if f.default is None else type(f.default) for f in fields(Options)}
    values: dict[str, Any] = {}
    for text in args.option:
        name, _, value = text.partition("=")
        if name not in kinds:
            close = difflib.get_close_matches(name, kinds, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise SettingError(f"no option is named {name!r}. There are: {', '.join(kinds)}.{hint}")
        values[name] = _parsed(name, value, kinds[name])
    return Options(**(values | ({"dtype": args.dtype} if args.dtype else {})))


def _parsed(name: str, value: str, kind: type) -> Any:
    if kind is bool:
        if value.lower() not in ("true", "false", "1", "0"):
            raise SettingError(f"option {name} is {value!r}. It must be true or false.")
        return value.lower() in ("true", "1")
    if kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise SettingError(f"option {name} is {value!r}. It must be {what}.") from None
    return value


def compile_from(args: argparse.Namespace, options: Options | None = None) -> Session:
    """Return the session that the arguments ask for. Raises as compile_fixed does."""
    from clnn.entry import compile_fixed

    options = options or options_of(args)
    return compile_fixed(args.model, args.device, options, shapes_of(args))


def compile_any(args: argparse.Namespace) -> Session | StagedSession:
    """Return the session that the arguments ask for, of stages where values decide shapes.

    Raises as compile_fixed does.
    """
    from clnn.compile import compile_staged

    try:
        return compile_from(args)
    except UnsupportedOpError:
        options, shapes = options_of(args), shapes_of(args)
        staged = compile_staged(args.model, args.device, options, shapes)
        if staged is None:
            raise
        return staged


def needs_one_plan(args: argparse.Namespace) -> SettingError | None:
    """Return why a command refuses a model that runs in stages; None for others, and where the command takes them."""
    from clnn.api import settled
    from clnn.importers.onnx.stages.build import read_program
    from clnn.importers.onnx.stages.program import is_staged

    if args.command in TAKE_STAGES or getattr(args, "model", None) is None:
        return None
    try:
        shapes = shapes_of(args)
        model, _ = settled(args.model, args.device, options_of(args), shapes)
        if not is_staged(read_program(model, shapes)):
            return None
    except (ClnnError, OSError):
        return None
    return SettingError(
        f"{args.model} runs in stages, as values decide shapes or what runs, and `clnn {args.command}` wants one"
        f" plan. `clnn inspect {args.model}` lists the stages; {', '.join(TAKE_STAGES)} take such a model, as"
        " clnn.compile_model does."
    )


def feeds_of(args: argparse.Namespace, inputs: Sequence[Any]) -> dict[str, Array]:
    """Return data for every input: from --input files, else random. Raises SettingError."""
    from clnn.verification.feeds import random_feeds

    return random_feeds(inputs, args.seed, given_inputs(args.input, [port.name for port in inputs]))


def given_inputs(options: Sequence[str], names: Sequence[str]) -> dict[str, Array]:
    """Return the arrays of --input options. Raises SettingError for a file that is no array."""
    found: dict[str, Array] = {}
    for text in options:
        name, equals, file = text.rpartition("=")
        loaded = load_arrays(Path(file))
        if isinstance(loaded, dict):
            found.update(loaded)
        elif equals and name:
            found[name] = loaded
        elif len(names) == 1:
            found[names[0]] = loaded
        else:
            raise SettingError(
                f"--input {text} does not say which input: write NAME={file}."
                f" The inputs are: {', '.join(map(repr, names))}."
            )
    return found


def load_arrays(path: Path) -> Array | dict[str, Array]:
    """Return the array of an .npy file, or all of an .npz by name. Raises SettingError."""
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else dict(loaded.items())
    except FileNotFoundError:
        raise SettingError(f"no file at {path}. Check the path.") from None
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as err:
        raise SettingError(f"{path} is no .npy or .npz file: {err}.") from err


def save_arrays(path: str, arrays: Mapping[str, Array]) -> None:
    """Write arrays by name to an .npz file; unlike numpy's savez it takes any name."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def write_result(args: argparse.Namespace, data: Any, text: str) -> None:
    """Print `text`; or, as --json says, print the data, or print the text and write the data."""
    if args.json == STDOUT:
        print(json.dumps(plain(data), indent=2, allow_nan=False))
        return
    print(text)
    if args.json:
        Path(args.json).write_text(
            json.dumps(plain(data), indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )


def plain(value: Any) -> Any:
    """Return `value` as JSON data: no numpy, no dataclasses; NaN and infinities as text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def tell(text: str) -> None:
    """Print a remark to standard error, so that output stays fit for machines."""
    print(text, file=sys.stderr)
