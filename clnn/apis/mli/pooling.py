"""Pooling kernels of MLI."""

from __future__ import annotations

from dataclasses import replace

from clnn.apis.images import from_image, to_image
from clnn.apis.mli import checks
from clnn.apis.mli.checks import CONFIG, ELEMENTS, SHAPE, SPECIAL, need
from clnn.apis.mli.config import MliPoolCfg
from clnn.apis.mli.engine import compute, named
from clnn.apis.mli.mac import Placed, crop, outs_of
from clnn.apis.mli.modes import modes
from clnn.apis.mli.tensor import MliTensor
from clnn.arith.mli_pool import AverageRule
from clnn.graph.builder import GraphBuilder
from clnn.ops.pool.spec import Pool


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
    mode: str, fmt: str, fixed: tuple[int, ...], in_: MliTensor, cfg: MliPoolCfg, out: MliTensor
) -> None:
    """Take the largest element, or the average of those inside of the image, of each window."""
    checks.config(cfg, MliPoolCfg)
    for tensor, name in ((in_, "in"), (out, "out")):
        checks.typed(tensor, name, ELEMENTS[fmt])
        checks.rank(tensor, name, 3)
        checks.unit_stride(tensor, name)
        checks.per_tensor(tensor, name)
    checks.apart(in_, out, "in")
    need(in_.shape[2] == out.shape[2], SHAPE, f"in is {in_.shape}, out is {out.shape}.")
    place = _placed(cfg)
    if fixed:
        need(
            place.kernel == fixed,
            SPECIAL,
            f"the window is {place.kernel}, the kernel's is {fixed}.",
        )
    outs_of(place, in_, out)
    x = crop(place, in_, out)
    spec = Pool(place.window(x.shape[:2], out.shape[:2]), mode)
    if mode == "average":
        rule = AverageRule(in_.quant(), out.quant(), modes().avepool_16bit_mul, modes().up)
        spec = replace(spec, rule=rule)

    def ops(build: GraphBuilder, image: str) -> str:
        return to_image(build, build.add(spec, from_image(build, image)))

    out.view()[...] = compute(("pool", spec), ops, x)
    if mode == "max":
        out.el_params = in_.el_params


for _name, _mode in (("maxpool", "max"), ("avepool", "average")):
    for _fmt in ELEMENTS:
        for _suffix, _fixed in (("", ()), ("_k2x2", (2, 2)), ("_k3x3", (3, 3))):
            _full = f"mli_krn_{_name}_hwc_{_fmt}{_suffix}"
            globals()[_full] = named(_pool, _full, _mode, _fmt, _fixed)
