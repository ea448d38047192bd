"""What the stages of a StagedSession cost in the runs of a `with` block."""

from __future__ import annotations

from dataclasses import field

from clnn.records import dataclass
from clnn.runtime.run.profile import Profile


@dataclass
class StagedProfile:
    """Profiles of device stages in the runs that a thread made in a `profile` context.

    stages: of each stage that ran, by name, a profile for each shape that it met, in order. host_s:
    seconds of these runs that no device stage took: steps on the host, and what is copied to them.
    """

    stages: dict[str, list[Profile]] = field(default_factory=dict)
    runs: int = 0
    seconds: float = 0.0

    @property
    def device_s(self) -> float:
        """Seconds of launches, in all runs."""
        profiles = [one for found in self.stages.values() for one in found]
        return sum(span.seconds for one in profiles for run in one.runs for span in run.launches)

    @property
    def host_s(self) -> float:
        """Seconds of the runs beside the launches: steps on the host, copies, and waiting."""
        return max(0.0, self.seconds - self.device_s)

    def table(self, most: int = 0) -> str:
        """Return the tables of all stages, each under its name. most: rows of each (0: all)."""
        parts = [
            f"{name}, profile {number} of {len(found)}\n{one.table(most)}"
            for name, found in self.stages.items()
            for number, one in enumerate(found, 1)
        ]
        closing = f"{self.runs} runs: {1e3 * self.device_s:.3f} ms in launches of stages, "
        return "\n\n".join([*parts, f"{closing}{1e3 * self.host_s:.3f} ms beside them"])
