#!/usr/bin/env python3
"""Export torchvision's detectors with seeded random weights, as networks that data shapes.

    python tools/benchmarks/make_detectors.py OUT [NAME ...] [--size PIXELS]

Wants torch, torchvision and onnx in the environment that runs it; clnn itself wants none of the
first two. Class scores are spread, so that their order does not hang on the last bit, and
thresholds are lowered, so that boxes come out. tools/benchmarks/check_detectors.py runs them.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPSET = 17
SCORES = re.compile(r".*((cls_score|cls_logits)|classification_head\.module_list\.\d\.1)\.weight")
# Standard deviation of the weights that make class scores: neither all alike nor all 1.
SPREAD = {"ssdlite": 0.3, "retinanet": 0.003, "faster_rcnn": 0.02, "keypoint_rcnn": 0.002}
UNSCALED = ("ssdlite", "faster_rcnn_mobile")  # their activations vanish as they are made


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


def export(model: Any, path: Path, size: int) -> None:
    """Write a detector that takes one image of size x size."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "backbone" in name and parameter.ndim == 4 and path.stem in UNSCALED:
                torch.nn.init.kaiming_normal_(parameter)
            if SCORES.fullmatch(name):
                parameter.normal_(0, SPREAD.get(path.stem, 0.05))
    image = torch.rand(3, size, size)
    with torch.no_grad():
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
