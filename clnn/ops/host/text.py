"""Operators on text: tensors of Python strings, as objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array


def _objects(values: Sequence[str], shape: Sequence[int]) -> Array:
    out = np.empty(len(values), object)
    out[:] = values
    return out.reshape(tuple(shape))


def cast_text(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return text as numbers, or numbers as text. Raises ValueError for text that is no number."""
    if dtype.kind == "O":
        return _objects([_written(v, x.dtype) for v in x.reshape(-1).tolist()], x.shape)
    with np.errstate(all="ignore"):
        numbers = [float(v) if dtype.kind == "f" else int(v) for v in x.reshape(-1).tolist()]
        return np.array(numbers).astype(dtype).reshape(x.shape)


def _written(value: Any, dtype: np.dtype[Any]) -> str:
    """Return a number as onnxruntime writes it."""
    if dtype.kind != "f":
        return str(int(value)) if dtype.kind in "biu" else str(value)
    if not np.isfinite(value):
        return "NaN" if value != value else "INF" if value > 0 else "-INF"
    return f"{value:.8g}"


@host_op("StringConcat")
def _concat(node: HostNode, left: Array, right: Array) -> Array:
    return np.asarray(np.add(left.astype(object), right.astype(object)), object)


@host_op("StringSplit")
def _split(node: HostNode, x: Array) -> tuple[Array, Array]:
    delimiter, most = node.attr("delimiter", ""), node.attr("maxsplit")
    most = -1 if most is None else int(most)
    apart = _at_spaces if not delimiter else lambda text, most: text.split(delimiter, most)
    rows = [apart(text, most) if text else [] for text in x.reshape(-1)]
    width = max((len(row) for row in rows), default=0)
    padded = [part for row in rows for part in (*row, *[""] * (width - len(row)))]
    counts = np.array([len(row) for row in rows], np.int64).reshape(x.shape)
    return _objects(padded, (*x.shape, width)), counts


def _at_spaces(text: str, most: int) -> list[str]:
    """Return what stands between spaces; other white space is text, as for onnxruntime."""
    parts, rest = [], text.strip(" ")
    while rest and most != 0 and " " in rest:
        part, _, rest = rest.partition(" ")
        parts.append(part)
        rest, most = rest.lstrip(" "), most - 1
    return [*parts, rest] if rest else parts


def _lower(text: str) -> str:
    """Return text in lower case, character by character."""
    return "".join(c.lower()[:1] for c in text)


def _upper(text: str) -> str:
    """Return text in upper case; characters that would become several stay as they are."""
    return "".join(c.upper() if len(c.upper()) == 1 else c for c in text)


_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": _lower, "UPPER": _upper}


@host_op("StringNormalizer")
def _normalize(node: HostNode, x: Array) -> Array:
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ValueError(f"texts are of shape (n) or (1, n), not {x.shape}")
    action = node.attr("case_change_action", "NONE")
    if action not in _CASES:
        raise ValueError(f"there is no change of case {action!r}")
    change, stops = _CASES[action], node.attr("stopwords") or []
    alike = str if node.attr("is_case_sensitive", 0) else _lower
    left_out = {alike(word) for word in stops}
    kept = [change(text) for text in x.reshape(-1) if alike(text) not in left_out]
    kept = kept or [""]
    return _objects(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


@host_op("TfIdfVectorizer")
def _tf_idf(node: HostNode, x: Array) -> Array:
    pool = node.once("pool", lambda: _pool(node))
    places = np.array(node.attrs["ngram_indexes"], np.int64)
    if x.ndim not in (1, 2):
        raise ValueError(f"words are of shape (n) or (batch, n), not {x.shape}")
    if places.min(initial=0) < 0:
        raise ValueError(f"ngram_indexes go down to {places.min()}, must be 0 or more")
    width = int(places.max(initial=-1)) + 1
    rows = x.reshape(-1, x.shape[-1]) if x.size else np.empty((x.shape[0] if x.ndim == 2 else 1, 0))
    counts = np.zeros((len(rows), width), np.float32)
    for row, words in zip(counts, rows.tolist(), strict=True):
        found = Counter(pool[gram] for gram in _grams(node, words) if gram in pool)
        for number, times in found.items():
            row[places[number]] += times
    return _weighted(node, counts, places).reshape(*x.shape[:-1], width)


def _pool(node: HostNode) -> dict[tuple[object, ...], int]:
    """Return the number of each n-gram of the pool, in which those of one length stand together."""
    items = node.attr("pool_strings") or node.attr("pool_int64s") or []
    starts = [*node.attrs["ngram_counts"], len(items)]
    found: dict[tuple[object, ...], int] = {}
    number = 0
    for length, (start, stop) in enumerate(pairwise(starts), 1):
        for at in range(start, stop, length):
            found.setdefault(tuple(items[at : at + length]), number)
            number += 1
    return found


def _grams(node: HostNode, words: Sequence[object]) -> Iterator[tuple[object, ...]]:
    """Yield all n-grams, their words up to `max_skip_count` others apart."""
    shortest, longest = int(node.attrs["min_gram_length"]), int(node.attrs["max_gram_length"])
    if shortest < 1:
        raise ValueError(f"min_gram_length is {shortest}, must be at least 1")
    # No run of words is longer than these, and none of several has them further apart.
    longest = min(longest, len(words))
    for step in range(1, min(int(node.attrs["max_skip_count"]) + 1, max(len(words), 1)) + 1):
        for length in range(shortest, longest + 1):
            if length == 1 and step > 1:
                continue  # a word alone is no further apart
            for at in range(len(words) - (length - 1) * step):
                yield tuple(words[at : at + (length - 1) * step + 1 : step])


def _weighted(node: HostNode, counts: Array, places: Array) -> Array:
    mode = node.attrs["mode"]
    if mode not in ("TF", "IDF", "TFIDF"):
        raise ValueError(f"there is no mode {mode!r}")
    if mode == "IDF":
        counts = (counts > 0).astype(np.float32)
    weights = node.attr("weights")
    if mode == "TF" or not weights:
        return counts
    factors = np.ones(counts.shape[1], np.float32)
    factors[places] = np.array(weights, np.float32)
    return counts * factors
