"""Kinds of nodes that random networks are drawn from: operators that clnn makes of several others."""

from __future__ import annotations

from collections.abc import Callable

from drawing import Drawer

LONGEST_DFT = 512  # onnxruntime's error grows with the square of lengths that are no power of two


def _einsum(d: Drawer) -> None:
    x = d.pick("f", range(1, 5))
    if x is None:
        return
    labels = "abcd"[: d.of(x).ndim]
    extents = dict(zip(labels, d.of(x).shape, strict=True))
    same = [(p, q) for p in labels for q in labels if p < q and extents[p] == extents[q]]
    if same and d.chance.random() < 0.2:
        labels = labels.replace(*d.one_of(same)[::-1])
    extents |= {"x": d.up_to(5), "y": d.up_to(3)}
    terms, inputs = [labels], [x]
    for _ in range(d.one_of((0, 1, 1, 1, 2))):
        letters = sorted({*labels, "x", "y"})
        d.chance.shuffle(letters)
        terms.append("".join(letters[: d.up_to(3)]))
        inputs.append(d.weights(*(extents[n] for n in terms[-1])))
    letters = sorted(set("".join(terms)))
    d.chance.shuffle(letters)
    out = "".join(letters[: d.up_to(min(len(letters), 4), 0)])
    d.node("Einsum", inputs, equation=f"{','.join(terms)}->{out}")


def _reverse_sequence(d: Drawer) -> None:
    x = d.pick("fiu", range(2, 5))
    if x is None:
        return
    batch = d.up_to(1, 0)
    lengths = d.chance.integers(1, d.of(x).shape[1 - batch] + 1, d.of(x).shape[batch])
    name = d.const(lengths)
    if d.chance.random() < 0.3:  # lengths that are known in the run only
        d.net.consts.remove(name)
        d.net.inputs.append(name)
    d.node("ReverseSequence", [x, name], batch_axis=batch, time_axis=1 - batch)


def _dft(d: Drawer) -> None:
    x = d.pick("f", range(1, 4))
    if x is None:
        return
    if d.of(x).ndim < 2 or d.of(x).shape[-1] > 2:
        wide = d.node("Unsqueeze", [x, d.const([-1])])
        if not wide:
            return
        (x,) = wide
    parts = d.of(x).shape[-1]
    axis = d.up_to(d.of(x).ndim - 2, 0)
    if d.of(x).shape[axis] > LONGEST_DFT:
        return
    length = d.const(d.of(x).shape[axis] + d.up_to(2, -1)) if d.chance.random() < 0.3 else ""
    inverse = d.up_to(1, 0)
    attrs = {"inverse": inverse, "onesided": int(parts == 1 and not inverse and d.up_to(1, 0))}
    d.node("DFT", [x, length, d.const(axis)], **attrs)


def _stft(d: Drawer) -> None:
    x = d.pick("f", (2, 3))
    if x is None:
        return
    if d.of(x).ndim == 3:
        x = (d.node("Reshape", [x, d.const([0, -1])]) or [x])[0]
    flat = d.node("Unsqueeze", [x, d.const([-1])])
    if flat and d.of(x).ndim == 2:
        length = d.up_to(min(d.of(x).shape[1], 12))
        window = d.weights(length) if d.chance.random() < 0.5 else ""
        inputs = [flat[0], d.const(d.up_to(5)), window, d.const(length)]
        d.node("STFT", inputs, onesided=d.up_to(1, 0))


def _determinant(d: Drawer) -> None:
    x = d.pick("f", range(2, 5))
    if x is not None:
        size = min(d.of(x).shape[-2:])
        part = d.node("Slice", [x, d.const([0, 0]), d.const([size, size]), d.const([-2, -1])])
        if part:
            d.node("Det", part)


def _deformed(d: Drawer) -> None:
    x = d.pick("f", (4,))
    if x is None:
        return
    count, channels, *size = d.of(x).shape
    group, alike = (d.one_of([g for g in (1, 2, channels) if channels % g == 0]) for _ in range(2))
    kernel = [d.up_to(min(3, extent)) for extent in size]
    outs = [extent - k + 1 for extent, k in zip(size, kernel, strict=True)]
    places, out = alike * kernel[0] * kernel[1], group * d.one_of((1, 3, 8))
    moves = d.chance.integers(-12, 13, (count, 2 * places, *outs)) / 8 + 0.03
    inputs = [x, d.weights(out, channels // group, *kernel), d.const(moves, "float32")]
    inputs.append(d.weights(out) if d.up_to(1, 0) else "")
    if d.up_to(1, 0):
        inputs.append(d.weights(count, places, *outs))
    d.node("DeformConv", inputs, group=group, offset_group=alike)


KINDS: tuple[Callable[[Drawer], None], ...] = (
    *(_einsum, _reverse_sequence, _dft, _stft, _determinant, _deformed),
)
