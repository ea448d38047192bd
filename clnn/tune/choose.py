"""Which variant a node gets: what was measured here, else shipped measurements, else the estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from clnn.graph.ir import Node
from clnn.ops.launch import Variant
from clnn.ops.problem import Problem
from clnn.ops.spec import OpSpec
from clnn.plan.schedule import Chooser, first_variant
from clnn.runtime.device.device import DeviceInfo
from clnn.tune.bench import Bench, measurable
from clnn.tune.defaults import Defaults, defaults_for
from clnn.tune.signature import Signature, signature, templates_of
from clnn.tune.store import Result, Timed, TuningStore

Check = Callable[[OpSpec, Problem, Variant], str]


class Chosen:
    """A Chooser that looks up stored results, then defaults. Close it after planning.

    What was measured under another driver is used only once it has been checked under the present
    one, in a child process; the outcome is stored, so that happens once. check: does that, and
    returns '' or what is wrong.
    """

    def __init__(self, store: TuningStore, defaults: Defaults, check: Check | None = None) -> None:
        self.store, self.defaults = store, defaults
        self._bench: Bench | None = None
        self._check = check or self._check_in_child

    def __call__(self, node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
        """Return the variant for a node, its `why` set."""
        if len(variants) < 2:
            return variants[0]
        sig = signature(node.spec, problem)
        known = _Known(node.spec, problem, variants)
        failed = self.store.failures(sig.key)
        for name, templates, why in self._wanted(sig):
            variant = known.named(name)
            if variant is None or (templates and templates_of(variant) != templates):
                continue
            if failed and (name, templates_of(variant)) in failed:
                continue
            return replace(variant, why=why)
        prior = self._verified(node.spec, problem, sig, known)
        if prior is not None:
            return replace(prior, why="tuned")
        return self._default(sig, known, failed) or variants[0]

    def _wanted(self, sig: Signature) -> Iterator[tuple[str, str, str]]:
        """Yield (variant, its templates, why) of a result under the present driver."""
        result = self.store.result(sig.key)
        for top in result.tops if result else ():
            yield top.name, top.templates, "tuned"

    def _default(
        self, sig: Signature, known: _Known, failed: dict[tuple[str, str], str]
    ) -> Variant | None:
        name = self.defaults.get(sig.key)
        variant = known.named(name) if name else None
        if variant is None or (variant.name, templates_of(variant)) in failed:
            return None
        return replace(variant, why="default")

    def _verified(
        self, spec: OpSpec, problem: Problem, sig: Signature, known: _Known
    ) -> Variant | None:
        """Return the best variant of another driver's result, once it is right under this one."""
        prior = self.store.prior(sig.key) if self.store.writable else None
        if prior is None or not measurable(spec, problem):
            return None
        failed = self.store.failures(sig.key)
        for top in prior.tops:
            variant = known.named(top.name)
            if variant is None or (top.name, templates_of(variant)) in failed:
                continue
            fault = self._check(spec, problem, variant)
            if not fault:
                again = Timed(top.name, top.seconds, templates_of(variant))
                self.store.put(sig, Result((again,), prior.ranked, "quick", 0))
                return variant
            self.store.put_failure(sig.key, top.name, templates_of(variant), fault)
        return None

    def _check_in_child(self, spec: OpSpec, problem: Problem, variant: Variant) -> str:
        self._bench = self._bench or Bench(self.store.info)
        self._bench.load(spec, problem)
        return self._bench.build([variant])[variant.name] or self._bench.trial(variant, 0).fault

    def close(self) -> None:
        """End the child processes, if there are any."""
        if self._bench is not None:
            self._bench.close()
            self._bench = None

    def __enter__(self) -> Chosen:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Known:
    """The variants of a problem by name; the candidates are made only when they are needed."""

    def __init__(self, spec: OpSpec, problem: Problem, variants: Sequence[Variant]) -> None:
        self._spec, self._problem = spec, problem
        self._found = {v.name: v for v in variants}
        self._whole = False

    def named(self, name: str) -> Variant | None:
        if name not in self._found and not self._whole:
            self._whole = True
            self._found |= {
                v.name: v for v in self._spec.candidates(self._problem) if v.name not in self._found
            }
        return self._found.get(name)


class Ranked:
    """A Chooser that takes what the estimate ranks first."""

    def __call__(self, node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
        """Return the first variant."""
        return first_variant(node, problem, variants)

    def __enter__(self) -> Ranked:
        return self

    def __exit__(self, *error: object) -> None:
        return


def chooser(info: DeviceInfo, tune: str) -> Chosen | Ranked:
    """Return the chooser for Options(tune=...): a context manager and a Chooser."""
    return Ranked() if tune == "off" else Chosen(TuningStore(info), defaults_for(info))


def measured(info: DeviceInfo, tune: str) -> object:
    """Return what tells today's measurements for a device, by which `chooser` chooses, from later ones."""
    return None if tune == "off" else TuningStore(info).stamp


def fixed(names: dict[str, str], otherwise: Chooser = first_variant) -> Chooser:
    """Return a Chooser that takes the variant named for a problem's key, else as `otherwise` does."""

    def choose(node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
        if len(variants) < 2:
            return variants[0]
        name = names.get(signature(node.spec, problem).key, "")
        named = _Known(node.spec, problem, variants).named(name) if name else None
        return named or otherwise(node, problem, variants)

    return choose
