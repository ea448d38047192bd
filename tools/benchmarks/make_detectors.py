#!/usr/bin/env python3
"""Export torchvision's detectors with seeded random weights, as networks that data shapes.

    python tools/benchmarks/make_detectors.py OUT [NAME ...] [--size PIXELS]

Wants torch, torchvision and onnx in the environment that runs it; clnn itself wants none of the
first two. Normalisations hold the statistics of a random image, so that values stay of one size as
in trained networks (with torchvision's constants they grow to 1,000, where gates hang on the last
bits). Weights of class scores make these vary by 1, so that their order does not hang on the last
bit either, and thresholds are lowered, so that boxes come out. check_detectors.py runs them.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPSET = 17
SCORES = re.compile(r".*((cls_score|cls_logits)|classification_head\.module_list\.\d\.1)")


def builders(size: int) -> dict[str, Callable[[], Any]]:
    """Return how each detector is made, by name."""
    from torchvision.models import detection

    plain = {"weights": None, "weights_backbone": None}
    sized = {**plain, "min_size": size, "max_size": size}
    return {
        "ssdlite": lambda: detection.ssdlite320_mobilenet_v3_large(**plain, score_thresh=0.005),
        "retinanet": lambda: detection.retinanet_resnet50_fpn(**sized, score_thresh=0.005),
        "faster_rcnn_mobile": lambda: detection.fasterrcnn_mobilenet_v3_large_320_fpn(
            **sized, box_score_thresh=0.005
        ),
        "faster_rcnn": lambda: detection.fasterrcnn_resnet50_fpn(**sized, box_score_thresh=0.005),
        "keypoint_rcnn": lambda: detection.keypointrcnn_resnet50_fpn(
            **sized, box_score_thresh=0.05
        ),
    }


def settle(model: Any, image: Any) -> None:
    """Give normalisations the mean and variance of what the image brings to each, class scores 1."""

    def normalise(layer: Any, values: tuple[Any, ...]) -> None:
        layer.running_mean.copy_(values[0].mean((0, 2, 3)))
        layer.running_var.copy_(values[0].var((0, 2, 3)).clamp(min=1e-3))

    def spread(layer: Any, _: tuple[Any, ...], scores: Any) -> Any:
        layer.weight.div_(scores.std())
        hooks.pop(layer).remove()  # the first level of a pyramid tells for all
        return scores / scores.std()

    hooks = {}
    for name, layer in model.named_modules():
        if hasattr(layer, "running_var"):
            hooks[layer] = layer.register_forward_pre_hook(normalise)
        elif SCORES.fullmatch(name):
            hooks[layer] = layer.register_forward_hook(spread)
    model([image])
    for hook in hooks.values():
        hook.remove()


def export(model: Any, path: Path, size: int) -> None:
    """Write a detector that takes one image of size x size."""
    import torch

    image = torch.rand(3, size, size)
    with torch.no_grad():
        settle(model, image)
        outputs = list(model([image])[0])
    torch.onnx.export(
        model,
        ([image],),
        str(path),
        opset_version=OPSET,
        dynamo=False,
        input_names=["image"],
        output_names=outputs,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the files")
    parser.add_argument("names", nargs="*", help="detectors (default: all)")
    parser.add_argument("--size", type=int, default=320, help="height and width of the image")
    args = parser.parse_args()
    import torch

    warnings.filterwarnings("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    known = builders(args.size)
    for name in args.names or known:
        if name not in known:
            parser.error(f"no detector is named {name!r}. There are: {', '.join(known)}")
        torch.manual_seed(0)
        path = args.out / f"{name}.onnx"
        export(known[name]().eval(), path, args.size)
        print(f"{path} {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
