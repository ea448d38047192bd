"""ONNX's ConvTranspose: attributes, pads and output extents."""

from __future__ import annotations

from collections.abc import Sequence

from clnn.errors import ShapeError
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.conv.volumes import IMAGE, Taps, over_images
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.traced import least


@onnx_op("ConvTranspose")
def _conv_transpose(node: OnnxNode) -> Source:
    x, w = node.type(0), node.type(1)
    if x.rank < 3:
        raise Unsupported(
            f"transposed convolution of {x.rank} axes; it needs batch, channels and an image"
        )
    rank = x.rank - 2
    kernel = _numbers(node, "kernel_shape", rank, w.shape[2:])
    strides = _numbers(node, "strides", rank, (1,) * rank)
    dilations = _numbers(node, "dilations", rank, (1,) * rank)
    extra = _numbers(node, "output_padding", rank, (0,) * rank)
    natural = [
        (i - 1) * s + d * (k - 1) + 1 + e
        for i, s, d, k, e in zip(x.shape[2:], strides, dilations, kernel, extra, strict=True)
    ]
    same = [i * s for i, s in zip(x.shape[2:], strides, strict=True)]
    before, extents = _placed(node, natural, same)
    group = int(node.attr("group", 1))
    n = max(0, x.rank - IMAGE)
    spec = ConvTranspose(kernel[n:], strides[n:], dilations[n:], before[n:], extents[n:], group)
    bias = 2 if node.has(2) else None
    if not n:
        return Emit(spec, [0, 1, bias])
    numbers = zip(kernel, strides, dilations, before, x.shape[2:], extents, strict=True)
    return over_images(
        node,
        kernel,
        [Taps.transposed(*of_axis) for of_axis in list(numbers)[:n]],
        group,
        lambda image, weights: Emit(spec, [image, weights, bias]),
        is_transposed=True,
    )


def _placed(
    node: OnnxNode, natural: Sequence[int], same: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the pads in front and the output extents; `natural`: extents without pads."""
    rank, auto = len(natural), str(node.attr("auto_pad", "NOTSET"))
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(f"auto_pad {auto!r} is not one of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    shape = node.attr("output_shape")
    if shape is not None or auto.startswith("SAME"):
        fits = list(map(least, natural, same))  # without pads no result grows
        wanted = fits if shape is None else [int(e) for e in shape][-rank:]
        if len(wanted) != rank:
            raise ShapeError(f"{node.op_type}: output_shape {shape} must be {rank} numbers.")
        totals = [max(0, n - e) for n, e in zip(natural, wanted, strict=True)]
        before = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in totals]
        return tuple(before), tuple(wanted)
    pads = (
        _numbers(node, "pads", 2 * rank, (0,) * 2 * rank) if auto == "NOTSET" else (0,) * 2 * rank
    )
    extents = tuple(n - pads[a] - pads[a + rank] for a, n in enumerate(natural))
    if min(pads) < 0 or any(extent < 1 for extent in extents):
        raise ShapeError(
            f"{node.op_type}: pads {list(pads)} of an output of {list(natural)} leave {extents}."
        )
    return pads[:rank], extents


def _numbers(node: OnnxNode, name: str, count: int, default: Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(int(v) for v in node.attr(name, default))
    if len(numbers) != count:
        raise ShapeError(f"{node.op_type}: {name} {list(numbers)} must be {count} numbers.")
    return numbers
