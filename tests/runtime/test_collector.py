"""Plans without the collector of cycles: it is as it was afterwards, and does not search what was made."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from clnn.runtime.process.collector import paused


class Thing:
    """Something that the collector tracks."""


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    was = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_afterwards_as_before(on):
    (gc.enable if on else gc.disable)()
    with paused:
        assert not gc.isenabled()
        with paused:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() is on


def test_what_was_made_is_old_at_once():
    gc.enable()
    with paused:
        made = [Thing() for _ in range(100)]
        young = {id(thing) for thing in gc.get_objects(generation=0)}
        assert all(id(thing) in young for thing in made)
    old = {id(thing) for thing in gc.get_objects(generation=2)}
    assert all(id(thing) in old for thing in made)


def test_what_the_process_froze_stays_frozen():
    gc.enable()
    gc.freeze()
    frozen = gc.get_freeze_count()
    with paused:
        pass
    assert gc.get_freeze_count() == frozen > 0
