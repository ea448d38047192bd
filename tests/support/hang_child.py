"""A process whose device hangs: it says how it went on, and ends. Its argument: the device."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from hanging import Hanging
from small_graphs import Builder

import clnn
from clnn.errors import DeviceLostError

TIMEOUT_S = 3.0


def main() -> None:
    b = Builder(x=(1, 8, 16, 16))
    graph = b.graph(b.post_ops("relu", b.conv("x", 8)))
    feed = {"x": np.ones((1, 8, 16, 16), np.float32)}
    hanging = Hanging()
    hanging.__enter__()  # and never lets go
    session = clnn.compile_model(graph, sys.argv[1], clnn.Options(timeout=TIMEOUT_S))
    want = session(feed)["out0"]
    hanging.armed = True
    said: dict[str, object] = {}
    for what in ("first", "second"):
        began = time.monotonic()
        try:
            session(feed)
        except DeviceLostError as err:
            said[what] = str(err)
        said[f"{what} s"] = time.monotonic() - began
    began = time.monotonic()
    session.close()
    said["close s"] = time.monotonic() - began
    hanging.armed = False
    with clnn.compile_model(graph, sys.argv[1]) as other:
        said["other is right"] = bool((other(feed)["out0"] == want).all())
    print(json.dumps(said), flush=True)
    sys.exit(7)


if __name__ == "__main__":
    main()
