"""Ops in families, one folder each, of the same name in kernels_cl/ and tests/ops/.

A simple op is one file of its family (attributes, shape inference, numpy reference, kernel variants,
ONNX import), a template and a test; nothing else changes. `shared` is what families build on.
"""

from __future__ import annotations
