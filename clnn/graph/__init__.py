"""The graph between import and plan: values, nodes, and the passes that rewrite them."""

from __future__ import annotations
