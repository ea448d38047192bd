"""Operators on text with regular expressions, which are those of RE2: there where google-re2 is installed.

RE2 takes time in proportion to the text whatever the expression is, so a model cannot make a call hang.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array

HAS_RE2 = importlib.util.find_spec("re2") is not None
START, END = "\x02", "\x03"  # of a text, as the Tokenizer marks them
Split = Callable[[str], list[str]]


def _compiled(expression: str, longest: bool = False) -> Any:
    """Return a compiled expression. longest: whether alternatives are tried for the longest match.

    Raises ValueError for one that RE2 does not take.
    """
    import re2

    options = re2.Options()
    options.log_errors, options.longest_match = False, longest
    try:
        return re2.compile(expression, options)
    except re2.error as err:
        raise ValueError(f"{expression!r} is no expression of RE2: {err}") from err


def _full_match(node: HostNode, x: Array) -> Array:
    expression = node.once("expression", lambda: _compiled(node.attr("pattern", "")))
    found = [expression.fullmatch(text) is not None for text in x.reshape(-1)]
    return np.array(found, bool).reshape(x.shape)


def _tokenizer(node: HostNode, x: Array) -> Array:
    """Return the tokens of each text along a new last axis, as onnxruntime does."""
    if x.ndim not in (1, 2):
        raise ValueError(f"texts are of shape (n) or (batch, n), not {x.shape}")
    split: Split = node.once("split", lambda: _split_of(node))
    if not x.size:
        return x
    rows = [split(text) for text in x.reshape(-1)]
    if node.attr("mark", 0) and any(rows):
        rows = [[START, *row, END] for row in rows]
    width = max(len(row) for row in rows)
    pad = node.attr("pad_value", "")
    out = np.empty((len(rows), width), object)
    for place, row in enumerate(rows):
        out[place] = [*row, *[pad] * (width - len(row))]
    return out.reshape(*x.shape, width)


def _split_of(node: HostNode) -> Split:
    separators, token = node.attr("separators") or [], node.attr("tokenexp", "")
    least = int(node.attr("mincharnum", 1))
    if bool(separators) == bool(token):
        raise ValueError("it has both separators and tokenexp, or neither")
    if least < 1:
        raise ValueError(f"tokens of at least {least} characters are no tokens")
    if token == "." or list(separators) == [""]:
        if least > 1:
            raise ValueError(f"characters are not tokens of at least {least}")
        return list
    if token:
        expression = _compiled(token, longest=True)
        return lambda text: [t for t in _matches(expression, text) if len(t) >= least]
    return _apart([_compiled(separator, longest=True) for separator in separators], least)


def _matches(expression: Any, text: str) -> list[str]:
    return [found.group() for found in expression.finditer(text) if found.group()]


def _apart(separators: Sequence[Any], least: int) -> Split:
    """Return what parts a text by each separator in turn."""

    def split(text: str) -> list[str]:
        parts = [text]
        for separator in separators:
            parts = [piece for part in parts for piece in _between(separator, part)]
        return [part for part in parts if len(part) >= least]

    return split


def _between(separator: Any, text: str) -> list[str]:
    """Return what stands between separators. Where one matches nothing, it takes the next character."""
    pieces, begin = [], 0
    while begin <= len(text) and (found := separator.search(text, begin)):
        pieces.append(text[begin : found.start()])
        begin = max(found.end(), found.start() + 1)
    return [*pieces, text[begin:]]


if HAS_RE2:
    host_op("RegexFullMatch")(_full_match)
    host_op("com.microsoft::Tokenizer")(_tokenizer)
