"""The one place that renders Mako: (template, parameters) -> OpenCL source text.

The text is a pure function of both. Templates are searched in $CLNN_KERNEL_PATH, then in the
checkout's kernels_cl/, then in the installed package.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clnn.codegen import filters
from clnn.codegen.filters import HELPERS
from clnn.errors import TemplateError
from clnn.ops.launch import KernelText, Launch
from clnn.settings import setting

if TYPE_CHECKING:
    from clnn.codegen.templates import CodeStore

_code: CodeStore | None = None
# Mako's pages of errors as HTML load pygments where it is installed: 5 MB that nothing here shows. Pages of
# others in this process then lack colours, unless mako was loaded before.
COLOURS = "mako.ext.pygmentplugin"
LIBRARIES = "_arith"  # folder of the templates that parameters choose
_USES = re.compile(rb'<%(?:namespace|include|inherit)\b[^>]*\bfile="([^"]+)"')


@cache
def template_folders(extra: str = "") -> tuple[str, ...]:
    """Return the folders that hold kernel templates, first match first. Raises TemplateError."""
    package = Path(__file__).resolve().parent.parent
    places = [Path(extra)] if extra else []
    places += [package.parent / "kernels_cl", package / "_kernels_cl"]
    folders = tuple(str(p) for p in places if p.is_dir())
    if not folders:
        raise TemplateError(
            f"no kernel templates in {', '.join(map(str, places))}. Reinstall clnn."
        )
    return folders


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Refuse to import a module meanwhile, unless it is there."""
    there = module in sys.modules
    if not there:
        sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if not there:
            sys.modules.pop(module, None)  # another thread may have been here, too


def keep_code(store: CodeStore | None) -> None:
    """Keep the code of templates in a store, from now on, or in none."""
    global _code
    _code = store
    _lookup.cache_clear()


@cache
def _lookup(folders: tuple[str, ...]) -> Any:
    with _without(COLOURS):
        from clnn.codegen.templates import KeptLookup, plain_lookup

    return plain_lookup(folders) if _code is None else KeptLookup(folders, _code)


def render(template: str, params: Mapping[str, Any]) -> str:
    """Return the OpenCL source of `template` with `params`.

    A template that calls define(name, text) has that text in front of its own, once for each name.
    Raises TemplateError, with the template's line, when a parameter is missing or refused.
    """
    folders = template_folders(setting("CLNN_KERNEL_PATH"))
    try:
        text = _rendered(_lookup(folders), template, params)
    except Exception:
        text = _again(folders, template, params)
    if int(setting("CLNN_DEBUG")) >= 4:
        text = f'#line 1 "{template}"\n{text}'
    return _tidy(text)


def _rendered(lookup: Any, template: str, params: Mapping[str, Any]) -> str:
    defined: dict[str, str] = {}
    text = lookup.get_template(template).render(**HELPERS, **params, define=defined.setdefault)
    return "".join([*defined.values(), text])


def _again(folders: tuple[str, ...], template: str, params: Mapping[str, Any]) -> str:
    """Render without kept code, which knows no lines. Raises TemplateError where that fails, too."""
    from clnn.codegen.templates import plain_lookup

    try:
        return _rendered(plain_lookup(folders), template, params)
    except Exception as err:
        raise TemplateError(_explain(template, params, err)) from err


def rendered(launch: Launch) -> KernelText:
    """Return the kernel that the template of a launch makes. Raises TemplateError."""
    if launch.numbers:
        params = tuple(launch.params.items())
        source = _rendered_once(setting("CLNN_KERNEL_PATH"), launch.template, params)
        return KernelText(source, str(launch.params["name"]), launch.numbers)
    return KernelText(render(launch.template, launch.params), str(launch.params["name"]))


@cache
def _rendered_once(path: str, template: str, params: tuple[tuple[str, Any], ...]) -> str:
    """Return what render does, for the few texts that launches with numbers have."""
    return render(template, dict(params))


def _explain(template: str, params: Mapping[str, Any], err: Exception) -> str:
    from mako.exceptions import RichTraceback

    place = template
    for name, line, _, text in reversed(RichTraceback(error=err).traceback or []):
        if str(name).endswith(".mako"):
            place = f"{name}:{line} ({(text or '').strip()})"
            break
    return (
        f"template {place} was refused: {type(err).__name__}: {err}. "
        f"Parameters: {', '.join(sorted(params))}."
    )


def _tidy(text: str) -> str:
    """Drop blank lines and trailing blanks, so that equal kernels have equal text."""
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def template_hash(template: str) -> str:
    """Return a hash over the text of a template, of those it uses, and of the helpers they use."""
    return _template_hash(template_folders(setting("CLNN_KERNEL_PATH")), template)


@cache
def _template_hash(folders: tuple[str, ...], template: str) -> str:
    digest = hashlib.sha256(Path(filters.__file__).read_bytes())
    waiting, seen = [template], set()
    while waiting:
        name = waiting.pop()
        path = next((p for p in (Path(f, name) for f in folders) if p.is_file()), None)
        if name in seen or path is None:
            continue
        seen.add(name)
        text = path.read_bytes()
        digest.update(name.encode() + b"\0" + text)
        for used in sorted(found.decode() for found in _USES.findall(text)):
            waiting += _files(folders, name, used)
    return digest.hexdigest()


def _files(folders: tuple[str, ...], user: str, used: str) -> list[str]:
    """Return the templates that a `file` attribute in `user` names: all libraries where it computes."""
    if "${" not in used:
        return [posixpath.normpath(posixpath.join("/", posixpath.dirname(user), used)).lstrip("/")]
    libraries = {
        f"{LIBRARIES}/{p.name}" for f in folders for p in Path(f, LIBRARIES).glob("*.mako")
    }
    return sorted(libraries)
