#!/usr/bin/env python3
"""Export networks of torchvision, timm and transformers with seeded random weights, to measure with.

    python tools/benchmarks/make_zoo.py OUT [NAME | KIND ...] [--batch N] [--list]

Wants torch, torchvision and onnx in the environment that runs it, timm and transformers for networks of
theirs (others are made without them); clnn itself wants none of these. A file is named KIND-NAME.onnx:
plain, grouped, depthwise, transformer, segmentation, detection, video or text. Those that stand already are
left as they are; one that cannot be made is left out and said so, and the exit status is 1. Detectors are
those of make_detectors.py.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import make_detectors

OPSET = 17
IMAGE = (3, 224, 224)
TOKENS = 128
# Kind -> names of networks; SOURCE:NAME where it is not torchvision's.
ZOO = {
    "plain": (
        *(
            "alexnet",
            "vgg11",
            "vgg16_bn",
            "resnet18",
            "resnet34",
            "resnet50",
            "resnet101",
            "wide_resnet50_2",
        ),
        *(
            "densenet121",
            "googlenet",
            "inception_v3",
            "squeezenet1_0",
            "timm:repvgg_a2",
            "timm:cspdarknet53",
        ),
        *("timm:res2net50_26w_4s", "timm:dla34", "timm:hrnet_w18_small"),
    ),
    "grouped": (
        *(
            "resnext50_32x4d",
            "regnet_x_800mf",
            "regnet_x_1_6gf",
            "regnet_y_400mf",
            "regnet_y_800mf",
        ),
        *("timm:resnest14d", "timm:seresnext26d_32x4d"),
    ),
    "depthwise": (
        *(
            "mobilenet_v2",
            "mobilenet_v3_small",
            "mobilenet_v3_large",
            "mnasnet1_0",
            "shufflenet_v2_x1_0",
        ),
        *(
            "efficientnet_b0",
            "efficientnet_v2_s",
            "timm:ghostnet_100",
            "timm:tinynet_a",
            "timm:fbnetc_100",
        ),
        *("timm:mobilenetv4_conv_small", "timm:lcnet_100", "timm:repghostnet_100"),
    ),
    "transformer": (
        *(
            "vit_b_16",
            "swin_t",
            "swin_v2_t",
            "convnext_tiny",
            "maxvit_t",
            "timm:deit_tiny_patch16_224",
        ),
        *(
            "timm:poolformer_s12",
            "timm:fastvit_t8",
            "timm:efficientformer_l1",
            "timm:xcit_tiny_12_p16_224",
        ),
        *("timm:edgenext_small", "timm:coatnet_0_rw_224", "timm:mobilevit_s", "timm:levit_128"),
        *("timm:pvt_v2_b0", "timm:mixer_s32_224", "timm:convmixer_768_32"),
    ),
    "segmentation": (
        *("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "fcn_resnet50"),
        "transformers:segformer",
    ),
    "detection": ("ssdlite", "retinanet", "faster_rcnn_mobile"),
    "video": ("r3d_18", "mc3_18", "r2plus1d_18"),
    "text": ("transformers:bert", "transformers:distilbert", "transformers:clip_text"),
}
LIBRARIES: list[Any] = []  # of names of operators, which hold as long as these do
MISSING = re.compile(r"operator torchvision::(\w+) does not exist")


@dataclass(frozen=True)
class Made:
    """A network, what it is called with, and the names of its inputs and outputs."""

    model: Any
    inputs: tuple[Any, ...]
    names: tuple[str, ...] = ("image",)
    outputs: tuple[str, ...] = ("out",)


def main() -> int:
    args = _arguments()
    chosen = [
        (kind, name)
        for kind, names in ZOO.items()
        for name in names
        if not args.chosen or kind in args.chosen or _plain(name) in args.chosen
    ]
    if args.list:
        print("\n".join(f"{kind}-{_plain(name)}" for kind, name in chosen))
        return 0
    warnings.filterwarnings("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    missing = 0
    for kind, name in chosen:
        path = args.out / f"{kind}-{_plain(name)}.onnx"
        if path.exists():
            continue
        try:
            _export(kind, name, path, args.batch)
        except Exception as err:  # of this network alone: the others are made
            print(f"{path.name} is left out: {str(err).splitlines()[0]}", flush=True)
            missing += 1
            continue
        print(f"{path} {path.stat().st_size / 1e6:.1f} MB", flush=True)
    return int(missing > 0)


def _export(kind: str, name: str, path: Path, batch: int) -> None:
    import torch

    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # its operator has no form in ONNX
    _need_torchvision()
    if kind == "detection":
        make_detectors.export(make_detectors.builders(320)[name]().eval(), path, 320)
        return
    source, _, plain = name.rpartition(":")
    made = MAKERS[source](kind, plain, batch)
    _settle(made.model)
    part = path.with_suffix(".part")
    with torch.no_grad():
        torch.onnx.export(
            made.model,
            made.inputs,
            str(part),
            opset_version=OPSET,
            dynamo=False,
            input_names=list(made.names),
            output_names=list(made.outputs),
        )
    part.rename(path)


def _settle(model: Any) -> None:
    """Give statistics of normalisations values as training leaves them: not all alike."""
    import torch

    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
    model.eval()


def _from_torchvision(kind: str, name: str, batch: int) -> Made:
    import torch
    from torchvision import models

    space: Any = {"segmentation": models.segmentation, "video": models.video}.get(kind, models)
    more: dict[str, Any] = {"weights": None}
    if kind == "segmentation":
        more["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        more |= {"init_weights": False, "aux_logits": False}
    shape = {"video": (3, 8, 112, 112), "segmentation": (3, 256, 256)}.get(kind, IMAGE)
    shape = (3, 299, 299) if name == "inception_v3" else shape
    model = getattr(space, name)(**more).eval()
    return Made(_single(model) if kind == "segmentation" else model, (torch.rand(batch, *shape),))


def _from_timm(kind: str, name: str, batch: int) -> Made:
    import timm
    import torch

    size = 256 if name in ("fastvit_t8", "mobilevit_s", "edgenext_small") else 224
    return Made(
        timm.create_model(name, exportable=True).eval(), (torch.rand(batch, 3, size, size),)
    )


def _from_transformers(kind: str, name: str, batch: int) -> Made:
    import torch
    import transformers as hf

    if name == "segformer":
        config = hf.SegformerConfig(num_labels=150)
        return Made(
            _single(hf.SegformerForSemanticSegmentation(config)), (torch.rand(batch, 3, 256, 256),)
        )
    tokens = torch.randint(0, 1000, (batch, 77 if name == "clip_text" else TOKENS))
    models = {
        "bert": lambda: hf.BertModel(hf.BertConfig(num_hidden_layers=4)),
        "distilbert": lambda: hf.DistilBertModel(hf.DistilBertConfig(n_layers=4)),
        "clip_text": lambda: hf.CLIPTextModel(hf.CLIPTextConfig(num_hidden_layers=4)),
    }
    inputs = (tokens, torch.ones_like(tokens))
    return Made(_single(models[name]()), inputs, ("input_ids", "attention_mask"))


MAKERS: dict[str, Callable[[str, str, int], Made]] = {
    "": _from_torchvision,
    "timm": _from_timm,
    "transformers": _from_transformers,
}


def _single(model: Any) -> Any:
    """Return the model as one that gives the first of its outputs alone."""
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *inputs: Any) -> Any:
            return next(iter(self.inner(*inputs).values()))

    return First().eval()


def _need_torchvision() -> None:
    """Import torchvision, also one whose compiled operators do not fit this torch: it asks for their names."""
    import torch

    while "torchvision" not in sys.modules:
        try:
            import torchvision  # noqa: F401
        except RuntimeError as err:
            missing = MISSING.search(str(err))
            if missing is None:
                raise
            LIBRARIES.append(torch.library.Library("torchvision", "FRAGMENT"))
            LIBRARIES[-1].define(f"{missing[1]}(Tensor given) -> Tensor")
            for module in [name for name in sys.modules if name.startswith("torchvision")]:
                del sys.modules[module]


def _plain(name: str) -> str:
    return name.rpartition(":")[2]


def _arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the files")
    parser.add_argument("chosen", nargs="*", metavar="NAME", help="names or kinds (default: all)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the names of the files alone")
    args = parser.parse_args(given)
    known = {*ZOO, *(_plain(name) for names in ZOO.values() for name in names)}
    if unknown := [name for name in args.chosen if name not in known]:
        parser.error(f"{', '.join(unknown)}: no network or kind of this name. See --list.")
    return args


if __name__ == "__main__":
    sys.exit(main())
