"""From source text to built kernels: our cache first, then parallel builds in child processes.

What only builds need is imported where they are made: most starts find all programs in the cache.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from clnn.cache.keys import program_key
from clnn.cache.store import Store
from clnn.errors import BuildError
from clnn.records import dataclass
from clnn.runtime.build import progress, registers
from clnn.runtime.build.pocl_binary import quick_to_load
from clnn.runtime.device import failures
from clnn.runtime.device.device import DeviceInfo, open_context
from clnn.runtime.drivers.in_turn import built, wait_no_longer
from clnn.runtime.drivers.invokers import keep_invokers
from clnn.runtime.drivers.loader import child_environment, load
from clnn.runtime.process.child import run_python
from clnn.runtime.process.deadline import LateError, within
from clnn.runtime.process.temporary import folder_for_a_while
from clnn.settings import setting

log = logging.getLogger("clnn")

BUILD_ABI = "1"
EXACT_QUOTIENTS = "-cl-fp32-correctly-rounded-divide-sqrt"
# Below so many programs, and characters of them, starting child processes costs more than it saves.
CHILDREN_FROM, CHARACTERS_FROM = 6, 60_000
LOOK_S = 0.1  # seconds from look to look at what children have built


@dataclass
class BuildCounts:
    """How many programs came from where."""

    cached: int = 0
    built: int = 0

    @property
    def pair(self) -> tuple[int, int]:
        """Both, as they are now."""
        return self.cached, self.built


def options_of(info: DeviceInfo, source: str = "") -> list[str]:
    """Return the build options of a program on a device; without a source, those that all have.

    Compilers for GPUs round quotients loosely unless they are told: what a byte is rounded to goes by them.
    """
    exact = [EXACT_QUOTIENTS] if info.type == "gpu" and info.rounds_quotients else []
    told = [registers.VERBOSE] if info.platform.startswith("NVIDIA") else []
    own = [info.cl_std, *exact, *told]
    return registers.options_with(own, source, bool(info.caps.large_registers))


def key_of(info: DeviceInfo, source: str) -> str:
    """Return the cache key of `source` on a device."""
    return program_key(
        source,
        options_of(info, source),
        info.driver_name,
        info.driver_version,
        f"{info.platform} {info.platform_version}",
        BUILD_ABI,
    )


@dataclass
class Device:
    """An opened device: its description, context, and the programs built on it.

    Programs stay referenced here for as long as kernels of them may be used. `from_cache`: sources
    whose binary was in the cache. `spills`: sources that lack registers, and what their build told.
    `ahead`: binaries of sources that were built before they are asked for, and `coming`: what is set
    when one that is being built so is there. `whole`: binaries of which only a part was loaded.
    `lost`: why it cannot be used any more, empty while it can (see clnn.runtime.device.failures).
    """

    info: DeviceInfo
    context: Any
    handle: Any
    programs: dict[str, Any] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    store: Store = field(default_factory=Store)
    counts: BuildCounts = field(default_factory=BuildCounts)
    from_cache: set[str] = field(default_factory=set)
    spills: dict[str, str] = field(default_factory=dict)
    ahead: dict[str, bytes] = field(default_factory=dict)
    coming: dict[str, threading.Event] = field(default_factory=dict)
    whole: dict[str, bytes] = field(default_factory=dict)
    lost: str = ""

    @staticmethod
    def open(info: DeviceInfo) -> Device:
        """Open a context on `info`. Raises DeviceError."""
        context, handle = open_context(info)
        return Device(info, context, handle)

    def beside(self) -> Device:
        """Return the same context for programs of another session."""
        return Device(self.info, self.context, self.handle)

    @property
    def options(self) -> list[str]:
        """Build options that all programs have."""
        return options_of(self.info)

    def key(self, source: str) -> str:
        """Return the cache key of `source` on this device."""
        return key_of(self.info, source)

    def build(self, sources: Mapping[str, str]) -> None:
        """Build every program of `sources` (kernel title -> source) that is not there yet.

        Raises BuildError with the driver's first complaint and the path of the saved source,
        DeviceLostError where the driver's compiler takes more than CLNN_BUILD_TIMEOUT.
        """
        for source in sources.values():
            if coming := self.coming.get(source):
                coming.wait()
        with self.lock:
            failures.require(self)
            wanted = {s: title for title, s in sources.items() if s not in self.programs}
            missing = {s: wanted[s] for s in wanted if not self._from_store(s)}
            if not missing:
                return
            from clnn.cache.claims import taken, waited_for

            progress.tell(0, len(missing))
            keys = {source: self.key(source) for source in missing}
            with taken(self.store, keys.values()) as mine:
                here = {s: title for s, title in missing.items() if keys[s] in mine}
                self._build_these(here, len(missing))
            done, end = len(here), time.monotonic() + _deadline()
            for source in [s for s in missing if s not in here]:  # another process is at them
                with waited_for(self.store, keys[source], end):
                    if not self._from_store(source):
                        self._finish(source, missing[source], None)
                done += 1
                progress.tell(done, len(missing), missing[source])

    def _build_these(self, missing: Mapping[str, str], total: int) -> None:
        """Build programs, source -> title, the first ones of `total` that progress is told of."""
        long = len(missing) > 1 and sum(map(len, missing)) >= CHARACTERS_FROM
        in_children = long or len(missing) >= CHILDREN_FROM
        binaries = self._try_children([*missing], [*missing.values()]) if in_children else {}
        done = len(binaries)
        for source, title in missing.items():
            self._finish(source, title, binaries.get(source))
            if source not in binaries:
                done += 1
                progress.tell(done, total, title)

    def build_ahead(
        self, sources: Mapping[str, str], stop: threading.Event, nice: int, share: int = 2
    ) -> None:
        """Have children build programs, so that `build` finds them made, or waits for them.

        stop: set it to end the children. nice: what is added to their priority, as by `nice`. share: there
        is one child at once for so many processors.
        Raises BuildError where one was not built.
        """
        titles = {source: title for title, source in sources.items()}
        missing = [s for s in titles if s not in self.programs and s not in self.ahead]
        missing = [s for s in missing if self.store.get(self.key(s)) is None]
        if not missing:
            return
        from clnn.cache.claims import AHEAD, taken, waited_for

        there = threading.Event()
        self.coming |= dict.fromkeys(missing, there)
        try:
            keys = {source: self.key(source) for source in missing}
            with taken(self.store, keys.values(), AHEAD) as mine:
                self._keep_ahead([s for s in missing if keys[s] in mine], titles, stop, nice, share)
            end = time.monotonic() + _deadline()
            for source in missing:
                if keys[source] not in mine and not stop.is_set():  # another process is at it
                    with waited_for(self.store, keys[source], end, stop, AHEAD):
                        if self.store.get(keys[source]) is None:
                            self._keep_ahead([source], titles, stop, nice, share)
            for source in missing:
                if source not in self.ahead and self.store.get(keys[source]) is None:
                    raise BuildError(
                        f"kernel {titles[source]} was not built ahead: its child process ended early."
                        " Calls go on with the kernels that they have."
                    )
        finally:
            for source in missing:
                self.coming.pop(source, None)
            there.set()

    def take(self, source: str, binary: bytes) -> bool:
        """Load a program from its binary; return whether the driver takes it."""
        with self.lock:
            return source in self.programs or self._load(source, binary)

    def has(self, source: str) -> bool:
        """Whether a program is there or in the cache, so that it needs no build."""
        return source in self.programs or self.store.get(self.key(source)) is not None

    def _keep_ahead(
        self,
        missing: Sequence[str],
        titles: Mapping[str, str],
        stop: threading.Event,
        nice: int,
        share: int,
    ) -> None:
        """Have children build programs, and keep what they made, also where they were stopped."""
        jobs = min(max(1, (os.cpu_count() or 1) // share), len(missing))
        made = self._build_in_children(missing, jobs, stop, nice) if missing else {}
        for source, binary in made.items():
            self._keep(source, titles[source], binary)
        self.ahead |= made

    def kernel(self, source: str, name: str) -> Any:
        """Return a new kernel object of a built program."""
        keep_invokers()
        return load().Kernel(self.programs[source], name)

    def binary(self, source: str) -> bytes | None:
        """Return the binary of a built program, None where its driver gives none."""
        return self.whole.get(source) or program_binary(self.programs[source])

    def _from_store(self, source: str) -> bool:
        binary = self.ahead.pop(source, None)
        if binary is not None and self._load(source, binary):
            self.counts.cached += 1
            return True
        entry = self.store.get(self.key(source))
        if entry is None or not self._load(source, entry.payload):
            return False
        self.counts.cached += 1
        if told := entry.meta.get("spills"):
            self.spills[source] = str(told)
        self.from_cache.add(source)
        return True

    def _load(self, source: str, binary: bytes) -> bool:
        cl, short = load(), quick_to_load(binary)
        try:
            program = cl.Program(self.context, [self.handle], [short])
            options = options_of(self.info, source)
            self.programs[source] = self._in_time(
                source, built, program, options, self.info.platform
            )
        except cl.Error as err:
            log.info("a program binary was refused, building from source: %s", err)
            return False
        if short is not binary:
            self.whole[source] = binary
        return True

    def _finish(self, source: str, title: str, binary: bytes | None) -> None:
        """Take a child's binary, or build here; keep the binary in the store."""
        self.counts.built += 1
        if binary is None or not self._load(source, binary):
            self.programs[source] = self._build_here(source, title)
            binary = self._in_time(source, program_binary, self.programs[source])
        self._keep(source, title, binary)

    def _keep(self, source: str, title: str, binary: bytes | None) -> None:
        """Put a binary into the store."""
        about = {"title": title, "device": self.info.name}
        if told := self.spills.get(source):
            log.info("kernel %s: %s", title, told)
            about["spills"] = told
        if binary:
            self.store.put(self.key(source), binary, dict(about))

    def _build_here(self, source: str, title: str) -> Any:
        from clnn.runtime.drivers.assembly import taken_by

        cl = load()
        try:
            program = cl.Program(self.context, taken_by(self.handle, source))
            options = options_of(self.info, source)
            program = self._in_time(source, built, program, options, self.info.platform)
        except cl.Error as err:
            if not failures.is_of_program(err):
                failures.explain(err, self, f"the build of kernel {title}")
            raise BuildError(_build_message(self.info, title, source, str(err))) from err
        if told := registers.spills_of(registers.build_log(program, self.handle)):
            self.spills[source] = told
        return program

    def _in_time(self, source: str, work: Callable[..., Any], *args: Any) -> Any:
        """Return work(*args), which has the driver compile `source`: at once or for its binary.

        Raises DeviceLostError where that does not end: nobody knows what it holds in the driver.
        """
        seconds = float(setting("CLNN_BUILD_TIMEOUT"))
        try:
            return within(seconds, work, *args)
        except LateError as err:
            wait_no_longer()
            raise failures.lose(
                self,
                f"its compiler did not end within {seconds:g} s (CLNN_BUILD_TIMEOUT) with the source in"
                f" {_saved(source)}",
            ) from err

    def _try_children(self, sources: Sequence[str], titles: Sequence[str]) -> dict[str, bytes]:
        """Return source -> binary for what child processes could build, none where one would do."""
        jobs = min(int(setting("CLNN_BUILD_JOBS")) or min(os.cpu_count() or 1, 8), len(sources))
        try:
            return self._build_in_children(sources, jobs, titles=titles) if jobs > 1 else {}
        except OSError as err:
            log.warning("kernels are built one after the other, without child processes: %s", err)
            return {}

    def _build_in_children(
        self,
        sources: Sequence[str],
        jobs: int,
        stop: threading.Event | None = None,
        nice: int = 0,
        titles: Sequence[str] = (),
    ) -> dict[str, bytes]:
        """Return source -> binary for what so many child processes could build, as build_ahead says.

        titles: of the sources, for the listener of this thread; none tell it nothing. The longest sources
        come first, so that none of the children is left with one at the end.
        """
        from clnn.runtime.process.forking import QUIET

        order = sorted(range(len(sources)), key=lambda k: -len(sources[k]))
        sources, titles = [sources[k] for k in order], [titles[k] for k in order if titles]
        with folder_for_a_while("clnn-build-") as folder:
            for number, source in enumerate(sources):
                (folder / f"{number}.cl").write_text(source)
            argument = {
                "folder": str(folder),
                "options": self.options,
                "large": bool(self.info.caps.large_registers),
                "count": len(sources),
                "platform": self.info.platform_index,
                "device": self.info.device_index,
                "nice": nice,
            }
            env = QUIET | child_environment(self.info.driver, self.info.in_caller)
            run = partial(run_python, "build.build_child", argument, _deadline(), env, stop)
            seen = _Seen(folder, titles) if titles and progress.is_heard() else None
            for end in _at_once(jobs, run, seen):
                if end and not (stop and stop.is_set()):
                    log.warning("a kernel build process ended early: %s", end)
            binaries = {s: folder / f"{n}.bin" for n, s in enumerate(sources)}
            told = {s: path.with_suffix(".spills") for s, path in binaries.items()}
            self.spills |= {s: path.read_text() for s, path in told.items() if path.exists()}
            return {s: path.read_bytes() for s, path in binaries.items() if path.exists()}


class _Seen:
    """Tells this thread's listener of the programs in a folder that children have built."""

    def __init__(self, folder: Path, titles: Sequence[str]) -> None:
        self._left = {folder / f"{number}.bin": title for number, title in enumerate(titles)}
        self._total = len(titles)

    def __call__(self) -> None:
        for path in [path for path in self._left if path.exists()]:
            title = self._left.pop(path)
            progress.tell(self._total - len(self._left), self._total, title)


def _at_once(
    jobs: int, run: Callable[[], tuple[str, str]], look: Callable[[], None] | None = None
) -> list[str]:
    """Return how so many runs ended. Their threads do not keep the process from its end.

    look: called every LOOK_S seconds meanwhile, and at the end.
    """
    ends: list[str] = []
    threads = [
        threading.Thread(target=lambda: ends.append(run()[1]), daemon=True) for _ in range(jobs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while look is not None and thread.is_alive():
            look()
            thread.join(LOOK_S)
        thread.join()
    if look is not None:
        look()
    return ends


def _deadline() -> float:
    """Return the seconds that a build may take."""
    return float(setting("CLNN_BUILD_TIMEOUT")) or 1e9


def program_binary(program: Any) -> bytes | None:
    """Return the binary of a built program for its one device, or None where there is none."""
    cl = load()
    try:
        binaries = program.get_info(cl.program_info.BINARIES)
    except cl.Error:
        return None
    return bytes(binaries[0]) if binaries and binaries[0] else None


def _saved(source: str) -> str:
    """Return where the text of a program lies from now on."""
    try:
        handle, path = tempfile.mkstemp(prefix="clnn-", suffix=".cl")
        with os.fdopen(handle, "w") as out:
            out.write(source)
    except OSError as err:
        return f"no file ({err})"
    return path


def _build_message(info: DeviceInfo, title: str, source: str, log_text: str) -> str:
    lines = [line.strip() for line in log_text.splitlines() if "error" in line.lower()]
    first = next((line for line in lines if "BUILD_PROGRAM_FAILURE" not in line), log_text[:300])
    return (
        f"kernel {title} does not build on {info.title} (driver {info.driver_version}): {first} "
        f"This is a defect of clnn or of the driver. The source is in {_saved(source)}; please report both."
    )
