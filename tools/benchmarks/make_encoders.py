#!/usr/bin/env python3
"""Export transformers with seeded random weights, whose batch and length stay open.

    python tools/benchmarks/make_encoders.py OUT [NAME ...] [--layers N] [--width N]

Wants torch, transformers, onnxscript, onnx and onnxruntime in the environment that runs it; clnn itself
wants none of the first three. What was exported is refused where onnxruntime does not take it at another
batch and length, which some exporters leave as numbers. tools/benchmarks/check_shapes.py runs them, such as

    python tools/benchmarks/check_shapes.py OUT/bert.onnx --dims length=1:512 batch=1:64 --integers ids=999
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

WORDS, LENGTH, HEADS = 1000, 512, 4
BATCH_NAME, LENGTH_NAME = "batch", "length"
Build = Callable[[int, int], Any]


def bert(layers: int, width: int) -> Any:
    """Return the encoder of transformers, of token numbers and a mask of those that count."""
    import transformers as hf

    config = hf.BertConfig(
        vocab_size=WORDS,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        intermediate_size=4 * width,
        max_position_embeddings=LENGTH,
        attn_implementation="eager",
    )
    return _first_of(hf.BertModel(config, add_pooling_layer=False), "attention_mask")


def gpt(layers: int, width: int) -> Any:
    """Return a decoder of transformers, each of whose tokens sees those before it."""
    import transformers as hf

    config = hf.GPT2Config(
        vocab_size=WORDS,
        n_embd=width,
        n_layer=layers,
        n_head=HEADS,
        n_positions=LENGTH,
        use_cache=False,
        attn_implementation="eager",
    )
    return _first_of(hf.GPT2Model(config), None)


def torch_encoder(layers: int, width: int) -> Any:
    """Return torch's own encoder, with learned positions and a mask of tokens that do not count."""
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(WORDS + 1, width)
            self.places = torch.nn.Embedding(LENGTH, width)
            layer = torch.nn.TransformerEncoderLayer(width, HEADS, 4 * width, batch_first=True)
            self.encoder = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

        def forward(self, ids: Any, mask: Any) -> Any:
            x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
            return self.encoder(x, src_key_padding_mask=mask < 1)

    return Encoder()


def _first_of(model: Any, mask: str | None) -> Any:
    """Return a module of token numbers, and of a mask where there is one, that gives the last states."""
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, given: Any = None) -> Any:
            more = {} if mask is None else {mask: given}
            return self.model(input_ids=ids, **more).last_hidden_state

    return Encoder()


# name -> how it is made, whether it takes a mask, and whether torch's newer exporter writes it
MODELS: Mapping[str, tuple[Build, bool, bool]] = {
    "bert": (bert, True, False),
    "bert_dynamo": (bert, True, True),
    "torch_encoder": (torch_encoder, True, True),
    "gpt": (gpt, False, True),
}


def export(name: str, path: Path, layers: int, width: int) -> None:
    """Write one model. Raises what onnxruntime does where its batch or length is a number in the file."""
    import torch

    build, has_mask, dynamo = MODELS[name]
    torch.manual_seed(0)
    model = build(layers, width).eval()
    torch.backends.mha.set_fastpath_enabled(False)
    ids = torch.randint(1, WORDS, (3, 11))
    inputs = {"ids": ids, **({"mask": torch.ones_like(ids)} if has_mask else {})}
    axes = {0: BATCH_NAME, 1: LENGTH_NAME}
    how: dict[str, Any] = {"opset_version": 18, "external_data": False} if dynamo else {}
    if dynamo:
        dims = {0: torch.export.Dim(BATCH_NAME), 1: torch.export.Dim(LENGTH_NAME, max=LENGTH)}
        how["dynamic_shapes"] = tuple(dims for _ in inputs)
    else:
        how = {"opset_version": 17, "dynamic_axes": dict.fromkeys([*inputs, "states"], axes)}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            tuple(inputs.values()),
            str(path),
            dynamo=dynamo,
            input_names=[*inputs],
            output_names=["states"],
            **how,
        )
    engine = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for shape in ((1, 1), (2, 7), (5, 40)):
        engine.run(None, {name: np.ones(shape, np.int64) for name in inputs})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or MODELS:
        export(name, args.out / f"{name}.onnx", args.layers, args.width)
        print(args.out / f"{name}.onnx", flush=True)


if __name__ == "__main__":
    main()
