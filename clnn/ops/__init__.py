"""Op families, one file each: spec, shape inference, numpy reference, kernel variants, ONNX import.

A new op is a file here, a template in kernels_cl/ and a test in tests/ops/; nothing else changes.
"""

from __future__ import annotations
