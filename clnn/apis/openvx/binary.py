"""A whole verified graph with its weights in one file: export, and import of what is not trusted.

The file is a zip archive: graph.json describes tensors, tables, scalars and nodes; N.bin holds the
elements of store N, little-endian, dimension 0 innermost; lut_N.bin those of table N.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np

from clnn.apis.openvx.enums import Status, Type
from clnn.apis.openvx.graph import vxVerifyGraph
from clnn.apis.openvx.kernels import KERNELS
from clnn.apis.openvx.model import Graph, Node, add_node, vxCreateGraph, vxCreateVirtualTensor
from clnn.apis.openvx.objects import Lut, Scalar, vxCreateLUT, vxCreateScalar
from clnn.apis.openvx.reference import Context, Reference, release, require, vxSetReferenceName
from clnn.apis.openvx.status import VxError, parameters, whole
from clnn.apis.openvx.tensor import NUMPY, Store, Tensor, inside, vxCreateTensor
from clnn.apis.openvx.topology import uncovered

VERSION = 1
LARGEST_JSON = 64 * 2**20
LARGEST_DATA = 2**34  # bytes of all tensors of a file together
MOST = 16384  # objects of one kind in a file
_R = TypeVar("_R", bound=Reference)


class Import(Reference):
    """vx_import: the objects of a file, by name and by index; index 0 is the graph."""

    type = Type.VX_TYPE_IMPORT

    def __init__(self, context: Context, items: Mapping[str, Reference], owned: Any) -> None:
        super().__init__(context)
        self.items = dict(items)
        self.owned: tuple[Reference, ...] = tuple(owned)

    def destroy(self) -> None:
        """Release the import's own references."""
        super().destroy()
        for reference in self.owned:
            if reference.count > 0:
                release(reference)


class _Writer:
    """Numbers the objects that a graph uses and describes them."""

    def __init__(self) -> None:
        self.lists: dict[str, list[Any]] = {"stores": [], "tensors": [], "scalars": [], "luts": []}
        self.about: dict[str, list[dict[str, Any]]] = {name: [] for name in self.lists}
        self.data: dict[str, bytes] = {}

    def place(self, group: str, item: Any, about: dict[str, Any]) -> int:
        """Return the number of an object, which is noted when it is new."""
        known = self.lists[group]
        for number, other in enumerate(known):
            if other is item:
                return number
        known.append(item)
        self.about[group].append(about)
        return len(known) - 1

    def store(self, store: Store, written: list[Any]) -> int:
        """Return the number of a store; its elements are kept where the graph does not write them."""
        dims, number = list(store.dims), len(self.lists["stores"])
        whole_box = tuple((0, d) for d in store.dims)
        boxes = [tensor.place for _, tensor in written]
        keep = store.graph is None and uncovered(whole_box, boxes) is not None
        about = {
            "dims": dims,
            "type": int(store.kind),
            "position": store.fraction,
            "virtual": store.graph is not None,
            "data": keep,
        }
        place = self.place("stores", store, about)
        if place == number and keep:
            assert store.array is not None
            self.data[f"{place}.bin"] = _bytes(store.array)
        return place

    def value(self, value: Any, written: Mapping[Store, list[Any]]) -> Any:
        """Return a parameter as JSON; objects are named by list and number."""
        if isinstance(value, Tensor):
            store = self.store(value.store, list(written.get(value.store, ())))
            box = None if value.box is None else [list(pair) for pair in value.box]
            seen = {"store": store, "box": box, "name": value.name}
            return {"tensors": self.place("tensors", value, seen)}
        if isinstance(value, Scalar):
            about: dict[str, Any] = {
                "type": int(value.kind),
                "value": value.value,
                "name": value.name,
            }
            return {"scalars": self.place("scalars", value, about)}
        if isinstance(value, Lut):
            about = {"type": int(value.kind), "count": value.array.size, "name": value.name}
            place = self.place("luts", value, about)
            self.data[f"lut_{place}.bin"] = _bytes(value.array)
            return {"luts": place}
        return int(value) if isinstance(value, IntEnum) else value


def _bytes(array: Any) -> bytes:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()


def vxExportBinary(
    graph: Graph, path: str | os.PathLike[str], references: Mapping[str, Reference] | None = None
) -> Status:
    """Write a graph and all data that it does not compute to one file.

    references: objects of the graph that the importer shall find by these names. The graph is
    verified first where it is not. Raises VxError, or OSError where the file cannot be written.
    """
    require(Graph, graph, "graph")
    with graph.home.lock:
        if graph.verified is None:
            vxVerifyGraph(graph)
        writer, written = _Writer(), graph.verified.written
        nodes = [
            {
                "kernel": node.kernel,
                "name": node.name,
                "values": {n: writer.value(v, written) for n, v in node.values.items()},
            }
            for node in graph.nodes
        ]
        names = {}
        for name, reference in (references or {}).items():
            require(Reference, reference, f"references[{name!r}]")
            entry = writer.value(reference, written)
            if not isinstance(entry, dict) or name == "graph" or not isinstance(name, str):
                raise parameters(
                    f"references[{name!r}] must be a tensor, scalar or table of the "
                    "graph, and not named 'graph'."
                )
            names[name] = entry
        about = {
            "format": "clnn.openvx",
            "version": VERSION,
            "name": graph.name,
            "conformance": graph.home.conformance,
            "nodes": nodes,
            "names": names,
            **writer.about,
        }
    _write(os.fspath(path), json.dumps(about), writer.data)
    return Status.VX_SUCCESS


def _write(path: str, about: str, data: Mapping[str, bytes]) -> None:
    """Write the archive under a name of its own, then move it to its place."""
    folder = os.path.dirname(os.path.abspath(path))
    handle, partial = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with (
            os.fdopen(handle, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            archive.writestr("graph.json", about)
            for name, content in data.items():
                archive.writestr(name, content)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def refuse(why: str) -> VxError:
    """Return the error of a file that is not what vxExportBinary writes."""
    return VxError(
        Status.VX_ERROR_INVALID_FORMAT, f"{why}. Use a file that vxExportBinary has written."
    )


class _Reader:
    """Makes the objects of a file in a context; every value is checked as a caller's would be."""

    def __init__(self, context: Context, archive: zipfile.ZipFile) -> None:
        self.context = context
        self.archive = archive
        self.references: list[Reference] = []
        self.lists: dict[str, list[Any]] = {}
        about = json.loads(self.read("graph.json", None))
        if not isinstance(about, dict) or about.get("format") != "clnn.openvx":
            raise refuse("graph.json does not describe a graph")
        if about.get("version") != VERSION:
            raise refuse(f"version {about.get('version')!r} is not {VERSION}")
        self.about: dict[str, Any] = about

    def read(self, name: str, size: int | None) -> bytes:
        """Return an entry of the archive, of exactly `size` bytes where that is given."""
        try:
            info = self.archive.getinfo(name)
        except KeyError:
            raise refuse(f"entry {name} is missing") from None
        if (size is None and info.file_size > LARGEST_JSON) or size not in (None, info.file_size):
            raise refuse(f"entry {name} has {info.file_size} bytes, expected {size or 'fewer'}")
        with self.archive.open(info) as file:
            return file.read(info.file_size)

    def entries(self, group: str) -> list[dict[str, Any]]:
        """Return the descriptions of one kind."""
        listed = self.about.get(group)
        if not (
            isinstance(listed, list)
            and len(listed) <= MOST
            and all(isinstance(entry, dict) for entry in listed)
        ):
            raise refuse(f"{group} is not a list of at most {MOST} descriptions")
        return listed

    def keep(self, reference: _R, name: Any = "") -> _R:
        """Note an object that was made, and name it."""
        self.references.append(reference)
        if name:
            vxSetReferenceName(reference, name)
        return reference

    def fill(self, array: Any, entry: str) -> None:
        """Fill an array with the elements of an entry."""
        raw = self.read(entry, array.nbytes)
        array[...] = np.frombuffer(raw, array.dtype.newbyteorder("<")).reshape(array.shape)

    def graph(self) -> Graph:
        """Return the graph, with all objects made."""
        if self.about.get("conformance") is not self.context.conformance:
            raise VxError(
                Status.VX_ERROR_NOT_COMPATIBLE,
                f"the file was made with conformance={self.about.get('conformance')!r}. Make the "
                "context so.",
            )
        graph = self.keep(vxCreateGraph(self.context), self.about.get("name"))
        self.stores(graph)
        self.lists["tensors"] = [self.tensor(e) for e in self.entries("tensors")]
        self.lists["scalars"] = [
            self.keep(vxCreateScalar(self.context, e["type"], e["value"]), e.get("name"))
            for e in self.entries("scalars")
        ]
        self.lists["luts"] = [self.lut(k, e) for k, e in enumerate(self.entries("luts"))]
        for entry in self.entries("nodes"):
            self.node(graph, entry)
        vxVerifyGraph(graph)
        return graph

    def stores(self, graph: Graph) -> None:
        """Make the stores of all tensors."""
        stores, total = [], 0
        for place, entry in enumerate(self.entries("stores")):
            arguments = (len(entry["dims"]), entry["dims"], entry["type"], entry["position"])
            if entry["virtual"] is True:
                tensor = vxCreateVirtualTensor(graph, *arguments)
            else:
                kind = NUMPY.get(entry["type"])
                total += int(np.prod(entry["dims"], dtype=object)) * (kind.itemsize if kind else 1)
                if total > LARGEST_DATA:
                    raise refuse(f"tensors take more than {LARGEST_DATA} bytes")
                tensor = vxCreateTensor(self.context, *arguments)
            release(tensor)
            stores.append(tensor.store)
            if entry["data"] is True and tensor.store.array is not None:
                self.fill(tensor.store.array, f"{place}.bin")
        self.lists["stores"] = stores

    def tensor(self, entry: dict[str, Any]) -> Tensor:
        """Make a tensor, or the view that it is."""
        stores = self.lists["stores"]
        store: Store = stores[whole(entry["store"], 0, len(stores) - 1, "store")]
        box = None
        if entry["box"] is not None:
            pairs = [
                (whole(a, 0, 2**31, "box"), whole(b, 0, 2**31, "box")) for a, b in entry["box"]
            ]
            if any(a >= b for a, b in pairs):
                raise refuse(f"a box is empty: {pairs}")
            box = tuple(pairs)
            if not store.sized:
                raise refuse("a view is of a tensor without sizes")
            inside(store.dims, box)
        return self.keep(Tensor(self.context, store, box), entry.get("name"))

    def lut(self, place: int, entry: dict[str, Any]) -> Lut:
        """Make a table with its entries."""
        lut = vxCreateLUT(self.context, entry["type"], entry["count"])
        self.keep(lut, entry.get("name"))
        self.fill(lut.array, f"lut_{place}.bin")
        return lut

    def value(self, value: Any) -> Any:
        """Return a parameter: an object that a description names, or a plain number."""
        if isinstance(value, dict):
            ((group, place),) = value.items()
            if group not in ("tensors", "scalars", "luts"):
                raise refuse(f"a parameter names {group!r}")
            known = self.lists[group]
            return known[whole(place, 0, len(known) - 1, group)]
        if value is not None and not isinstance(value, (bool, int, float)):
            raise refuse(f"a parameter is {value!r:.80}")
        return value

    def node(self, graph: Graph, entry: dict[str, Any]) -> None:
        """Add a node to the graph."""
        kernel, values = entry["kernel"], entry["values"]
        if kernel not in KERNELS or not isinstance(values, dict):
            raise refuse(f"no node is called {kernel!r:.80}")
        node: Node = add_node(graph, kernel, {n: self.value(v) for n, v in values.items()})
        if entry.get("name"):
            vxSetReferenceName(node, entry["name"])


def vxImportBinary(context: Context, path: str | os.PathLike[str]) -> Import:
    """Return the objects of a file that vxExportBinary has written, the graph verified.

    The file is checked as input that is not trusted. Raises VxError with VX_ERROR_INVALID_FORMAT
    where it is malformed, VX_ERROR_NOT_COMPATIBLE where it is of another option of the context,
    the status of vxVerifyGraph where its graph is not valid, or OSError.
    """
    require(Context, context, "context")
    reader = None
    try:
        with zipfile.ZipFile(path) as archive:
            reader = _Reader(context, archive)
            graph = reader.graph()
            names = reader.about.get("names")
            if not isinstance(names, dict) or "graph" in names:
                raise refuse("names is not a table of names")
            items = {"graph": graph, **{str(n): reader.value(v) for n, v in names.items()}}
            if not all(isinstance(item, Reference) for item in items.values()):
                raise refuse("a name belongs to no object")
        return Import(context, items, reader.references)
    except BaseException as error:
        for reference in reader.references if reader is not None else ():
            reference.count = 0
            reference.destroy()
        if isinstance(error, (VxError, OSError)) or not isinstance(error, Exception):
            raise
        what = f"{type(error).__name__}: {error}"
        raise refuse(f"{os.fspath(path)} cannot be read ({what[:200]})") from None


def vxGetImportReferenceByName(imported: Import, name: str) -> Reference:
    """Return an object by the name it was exported under, with a reference of its own."""
    require(Import, imported, "import")
    if name not in imported.items:
        raise parameters(f"no object is named {name!r}. Names: {', '.join(imported.items)}.")
    imported.items[name].count += 1
    return imported.items[name]


def vxGetImportReferenceByIndex(imported: Import, index: int) -> Reference:
    """Return an object by its place in the file, with a reference of its own; 0 is the graph."""
    require(Import, imported, "import")
    items = list(imported.items.values())
    item = items[whole(index, 0, len(items) - 1, "index")]
    item.count += 1
    return item


def vxReleaseImport(imported: Import) -> Status:
    """Release one reference to an import; its objects lose the import's own with the last."""
    return release(require(Import, imported, "import"))
