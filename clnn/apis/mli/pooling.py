"""Pooling kernels of MLI."""

from __future__ import annotations

from typing import Any

from clnn.apis.mli import checks
from clnn.apis.mli.checks import CONFIG, FX8, FX16, SA8, SHAPE, SPECIAL, need
from clnn.apis.mli.config import MliPoolCfg
from clnn.apis.mli.engine import Builder, named, run
from clnn.apis.mli.mac import Placed, crop, outs_of
from clnn.apis.mli.modes import modes
from clnn.apis.mli.tensor import MliTensor
from clnn.arith.mli_pool import AverageRule
from clnn.graph.ir import Graph
from clnn.ops.pool.spec import Pool

FORMATS = {"fx8": FX8, "fx16": FX16, "sa8": SA8}


def _placed(cfg: MliPoolCfg) -> Placed:
    kernel = (cfg.kernel_height, cfg.kernel_width)
    strides = (cfg.stride_height, cfg.stride_width)
    before = (cfg.padding_top, cfg.padding_left)
    after = (cfg.padding_bottom, cfg.padding_right)
    need(
        min(*kernel, *strides) >= 1, CONFIG, f"window {kernel} and strides {strides} must be >= 1."
    )
    inside = all(0 <= p < k for p, k in zip((*before, *after), (*kernel, *kernel), strict=True))
    need(
        inside, CONFIG, f"padding {before}, {after} must be within 0..window - 1, window {kernel}."
    )
    return Placed(kernel, strides, (1, 1), before, after)


def _pool(
    mode: str, fmt: str, fixed: tuple[int, ...], given: MliTensor, cfg: MliPoolCfg, out: MliTensor
) -> None:
    """Take the largest element, or the average of those inside of the image, of each window."""
    checks.config(cfg, MliPoolCfg)
    for tensor, name in ((given, "in"), (out, "out")):
        checks.typed(tensor, name, FORMATS[fmt])
        checks.rank(tensor, name, 3)
        checks.unit_stride(tensor, name)
        checks.per_tensor(tensor, name)
    checks.apart(given, out, "in")
    need(given.shape[2] == out.shape[2], SHAPE, f"in is {given.shape}, out is {out.shape}.")
    place = _placed(cfg)
    if fixed:
        need(
            place.kernel == fixed,
            SPECIAL,
            f"the window is {place.kernel}, the kernel's is {fixed}.",
        )
    outs_of(place, given, out)
    x = crop(place, given, out)
    spec: Any = Pool(place.window(x.shape[:2], out.shape[:2]), mode)
    if mode == "average":
        rule = AverageRule(given.quant(), out.quant(), modes().avepool_16bit_mul, modes().up)
        spec = Pool(spec.window, mode, rule=rule)

    def make() -> Graph:
        build = Builder()
        value = build.image(build.input("x", x.shape, x.dtype))
        return build.graph({"y": build.from_image(build.add(spec, value))})

    out.view()[...] = run(("pool", spec, x.shape), make, {"x": x})["y"]
    if mode == "max":
        out.el_params = given.el_params


for _name, _mode in (("maxpool", "max"), ("avepool", "average")):
    for _fmt in FORMATS:
        for _suffix, _fixed in (("", ()), ("_k2x2", (2, 2)), ("_k3x3", (3, 3))):
            _full = f"mli_krn_{_name}_hwc_{_fmt}{_suffix}"
            globals()[_full] = named(_pool, _full, _mode, _fmt, _fixed)
