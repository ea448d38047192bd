"""Choices of kernels compared in a network, on a device."""

from __future__ import annotations

from small_graphs import GRAPHS

from clnn.graph.passes import optimise
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.tune.network import DeviceNetwork


def test_layers_are_timed_in_the_kernels_that_runs_launch(any_device):
    """Fused where runs fuse their launches: alone, other kernels win than in runs."""
    info = select(any_device)
    network = DeviceNetwork(optimise(GRAPHS["classifier"]()), info, Options(tune="off", states=1))
    try:
        (times,) = network.profile([{}])
        session = network.session({})
        assert all(seconds > 0 for seconds in times.values())
        fused = session._fused is not None and info.caps.clock
        assert (session._fused_with_stamps is not None) == bool(fused)
    finally:
        network.close()
