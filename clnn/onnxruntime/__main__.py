"""python -m clnn.onnxruntime PROGRAM ARGS: runs a program with clnn in the place of onnxruntime."""

from __future__ import annotations

import os
import runpy
import sys

from clnn.onnxruntime.install import install

USAGE = """\
python -m clnn.onnxruntime [-m MODULE | PROGRAM] ARGS...

Runs a Python program, or a module as `python -m` does, with clnn.onnxruntime in the place of
onnxruntime. CLNN_DEVICE names the device; CLNN_ORT_FALLBACK=onnxruntime has the real onnxruntime run
models that clnn refuses."""


def main(arguments: list[str]) -> int:
    """Run the program that `arguments` name; return the exit status where it does not end itself."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    install()
    if arguments[0] == "-m":
        if len(arguments) < 2:
            print(USAGE)
            return 2
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    program = arguments[0]
    if not os.path.exists(program):
        print(f"there is no program {program!r}. Give the path of a Python file, or -m MODULE.")
        return 2
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    runpy.run_path(program, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
