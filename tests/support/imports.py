"""The imports of a package as a table, and the circles in it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

Import = tuple[str, str]
"""(importing module, imported module)"""


def sources(package: Path) -> dict[str, ast.Module]:
    """Return module name -> syntax tree of all modules of the package in a folder."""
    return {
        ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): ast.parse(path.read_text("utf-8"))
        for path in sorted(package.rglob("*.py"))
    }


def imports_of(trees: Mapping[str, ast.Module], typing: bool = True) -> set[Import]:
    """Return all imports of modules: at the top, in functions, and by import_module("name").

    typing: those under TYPE_CHECKING, too. A name imported from a package is a module where there
    is one of that name. Packages that a module lies in are not counted.
    """
    return {
        (importer, imported)
        for importer, tree in trees.items()
        for node in _walk(tree, typing)
        for imported in _imported(importer, node, trees)
        if imported != importer
    }


def _walk(tree: ast.AST, typing: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if typing or not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from _walk(node, typing)


def _imported(importer: str, node: ast.AST, trees: Mapping[str, ast.Module]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = ".".join([*importer.split(".")[: -node.level or None], *filter(None, [node.module])])
        base = base if node.level else str(node.module)
        named = [f"{base}.{alias.name}" for alias in node.names]
        return [name if name in trees else base for name in named]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        return [a.value for a in node.args if isinstance(a, ast.Constant)]
    return []


def circles(edges: Iterable[Import]) -> list[list[str]]:
    """Return circles [a, b, ..., a], a importing b, such that without them there is none."""
    left, found = set(edges), []
    while True:
        graph = defaultdict(set)
        for importer, imported in left:
            graph[importer].add(imported)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            found.append(error.args[1][::-1])
            left -= set(zip(found[-1], found[-1][1:], strict=False))
        else:
            return found
