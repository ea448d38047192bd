"""Sessions from files: a network that was compiled before, on this device or on one that has what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clnn.codegen.kernels import COUNTERS, HELPED_PARAMS, INPUT_PARAMS, NUMBERS, SCRATCH
from clnn.errors import DeviceError, ModelFileError
from clnn.options import Options
from clnn.records import changed
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.failures import explained
from clnn.runtime.device.target import target_of
from clnn.runtime.device.units import units_of
from clnn.runtime.drivers.trim import trim_behind
from clnn.runtime.run.arena import one_arena
from clnn.runtime.run.constants import StoredConstants
from clnn.runtime.run.fused_launch import OWN_CONSTANTS, FusedLaunches, params_of
from clnn.runtime.run.parts import Build, Parts
from clnn.runtime.run.saved import SavedNetwork
from clnn.runtime.run.session import Session
from clnn.runtime.run.small import can_be_helped, may_call, stored_on
from clnn.timeline import mark
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.runtime.run.lent_arena import Arenas


def session_of(
    network: SavedNetwork, info: DeviceInfo, options: Options, build: Build | None = None
) -> Session:
    """Return the session of a network on a device that it fits. build: builds its programs."""
    info = stored_on(network.in_caller, info, options)
    opened = Device.open(info)
    with explained(opened, "the start of the network"):
        for source in _programs(network) if network.binaries else []:
            if binary := network.binaries.get(opened.key(source)):
                opened.ahead[source] = binary
        together = network.fused is not None and one_arena(network.plan, opened)
        data = network.data, network.makers, network.tensors
        constants = StoredConstants(opened, network.plan, *data, together)
        fused = _fused(network, info, constants) if together else None
        mark("packing")
        parts = Parts(opened, network.plan, constants, fused, network.products)
        session = Session.of_parts(parts, options, build)
    trim_behind(info.driver)
    return session


class OtherCoresError(Exception):
    """A network's fused kernels are for another number of cores."""


def session_among(
    network: SavedNetwork,
    first: tuple[Any, Array | None],
    device: Device,
    arenas: Arenas,
    options: Options,
    build: Build,
) -> Session:
    """Return the session of a network at one of several shapes.

    first: what the network has at all shapes, on the device that all sessions use, whose arenas they
    lend each other. Raises OtherCoresError, and what `build` does.
    """
    with explained(device, "the start of the network"):
        if (
            network.fused is None
            or units_of(device.info).count != network.plan.target.compute_units
        ):
            raise OtherCoresError
        data = network.data, network.makers, network.tensors
        constants = StoredConstants(device, network.plan, *data, True, first, network.in_first)
        fused = _fused(network, device.info, constants)
        if fused is not None and fused.is_small and not may_call(device.info, options):
            fused = changed(fused, is_small=False)
        parts = Parts(device, network.plan, constants, fused, network.products)
        return Session.of_parts(parts, options, build, arenas)


def require_fit(path: str, network: SavedNetwork, info: DeviceInfo) -> None:
    """Raise DeviceError where a device lacks what the kernels of a network need."""
    target, wanted = target_of(info), network.plan.target
    lacking = []
    if target.kind != wanted.kind:
        lacking.append(f"it is a {target.kind}, the network was compiled for a {wanted.kind}")
    lacking += [f"it has no {name}" for name in sorted(network.needs - target.features)]
    if (most := target.max_rounds) and not 0 < wanted.max_rounds <= most:
        lacking.append(f"it ends the loops of a work-item after {most} rounds, without an error")
    for what, has, needs in (
        ("work-items in a group", target.max_work_group, network.group),
        ("bytes of local memory", info.local_mem, network.local_bytes),
        ("bytes of memory", info.global_mem, network.plan.memory.total + network.data.size),
    ):
        if has < needs:
            lacking.append(f"it has {has} {what}, {needs} are needed")
    if lacking:
        raise DeviceError(
            f"{path!r}, compiled for {network.made_for}, does not run on {info.title}: {'; '.join(lacking)}."
            " Compile its model for this device: clnn compile MODEL -o FILE -d DEVICE"
        )


def _programs(network: SavedNetwork) -> list[str]:
    """Return the sources of fused kernels, of all launches where none are fused."""
    fused = network.fused
    ones = [] if fused is None else [*fused.first, *fused.run]
    kernels = [one.kernel.source for one in ones if one.kernel is not None]
    alone = [launch.source for one in ones if one.kernel is None for launch in one.launches]
    texts = [one.launch.text for one in network.plan.launches] if fused is None else []
    return [*kernels, *alone, *(text.source for text in texts if text is not None)]


def _fused(
    network: SavedNetwork, info: DeviceInfo, constants: StoredConstants
) -> FusedLaunches | None:
    """Return the launches as few kernels: the file's, or new ones for another number of cores."""
    made, plan = network.fused, network.plan
    if made is None or (constants.whole is None and (network.makers or network.tensors)):
        return None
    units = units_of(info).count
    helped = any(one.kernel is not None and one.kernel.is_helped for one in made.run)
    if units != plan.target.compute_units or (helped and not can_be_helped(info)):
        from clnn.runtime.run.fusing import fuse_plan  # the file's kernels are for its own device

        target = changed(plan.target, compute_units=units)
        return fuse_plan(changed(plan, target=target), constants, False, False)
    known = {
        COUNTERS,
        SCRATCH,
        NUMBERS,
        OWN_CONSTANTS,
        *HELPED_PARAMS,
        *params_of(plan),
        *INPUT_PARAMS,
    }
    for one in (*made.first, *made.run):
        if one.kernel is not None and not known >= {*one.kernel.params}:
            raise ModelFileError(
                "the file has a fused kernel with parameters that clnn does not know."
            )
    return made
