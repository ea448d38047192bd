"""Ensembles of decision trees: sums of what the leaves that rows reach add."""

from __future__ import annotations
