#!/usr/bin/env python3
"""Export Keras's networks with seeded random weights by tf2onnx, at batch 1.

    python tools/benchmarks/make_keras.py OUT [NAME ...]

Wants tensorflow, keras 3, tf2onnx and onnx in the environment that runs it; clnn itself wants only the last.
Names are those of keras.applications, and of the functions and layers below. Recurrent layers other than
plain LSTMs come out as loops.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
import tf2onnx

L = keras.layers
SIZES = {
    **dict.fromkeys(("DenseNet121", "EfficientNetB0", "EfficientNetV2B0", "MobileNet"), 224),
    **dict.fromkeys(("MobileNetV2", "MobileNetV3Large", "MobileNetV3Small"), 224),
    **dict.fromkeys(("NASNetMobile", "ResNet50", "ResNet50V2"), 224),
    **dict.fromkeys(("InceptionV3", "Xception"), 299),
    "EfficientNetB3": 300,
}
WORDS = 100


def unet() -> Any:
    """Return a small U-Net with transposed convolutions."""
    x = given = L.Input((256, 256, 3))
    kept = []
    for channels in (16, 32, 64):
        x = L.Conv2D(channels, 3, padding="same", activation="relu")(x)
        x = L.Conv2D(channels, 3, padding="same", activation="elu")(x)
        kept.append(x)
        x = L.MaxPooling2D()(x)
    x = L.Conv2D(128, 3, padding="same", dilation_rate=2, activation="swish")(x)
    for channels in (64, 32, 16):
        x = L.Conv2DTranspose(channels, 3, strides=2, padding="same")(x)
        x = L.Conv2D(channels, 3, padding="same")(L.Concatenate()([x, kept.pop()]))
        x = L.LeakyReLU()(x)
    return keras.Model(given, L.Conv2D(4, 1, activation="softmax")(x))


def convlstm() -> Any:
    """Return two convolutional LSTMs over five frames."""
    given = L.Input((5, 16, 16, 3))
    x = L.ConvLSTM2D(8, 3, padding="same", return_sequences=True)(given)
    x = L.TimeDistributed(L.Conv2D(4, 3, strides=2))(x)
    return keras.Model(given, L.ConvLSTM2D(6, 3)(x))


def wavenet() -> Any:
    """Return gated causal convolutions in one dimension."""
    x = given = L.Input((64, 12))
    for dilation in (1, 2, 4, 8):
        gates = [
            L.Conv1D(32, 3, dilation_rate=dilation, padding="causal", activation=name)(x)
            for name in ("tanh", "sigmoid")
        ]
        x = L.Conv1D(12, 1)(L.Multiply()(gates)) + x
    return keras.Model(given, L.Conv1DTranspose(8, 4, strides=2, padding="same")(x))


def encoder() -> Any:
    """Return an encoder of words."""
    given = L.Input((64,), dtype="int32")
    x = L.Embedding(1000, 128)(given)
    for _ in range(3):
        x = L.LayerNormalization()(x + L.MultiHeadAttention(4, 32)(x, x))
        x = L.LayerNormalization()(x + L.Dense(128)(L.Dense(256, activation="relu")(x)))
    return keras.Model(given, L.Dense(10)(L.GlobalAveragePooling1D()(x)))


def both(layer: Any) -> Any:
    """Return a layer that gives all states of both directions; layer: of one."""
    return L.Bidirectional(layer)


# Name: steps, elements of a step, whether steps are words of which 0 is masked, layers.
SEQUENCES: dict[str, tuple[int, int, bool, Callable[[], list[Any]]]] = {
    "text_gru": (100, 64, True, lambda: [both(L.GRU(64, return_sequences=True)), L.GRU(64)]),
    "text_lstm": (100, 128, True, lambda: [both(L.LSTM(128, return_sequences=True)), L.LSTM(64)]),
    "tagger": (75, 100, True, lambda: [both(L.LSTM(100, return_sequences=True)), L.Dense(17)]),
    "series_gru": (200, 24, False, lambda: [L.GRU(128, return_sequences=True), L.GRU(128)]),
    "series_rnn": (
        100,
        8,
        False,
        lambda: [L.SimpleRNN(64, return_sequences=True), L.SimpleRNN(64)],
    ),
    "stacked_cells": (
        50,
        16,
        False,
        lambda: [L.RNN([L.LSTMCell(64), L.LSTMCell(64)], return_sequences=True), L.Dense(4)],
    ),
    "ctc_gru": (
        120,
        80,
        False,
        lambda: [
            L.Conv1D(64, 3, padding="same", activation="relu"),
            both(L.GRU(256, return_sequences=True)),
            both(L.GRU(256, return_sequences=True)),
            L.Dense(30),
        ],
    ),
    "reset_before": (40, 16, False, lambda: [L.GRU(48, reset_after=False), L.Dense(5)]),
}
FUNCTIONS = {f.__name__: f for f in (unet, convlstm, wavenet, encoder)}


def sequence(name: str) -> Any:
    """Return a network of recurrent layers."""
    steps, width, masked, layers = SEQUENCES[name]
    given = L.Input((steps,), dtype="int32") if masked else L.Input((steps, width))
    x = L.Embedding(WORDS, width, mask_zero=True)(given) if masked else given
    for layer in layers():
        x = layer(x)
    return keras.Model(given, x)


def network(name: str) -> Any:
    """Return a network by its name."""
    keras.utils.set_random_seed(1)
    if name in FUNCTIONS:
        return FUNCTIONS[name]()
    if name in SEQUENCES:
        return sequence(name)
    size = SIZES[name]
    return getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3))


def export(model: Any, path: Path) -> None:
    """Write a network, its batch normalisations with random averages, as an ONNX file."""
    rng = np.random.default_rng(0)
    for layer in model._flatten_layers():
        if isinstance(layer, L.BatchNormalization):
            layer.set_weights(
                [
                    (
                        rng.uniform(0.6, 1.4, v.shape)
                        if v.name in ("gamma", "moving_variance")
                        else rng.normal(0, 0.2, v.shape)
                    ).astype(np.float32)
                    for v in layer.weights
                ]
            )
    kinds = [tf.TensorSpec((1, *t.shape[1:]), t.dtype, name="x") for t in model.inputs]
    function = tf.function(lambda x: model(x, training=False), input_signature=kinds)
    tf2onnx.convert.from_function(function, kinds, opset=17, output_path=str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description="Export Keras's networks by tf2onnx.")
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or [*FUNCTIONS, *SEQUENCES, *SIZES]:
        path = args.out / f"{name}.onnx"
        if not path.exists():
            export(network(name), path)
            print(path.name, flush=True)
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
