"""Sphinx configuration."""

from __future__ import annotations

project = "clnn"
extensions = ["myst_parser"]
html_theme = "furo"
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
