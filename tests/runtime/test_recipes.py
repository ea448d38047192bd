"""Keys of what makes constants: equal for equal data, and for nothing else."""

from __future__ import annotations

from functools import partial

import numpy as np

from clnn.runtime.run.recipes import recipe

WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def scaled(array, by=1.0, *, add=0.0):
    return array * by + add


def maker(array, by):
    return lambda: scaled(array, by)


def test_equal_recipes_have_equal_keys():
    copy = WEIGHTS.copy()
    assert recipe(partial(scaled, WEIGHTS, 2.0)) == recipe(partial(scaled, copy, 2.0))
    assert recipe(maker(WEIGHTS, 2.0)) == recipe(maker(copy, 2.0))
    assert recipe(partial(scaled, WEIGHTS[:, ::2])) == recipe(
        partial(scaled, WEIGHTS[:, ::2].copy())
    )


def test_whatever_changes_the_data_changes_the_key():
    other = WEIGHTS.copy()
    other[1, 2] = np.nextafter(other[1, 2], np.float32(9))
    makers = [
        partial(scaled, WEIGHTS, 2.0),
        partial(scaled, WEIGHTS, 2),
        partial(scaled, other, 2.0),
        partial(scaled, WEIGHTS, add=2.0),
        partial(scaled, WEIGHTS.reshape(3, 2), 2.0),
        partial(scaled, WEIGHTS.view(np.int32), 2.0),
        partial(np.multiply, WEIGHTS, 2.0),
        maker(WEIGHTS, 2.0),
        maker(WEIGHTS, 3.0),
        maker(other, 2.0),
    ]
    keys = [recipe(make) for make in makers]
    assert None not in keys and len(set(keys)) == len(keys)


def test_what_cannot_be_told_has_no_key():
    assert recipe(maker(object(), 1.0)) is None
    nested = WEIGHTS
    for _ in range(40):
        nested = (nested,)
    assert recipe(maker(nested, 1.0)) is None
