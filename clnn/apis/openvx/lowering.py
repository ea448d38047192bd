"""What the lowering of a node reads of it: its tensors, their formats, its other parameters."""

from __future__ import annotations

from typing import Any

from clnn.apis.openvx.builder import TensorBuilder
from clnn.apis.openvx.enums import ConvertPolicy, RoundPolicy, Type
from clnn.apis.openvx.kernels import output_of
from clnn.apis.openvx.model import Node
from clnn.apis.openvx.objects import Scalar
from clnn.apis.openvx.shapes import Meta
from clnn.apis.openvx.tensor import NUMPY, Tensor
from clnn.apis.openvx.verify import Verified
from clnn.arith.openvx import Format
from clnn.records import dataclass
from clnn.types import dtype_of


@dataclass(frozen=True)
class Lowering:
    """One node on its way into a builder."""

    b: TensorBuilder
    node: Node
    verified: Verified

    @property
    def conformance(self) -> bool:
        """Whether to compute as the conformance suite does."""
        return self.node.home.conformance

    def tensor(self, name: str) -> Tensor:
        """Return a tensor parameter that is there."""
        tensor = self.node.values[name]
        assert isinstance(tensor, Tensor)
        return tensor

    def has(self, name: str) -> bool:
        """Whether an optional tensor is given."""
        return self.node.values[name] is not None

    def meta(self, name: str) -> Meta:
        """Return sizes and format of a tensor parameter."""
        return self.verified.meta(self.tensor(name))

    def format(self, name: str) -> Format:
        """Return the fixed-point format of a tensor parameter that holds integers."""
        meta = self.meta(name)
        return Format(dtype_of(NUMPY[meta.kind]), meta.fraction)

    @property
    def output(self) -> Tensor:
        """The tensor that the node writes."""
        return self.tensor(output_of(self.node.kernel))

    @property
    def result(self) -> Format:
        """The format of the output."""
        return self.format(output_of(self.node.kernel))

    def is_float(self, name: str) -> bool:
        """Whether a tensor holds float32."""
        return self.meta(name).kind is Type.VX_TYPE_FLOAT32

    def read(self, name: str) -> str:
        """Return the value of a tensor parameter; of an image as (n, c, h, w)."""
        return self.b.read(self.tensor(name))

    def number(self, name: str) -> float:
        """Return a number, or what its scalar holds now."""
        value = self.node.values[name]
        if isinstance(value, Scalar):
            return float(self.b.watch(lambda: value.value))
        return float(value)

    def wrap(self, name: str = "overflow_policy") -> bool:
        """Whether a policy keeps low bits."""
        return self.node.values[name] is ConvertPolicy.VX_CONVERT_POLICY_WRAP

    @property
    def even(self) -> bool:
        """Whether products are rounded to nearest even."""
        policy = self.node.values["rounding_policy"]
        return policy is RoundPolicy.VX_ROUND_POLICY_TO_NEAREST_EVEN

    def value(self, name: str) -> Any:
        """Return a parameter that is not a tensor."""
        return self.node.values[name]
