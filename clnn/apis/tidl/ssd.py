"""SSD post-processing on the device: decode, score threshold, non-maximum suppression.

The corners of box k, from its prior (x, y, w, h: centre and size) and what the network gives for it:

    centre = prior centre + variance * offset * prior size
    size   = prior size * exp(variance * size)
"""

from __future__ import annotations

import numpy as np

from clnn.apis.tidl.buffers import sTIDLRT_Tensor_t
from clnn.apis.tidl.detection import HEADER_BYTES, OBJECT_BYTES, TIDL_ODLayerObjInfo, write_objects
from clnn.apis.tidl.enums import ElementType
from clnn.apis.tidl.tensors import IOTensor
from clnn.errors import DTypeError, SettingError, ShapeError
from clnn.graph.builder import GraphBuilder
from clnn.graph.ir import Graph
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Concat, Slice
from clnn.ops.rows.softmax import Softmax
from clnn.ops.rows.suppress import Suppress
from clnn.ops.rows.topk import TopK
from clnn.ops.shared.functions import PostOp
from clnn.options import Options
from clnn.records import dataclass
from clnn.types import F32, Array, TensorType


@dataclass(frozen=True)
class SsdParams:
    """Parameters of the detection layer.

    top_k: candidates of each class; keep_top_k: objects in all. activation: "softmax", "sigmoid" or
    "none", of the scores. background: the class that is no object, -1 for none. variances: of x, y, w, h.
    """

    top_k: int = 200
    keep_top_k: int = 100
    confidence_threshold: float = 0.3
    nms_threshold: float = 0.45
    activation: str = "softmax"
    background: int = 0
    variances: tuple[float, float, float, float] = (0.1, 0.1, 0.2, 0.2)

    def __post_init__(self) -> None:
        if self.activation not in ("softmax", "sigmoid", "none"):
            raise SettingError(f"activation {self.activation!r} is not softmax, sigmoid or none.")
        if min(self.top_k, self.keep_top_k) < 1 or len(self.variances) != 4:
            raise SettingError(
                f"top_k {self.top_k} and keep_top_k {self.keep_top_k} must be at least 1, variances"
                f" {self.variances} must be four."
            )
        if not (0 <= self.nms_threshold <= 1 and self.confidence_threshold >= 0):
            raise SettingError(
                f"nms_threshold {self.nms_threshold} must be from 0 to 1, confidence_threshold"
                f" {self.confidence_threshold} at least 0."
            )


class SsdPostProcess:
    """The layer for fixed priors, compiled for a device.

    priors: (boxes, 4) float32, x and y of the centre, width, height, as fractions of the image.
    classes: that the network tells apart, the background included. Raises ShapeError, DTypeError or
    SettingError for arguments that do not fit, else what a Session raises.
    """

    def __init__(
        self,
        priors: Array,
        classes: int,
        params: SsdParams | None = None,
        device: str | int | None = None,
        options: Options | None = None,
    ) -> None:
        from clnn.runtime.doctor.selection import select_device
        from clnn.runtime.run.session import Session

        self.params = params or SsdParams()
        if priors.ndim != 2 or priors.shape[1] != 4 or not len(priors):
            raise ShapeError(f"priors are {priors.shape}, must be (boxes, 4).")
        if priors.dtype != np.float32:
            raise DTypeError(f"priors are {priors.dtype}, must be float32.")
        if not -1 <= self.params.background < classes or classes < 1:
            raise SettingError(f"background {self.params.background} is no class of {classes}.")
        self._top = min(self.params.top_k, len(priors))
        self._kept = min(self.params.keep_top_k, self._top * classes)
        graph = self._graph(priors, classes)
        self.session = Session(graph, select_device(device), options or Options())

    def _graph(self, priors: Array, classes: int) -> Graph:
        build, count = GraphBuilder(), len(priors)
        loc = build.input("locations", TensorType((1, count, 4), F32))
        conf = build.input("confidences", TensorType((1, count, classes), F32))
        boxes = self._decoded(build, loc, priors)
        scores = self._scores(build, conf)
        lines = build.transpose(scores, (0, 2, 1))
        best = build.node(TopK(self._top, 2), (lines,), "best", "TopK")
        spec = Suppress(self.params.nms_threshold, self.params.confidence_threshold)
        stays = build.add(spec, boxes, *best.outputs)
        flat = build.reshape(stays, (1, classes * self._top))
        objects = build.node(TopK(self._kept, 1), (flat,), "objects", "TopK")
        outputs = {"scores": objects.outputs[0], "places": objects.outputs[1]}
        return build.graph({**outputs, "boxes": boxes, "order": best.outputs[1]}, "ssd")

    def _decoded(self, build: GraphBuilder, loc: str, priors: Array) -> str:
        """Return the corners of all boxes."""
        variances = np.asarray(self.params.variances, np.float32)
        part = [build.add(Slice((0, 0, s), (1, len(priors), 2), (1, 1, 1)), loc) for s in (0, 2)]
        centre, size = (build.const(priors[None, :, s : s + 2].copy()) for s in (0, 2))
        moved = Eltwise(
            (PostOp("mul", operand=1), PostOp("mul", operand=2), PostOp("add", operand=3))
        )
        middle = build.add(
            moved, part[0], build.const(variances[None, None, :2].copy()), size, centre
        )
        grown = Eltwise((PostOp("mul", operand=1), PostOp("exp"), PostOp("mul", operand=2)))
        extent = build.add(grown, part[1], build.const(variances[None, None, 2:].copy()), size)
        half = build.add(Eltwise((PostOp("mul", (0.5,)),)), extent)
        low = build.add(Eltwise((PostOp("sub", operand=1),)), middle, half)
        high = build.add(Eltwise((PostOp("add", operand=1),)), middle, half)
        return build.add(Concat(2), low, high)

    def _scores(self, build: GraphBuilder, conf: str) -> str:
        """Return scores; those of the background are below every threshold."""
        if self.params.activation == "softmax":
            conf = build.add(Softmax((2,)), conf)
        elif self.params.activation == "sigmoid":
            conf = build.add(Eltwise((PostOp("sigmoid"),)), conf)
        if self.params.background < 0:
            return conf
        factor = np.ones((1, 1, build.shape(conf)[2]), np.float32)
        factor[..., self.params.background] = 0
        more = factor - 1
        spec = Eltwise((PostOp("mul", operand=1), PostOp("add", operand=2)))
        return build.add(spec, conf, build.const(factor), build.const(more))

    def __call__(self, locations: Array, confidences: Array) -> list[TIDL_ODLayerObjInfo]:
        """Return the objects by falling score; of equal scores the lower class comes first.

        locations: (1, boxes, 4) float32; confidences: (1, boxes, classes) float32.
        """
        outs = self.session({"locations": locations, "confidences": confidences})
        stay = np.flatnonzero(outs["scores"][0] >= 0)
        found = []
        for number, k in enumerate(stay):
            label, place = divmod(int(outs["places"][0, k]), self._top)
            corners = outs["boxes"][0, outs["order"][0, label, place]].tolist()
            score = float(outs["scores"][0, k])
            found.append(TIDL_ODLayerObjInfo(float(number), float(label), score, *corners))
        return found

    @property
    def output(self) -> IOTensor:
        """The output buffer of the layer: float32 of a header and `keep_top_k` objects in a row."""
        floats = (HEADER_BYTES + self._kept * OBJECT_BYTES) // 4
        kind = ElementType.TIDL_SinglePrecFloat
        return IOTensor.make("out", "detections", (floats,), element_type=kind)

    def write(self, locations: Array, confidences: Array, buffer: sTIDLRT_Tensor_t) -> None:
        """Detect and write header and objects where the buffer's tensor begins."""
        begin = buffer.tensor.start(buffer.start) * buffer.tensor.dtype.itemsize
        write_objects(self(locations, confidences), buffer.memory[begin:])
