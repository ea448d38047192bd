"""Ops that fold or scan an axis: softmax, reductions, normalisations, arg, top-k, sums."""

from __future__ import annotations
