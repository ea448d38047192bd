"""What several families build on: windows, fused post-ops, loops, tiles."""

from __future__ import annotations
