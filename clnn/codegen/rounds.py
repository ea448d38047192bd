"""How many rounds the loops of a work-item do at most, read from a kernel's source.

For devices that end loops after a number of rounds. Extents are literals in kernels, so that intervals
of the integers that loops begin and end with tell it; what they do not tell counts as without end.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from functools import lru_cache

from clnn.records import dataclass

Interval = tuple[float, float]
ANY: Interval = (-math.inf, math.inf)
_HALVINGS = 32  # of an int, at most
_GROUP = re.compile(r"reqd_work_group_size\((\d+), (\d+), (\d+)\)")
_FUNCTION = re.compile(r"(\w+)\s*\(([^;{}()]*)\)\s*\{")
_CONSTANT = re.compile(r"(?:const )?u?int (?=\w+ = )")
_LEFT = re.compile(r"if \((\w+) (>=?) (\d+)\) return;")
_HEADER = re.compile(r"(for|while|do)\b\s*")
_STEP = re.compile(r"\+\+\w+|\w+\+\+|\w+ \+= (\d+)")
_BY_HALVES = re.compile(r"(\w+) (/= 2|>>= 1)")


@lru_cache(maxsize=1024)
def most_rounds(source: str) -> float:
    """Return an upper bound of the rounds of all loops of a work-item, infinity where there is none.

    The test that ends a loop counts as a round.
    """
    text = re.sub(r"//[^\n]*|^[ \t]*#[^\n]*", "", source, flags=re.MULTILINE)
    if re.search(r"^[ \t]*#define .*\b(for|while|do)\b", source, re.MULTILINE):
        return math.inf
    size = _GROUP.search(text)
    text = _GROUP.sub("", text)
    known: dict[str, Interval] = {
        name: (int(n), int(n)) for name, n in re.findall(r"#define (\w+) (\d+)$", source, re.M)
    }
    lanes = math.prod(map(int, size.groups())) if size else math.inf
    walk = _Walk({}, lanes)
    total = 0.0
    at = 0
    while match := _FUNCTION.search(text, at):
        end = _closing(text, match.end() - 1)
        names = [p.split()[-1].strip("*") for p in match[2].split(",") if p.strip()]
        body = text[match.end() : end]
        if "__kernel" in text[at : match.start()]:
            total += walk.block(body, known)
        else:
            walk.functions[match[1]] = (names, body, known)
        at = end + 1
    return total


@dataclass
class _Walk:
    """Walks through kernels. functions: name -> (parameters, body, constants); lanes: of a group."""

    functions: dict[str, tuple[list[str], str, Mapping[str, Interval]]]
    lanes: float

    def block(self, text: str, known: Mapping[str, Interval]) -> float:
        """Return the rounds of a list of statements."""
        here, total, at = dict(known), 0.0, 0
        while at < len(text):
            end, rounds = self.statement(text, at, here)
            total, at = total + rounds, end
        return total

    def statement(self, text: str, at: int, known: dict[str, Interval]) -> tuple[int, float]:
        """Return where the statement at a place ends, and its rounds; note constants in `known`."""
        at += len(text[at:]) - len(text[at:].lstrip())
        if text.startswith("{", at):
            end = _closing(text, at)
            return end + 1, self.block(text[at + 1 : end], known)
        if match := _HEADER.match(text, at):
            if match[1] != "for":
                return len(text), math.inf
            close = _closing(text, match.end())
            header = [part.strip() for part in text[match.end() + 1 : close].split(";")]
            rounds, inner = self.rounds(header, known)
            end, body = self.statement(text, close + 1, inner)
            return end, rounds + 1 + (rounds * body if body else 0)
        if left := _LEFT.match(text, at):
            low, high = known.get(left[1], ANY)
            known[left[1]] = low, min(high, int(left[3]) - (left[2] == ">="))
            return left.end(), 0.0
        if (brace := _head_of_block(text, at)) >= 0:
            return brace, self.calls(text[at:brace], known)
        end = text.find(";", at)
        end = len(text) if end < 0 else end
        line = text[at:end]
        if constant := _CONSTANT.match(line):
            for part in _split(line[constant.end() :]):
                name, _, value = (piece.strip() for piece in part.partition("="))
                fixed = line.startswith("const ")
                known[name] = self.interval(value, known) if value and fixed else ANY
        return end + 1, self.calls(line, known)

    def rounds(
        self, header: list[str], known: Mapping[str, Interval]
    ) -> tuple[float, dict[str, Interval]]:
        """Return the rounds of a loop, and what is known inside of it."""
        first = _CONSTANT.sub("", header[0]).partition("=")
        name, start = first[0].strip(), first[2].strip()
        if _BY_HALVES.fullmatch(header[2]):
            return _HALVINGS, dict(known)
        step = _STEP.match(header[2])
        test = re.fullmatch(r"(\w+)(?: \+ \d+)? (<=?) (.+)", header[1])
        if step is None or test is None:
            return math.inf, dict(known)
        low, high = self.interval(start, known)[0], self.interval(test[3], known)[1]
        low = 0 if math.isinf(low) else low  # indices, which are counted from 0
        steps = int(step[1] or 1)
        length = high - low + (test[2] == "<=")
        begin = re.match(rf"(?:min\()?{re.escape(start)} \+ (\d+)\b", test[3]) if start else None
        if begin and not re.search(r"[-+*/%]", test[3][begin.end() :].partition(",")[0]):
            length = min(length, int(begin[1]) + (test[2] == "<="))
        inside = dict(known) | {name or test[1]: (low, high)}
        return max(0.0, float(math.ceil(length / steps))) if length < math.inf else length, inside

    def calls(self, line: str, known: Mapping[str, Interval]) -> float:
        """Return the rounds of the functions that a line calls."""
        total = 0.0
        for match in re.finditer(r"(\w+)\(", line):
            if match[1] in self.functions:
                names, body, fixed = self.functions[match[1]]
                close = _closing(line, match.end() - 1)
                given = [self.interval(v, known) for v in _split(line[match.end() : close])]
                total += self.block(body, {**fixed, **dict(zip(names, given, strict=False))})
        return total

    def interval(self, text: str, known: Mapping[str, Interval]) -> Interval:
        """Return what an expression of C may be."""
        text = re.sub(r"\((?:u?int|size_t)\)", "", text).replace("/", "//")
        if choice := re.fullmatch(r"[^?]+\?([^?:]+):([^?:]+)", text):
            one, two = (self.interval(part.replace("//", "/"), known) for part in choice.groups())
            return min(one[0], two[0]), max(one[1], two[1])
        text = re.sub(r"\b([A-Za-z_]\w*)", r"_\1", text)  # C's names may be keywords of Python
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            return ANY
        return self._of(tree, known)

    def _of(self, tree: ast.expr, known: Mapping[str, Interval]) -> Interval:
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
            return tree.value, tree.value
        if isinstance(tree, ast.Name):
            return known.get(tree.id[1:], ANY)
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            low, high = self._of(tree.operand, known)
            return -high, -low
        if isinstance(tree, ast.BinOp):
            return _combined(tree.op, self._of(tree.left, known), self._of(tree.right, known))
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            args = [self._of(arg, known) for arg in tree.args]
            name = tree.func.id[1:]
            lows, highs = [a[0] for a in args], [a[1] for a in args]
            if name == "min":
                return min(lows), min(highs)
            if name == "max":
                return max(lows), max(highs)
            if name in ("get_global_id", "get_group_id", "get_local_id"):
                return 0, self.lanes - 1 if name == "get_local_id" else math.inf
        return ANY


def _combined(op: ast.operator, a: Interval, b: Interval) -> Interval:
    if isinstance(op, ast.Add):
        return a[0] + b[0], a[1] + b[1]
    if isinstance(op, ast.Sub):
        return a[0] - b[1], a[1] - b[0]
    if isinstance(op, ast.Mult):
        ends = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
        return min(ends), max(ends)
    if b[0] < 1:
        return ANY
    if isinstance(op, ast.FloorDiv):
        ends = [_quotient(x, y) for x in a for y in b]
        return min(ends), max(ends)
    if isinstance(op, ast.Mod):
        return (0 if a[0] >= 0 else 1 - b[1]), min(b[1] - 1, a[1]) if a[0] >= 0 else b[1] - 1
    return ANY


def _quotient(x: float, y: float) -> float:
    """Return x / y as C divides integers, where either may have no end."""
    if math.isinf(x):
        return x
    return 0.0 if math.isinf(y) else float(math.trunc(x / y))


def _closing(text: str, at: int) -> int:
    """Return the place of the bracket that closes the one at a place."""
    opening = text[at]
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if not depth:
            return place
    return len(text)


def _head_of_block(text: str, at: int) -> int:
    """Return where the brace or loop behind `if (...)` or `else` begins, -1 for other statements."""
    if text.startswith("else", at):
        return at + 4
    if re.match(r"if\s*\(", text[at:]):
        return _closing(text, text.index("(", at)) + 1
    return -1


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, last = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            parts.append(text[last:place])
            last = place + 1
    return [*parts, text[last:]]
