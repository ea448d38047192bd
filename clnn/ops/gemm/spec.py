"""Matrix products: Gemm and MatMul over any strided views, with fused post-ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout
from clnn.ops.gemm.few_rows import dot_variant, reads_aligned, split_sums
from clnn.ops.gemm.workgroup import shared_variants, unshared
from clnn.ops.launch import Arg, Const, In, Launch, Out, Scratch, Variant, by_cost, grid
from clnn.ops.problem import Problem
from clnn.ops.shared.epilogue import operand_layouts
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.shared.matrices import (
    Panels,
    Product,
    Tile,
    Views,
    flip,
    folded,
    gemm_tile,
    gemm_tiles,
    insert_axis,
    pack_panels,
    packed_view,
    packing,
    panels_for,
    product,
)
from clnn.ops.spec import OpSpec
from clnn.target import Target
from clnn.types import F32, I32, I64, U32, U64, Array, TensorType, broadcast_shapes

ADDEND = 2
L2_BYTES = 256 * 1024  # what stays close to a core while a product walks over it
PACK_ELEMENTS = 8192  # elements that one CPU work-item packs
PACK = 4  # slots of a vector that is packed on the device
TILES = 10  # tiles that are worth a measurement
TILES_BESIDE = 4  # of them, beside work-groups' tiles
SWAPPED_ORDER_COST = 1.04  # cost of the group order that the size of b speaks against


@dataclass(frozen=True)
class Gemm(OpSpec):
    """alpha * a b + beta * c: inputs a (..., m, k), b (..., k, n), c or None, operands of `post_ops`.

    The axes in front are batches and broadcast, as numpy's matmul does; an input of one axis is a
    row (a) or a column (b) whose axis the output lacks. trans_a, trans_b: the last two axes of an
    input are exchanged. c is broadcast to the output.
    """

    alpha: float = 1.0
    beta: float = 1.0
    trans_a: bool = False
    trans_b: bool = False
    post_ops: tuple[PostOp, ...] = ()

    kind = "gemm"
    fuses_post_ops = True
    supports_narrow_storage = True
    first_operand = 3

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError where inputs do not fit."""
        a, b = inputs[0], inputs[1]
        c = inputs[ADDEND] if len(inputs) > ADDEND else None
        if a is None or b is None or not a.rank or not b.rank:
            raise ShapeError("a matrix product needs two inputs of one axis or more.")
        _check_types([t for t in (a, b, c) if t is not None])
        if (self.trans_a and a.rank < 2) or (self.trans_b and b.rank < 2):
            raise ShapeError(f"matrix product of {a.shape} and {b.shape}: one axis, transposed.")
        rows, columns = self._matrices(a.shape, b.shape)
        if rows[-1] != columns[-2]:
            raise ShapeError(
                f"matrix product of {a.shape}{'ᵀ' * self.trans_a} and {b.shape}"
                f"{'ᵀ' * self.trans_b}: the sums have {rows[-1]} and {columns[-2]} terms."
            )
        outer = broadcast_shapes(rows[:-2], columns[:-2])
        last = (*rows[-2:-1][: a.rank > 1], *columns[-1:][: b.rank > 1])
        out = (*outer, *last)
        if c is not None and broadcast_shapes(c.shape, out) != out:
            raise ShapeError(f"addend {c.shape} of a matrix product does not broadcast to {out}.")
        return (TensorType(out, a.dtype),)

    def _matrices(
        self, a: tuple[int, ...], b: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes as matrices: (..., m, k) and (..., k, n)."""
        rows = a if len(a) > 1 else (1, *a)
        columns = b if len(b) > 1 else (*b, 1)
        if self.trans_a:
            rows = (*rows[:-2], rows[-1], rows[-2])
        if self.trans_b:
            columns = (*columns[:-2], columns[-1], columns[-2])
        return rows, columns

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's matmul, in the arrays' own precision."""
        a, b = inputs[0], inputs[1]
        assert a is not None and b is not None
        a = np.swapaxes(a, -1, -2) if self.trans_a else a
        b = np.swapaxes(b, -1, -2) if self.trans_b else b
        y = np.asarray(np.matmul(a, b))
        y = y * y.dtype.type(self.alpha)
        c = inputs[ADDEND] if len(inputs) > ADDEND else None
        if c is not None and self.beta != 0:
            y = y + y.dtype.type(self.beta) * c
        return (apply_post_ops(np.asarray(y), self.post_ops, inputs),)

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per multiply-add."""
        a, b = inputs[0], inputs[1]
        assert a is not None and b is not None
        return 2 * outputs[0].size * self._matrices(a.shape, b.shape)[0][-1]

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the fast kernels that fit, best first, and the reference kernel."""
        out = problem.outputs[0].type
        if out.size == 0:
            return [Variant("empty", ())]
        views = _views(self, problem)
        reference = _reference(_Job(self, problem, views))
        if out.dtype != F32 or views.k == 0:
            return [reference]
        plain, job = _jobs(self, problem, views)
        if job.b_const is not None:
            tiled = [_tiled_const(job)]
        else:
            packed = _tiled_scratch(job) if plain.b_const is None else _tiled_const(plain)
            tiled = _moving(job, packed)
        return [*_beside_groups(plain, job, tiled), reference]

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return tiles of every way that b can be read, in both group orders."""
        views = _views(self, problem)
        if problem.outputs[0].type.dtype != F32 or not problem.outputs[0].type.size * views.k:
            return self.variants(problem)
        plain, job = _jobs(self, problem, views)
        found = product(job.views)
        moves = job.b_const is None and plain.b_const is None
        turned = plain if job.b_const is None and not moves else job
        packed = _tiled_scratch if moves else _tiled_const
        made = [packed(chosen) for first in (True, False) for chosen in _choices(turned, first)]
        if job.b_const is None and found.b[1] == 1:
            made += [
                _tiled_direct(chosen, found)[0]
                for first in (True, False)
                for chosen in _choices(job, first, widest=found.n)
            ]
        dot = job.b_const is None and _along_k(job, found)
        made += [dot_variant(job, found)] if dot else []
        return by_cost([*made, *shared_variants(plain, job)])

    def epilogue(self, has_addend: bool) -> tuple[PostOp, ...]:
        """Return alpha, the addend and `post_ops` as one chain (the addend's factor is separate)."""
        chain: list[PostOp] = []
        if self.alpha != 1:
            chain.append(PostOp("mul", (self.alpha,)))
        if has_addend and self.beta != 0:
            chain.append(PostOp("add", operand=ADDEND))
        return (*chain, *self.post_ops)


def _check_types(given: Sequence[TensorType]) -> None:
    allowed = (F32, I32, I64, U32, U64)
    if any(t.dtype != given[0].dtype or t.dtype not in allowed for t in given):
        names = ", ".join(t.dtype.name for t in given)
        raise DTypeError(
            f"matrix product of types {names}: they must be equal, and one of "
            f"{', '.join(t.name for t in allowed)}."
        )


@dataclass(frozen=True)
class _Job:
    """A problem with the orientation that kernels compute it in.

    tile, first: what a tiled kernel is to use instead of what is estimated best, and what it costs.
    """

    spec: Gemm
    problem: Problem
    views: Views
    tile: Tile | None = None
    first: bool | None = None
    cost: float = 0.0

    @property
    def target(self) -> Target:
        return self.problem.target

    @property
    def post_ops(self) -> tuple[PostOp, ...]:
        return self.spec.epilogue(self.problem.has(ADDEND))

    @property
    def b_const(self) -> Array | None:
        """The constant matrices (..., k, n) of b, or None where b is not constant."""
        which = self.views.inputs[1]
        array = self.problem.input(which).const
        if array is None:
            return None
        if array.ndim == 1:
            array = array[:, None] if which == 1 else array[None]
        if self.spec.trans_b if which == 1 else self.spec.trans_a:
            array = np.swapaxes(array, -1, -2)
        if which == 1:
            return array.reshape(self.views.b.shape)
        return np.swapaxes(array.reshape(flip(self.views.b).shape), -1, -2)

    def params(self, found: Product) -> dict[str, Any]:
        scales = {ADDEND: self.spec.beta} if self.spec.beta != 1 else {}
        return {
            "m": found.m,
            "n": found.n,
            "k": found.k,
            "a": found.a,
            "dst": found.dst,
            "batch": found.batch,
            "extras": found.extras,
            "scales": scales,
            "post_ops": self.post_ops,
        }

    def types(self, b: Arg) -> tuple[str, str, str]:
        """The types of a, b and dst; b may be scratch, of float."""
        inputs = [self.problem.input(k).ctype for k in self.views.inputs]
        return (
            inputs[0],
            F32.cl if isinstance(b, Scratch) else inputs[1],
            self.problem.outputs[0].ctype,
        )

    def packed(self, make: Callable[[], Array]) -> Const:
        """The constant b in a form of its own."""
        return self.problem.input(self.views.inputs[1]).packed(make)

    def args(self, b: Arg) -> tuple[Arg, ...]:
        return (In(self.views.inputs[0]), b, *(In(k) for k in self.views.extras), Out(0))


def _jobs(spec: Gemm, problem: Problem, views: Views) -> tuple[_Job, _Job]:
    """Return the problem as it stands and in the orientation whose columns are worth a vector."""
    plain = _Job(spec, problem, folded(views))
    return plain, replace(plain, views=_oriented(plain.views, problem))


def _choices(job: _Job, first: bool, widest: int = 1 << 30) -> list[_Job]:
    """Return the job with each tile that is worth a measurement."""
    found = product(job.views)
    most = TILES if job.target.is_cpu else TILES_BESIDE
    tiles = gemm_tiles(found.m, found.n, found.matrices, job.target, widest)[:most]
    speed = job.views.k * found.matrices / job.target.compute_units
    speed *= 1.0 if first == _small(job, found) else SWAPPED_ORDER_COST
    if not job.target.is_cpu:
        tiles = [(cycles * _on_gpus(job, found, tile, first), tile) for cycles, tile in tiles]
    return [replace(job, tile=tile, first=first, cost=cycles * speed) for cycles, tile in tiles]


def _on_gpus(job: _Job, found: Product, tile: Tile, first: bool) -> float:
    """Return the factor on a tile's cost that GPUs make."""
    tiles = -(-found.m // tile.mr)
    items = -(-found.n // tile.width) * tiles
    parts = split_sums(found, tile, job.target)[1] if first else 1
    return unshared(found, items, tiles, parts, job.target)


def _beside_groups(plain: _Job, job: _Job, tiled: list[Variant]) -> list[Variant]:
    """Return register-tiled kernels and the best one of shared operands, by their estimates."""
    groups = shared_variants(plain, job)[:1]
    best = not groups or groups[0].cost < _choices(job, True)[0].cost
    return [*groups, *tiled] if best else [*tiled, *groups]


def _views(spec: Gemm, problem: Problem) -> Views:
    """Return the operands as matrices in the node's own orientation."""
    a, b = problem.input(0).layout.unpadded(), problem.input(1).layout.unpadded()
    dst = problem.outputs[0].layout.unpadded()
    post_ops = spec.epilogue(problem.has(ADDEND))
    extras = {k: layout for k, (_, layout) in operand_layouts(problem, post_ops).items()}
    if b.rank == 1:
        b = insert_axis(b, 1)
        dst = insert_axis(dst, dst.rank)
        extras = {k: insert_axis(e, e.rank) for k, e in extras.items()}
    if a.rank == 1:
        a = insert_axis(a, 0)
        dst = insert_axis(dst, dst.rank - 1)
        extras = {k: insert_axis(e, e.rank - 1) for k, e in extras.items()}
    views = Views(a, b, dst, extras)
    turned_a = views.flipped().b if spec.trans_a else a
    turned_b = views.flipped().a if spec.trans_b else b
    return replace(views, a=turned_a, b=turned_b)


def _oriented(views: Views, problem: Problem) -> Views:
    """Return the orientation whose columns are worth a vector: many, and dense in dst."""
    m, n = views.m, views.n
    if n == 1 and m > 1:
        return views.flipped()
    rows, columns = views.dst.pitches[-2:]
    lies_turned = m > 1 and n > 1 and columns != 1 and rows == 1
    return views.flipped() if lies_turned and problem.input(1).const is None else views


def _tiled_const(job: _Job) -> Variant:
    """B is constant: packed once, on the host."""
    b, views = job.b_const, job.views
    assert b is not None
    tile = _tile(job, product(views))
    panels = panels_for(views.k, views.n, tile, job.target)
    found = product(replace(views, b=packed_view(views.b, panels)))
    launch = _tiled(job, found, tile, panels, "packed", job.packed(lambda: pack_panels(b, panels)))
    return Variant(str(launch.params["name"]), (launch,), job.cost)


def _tile(job: _Job, found: Product, widest: int = 1 << 30) -> Tile:
    return job.tile or gemm_tile(found.m, found.n, found.matrices, job.target, widest)


def _small(job: _Job, found: Product) -> bool:
    return found.k * found.n * 4 <= L2_BYTES or not job.target.is_cpu


def _along_k(job: _Job, found: Product) -> bool:
    return found.a[1] == 1 and found.b[0] == 1 and found.k >= 2 * job.target.vector


def _moving(job: _Job, packed: Variant) -> list[Variant]:
    """B is not constant: read where it lies, `packed` on the device, or as dot products."""
    found = product(job.views)
    direct = [_tiled_direct(job, found)] if found.b[1] == 1 else []
    dot = [dot_variant(job, found)] if _along_k(job, found) else []
    small = found.k * found.n * 4 <= L2_BYTES
    if direct and (small or found.m <= 2 * direct[0][1].mr or not job.target.is_cpu):
        order = [direct[0][0], packed, *dot]
    elif dot and found.m <= 4:
        order = [*dot, packed, *(v for v, _ in direct)]
    else:
        order = [packed, *(v for v, _ in direct), *dot]
    return order


def _tiled_direct(job: _Job, found: Product) -> tuple[Variant, Tile]:
    tile = _tile(job, found, widest=found.n)
    panels = Panels(tile.width, found.b[0], tile.width, 0)
    launch = _tiled(job, found, tile, panels, "direct", In(job.views.inputs[1]))
    return Variant(str(launch.params["name"]), (launch,), job.cost), tile


def _tiled_scratch(job: _Job) -> Variant:
    """B packed on the device, each of its matrices once."""
    views = job.views
    tile = _tile(job, product(views))
    panels = panels_for(views.k, views.n, tile, job.target)
    view = packed_view(views.b, panels)
    scratch = Scratch("panels", max(view.size, 1) * 4)
    first = _pack(job, tile, panels, view, scratch)
    launch = _tiled(job, product(replace(views, b=view)), tile, panels, "scratch", scratch)
    target = job.target
    cost = job.cost + PACK * view.size / (2 * target.vector * target.compute_units)
    return Variant(str(launch.params["name"]), (first, launch), cost)


def _pack(job: _Job, tile: Tile, panels: Panels, view: TensorLayout, scratch: Scratch) -> Launch:
    """Return the launch that packs b; its batch loops run over b's own matrices."""
    k, n = job.views.k, job.views.n
    src, batch = packing(job.views.b, view)
    strips = -(-n // panels.width) * tile.nv
    chunk = -(-min(PACK_ELEMENTS // tile.vw, k) // tile.vw) * tile.vw
    chunk = chunk if job.target.is_cpu else tile.vw
    matrices = int(np.prod(batch.extents))
    global_size, local = grid(job.target, strips, -(-k // chunk), matrices)
    how = {src[0]: "rows", src[1]: "columns"}.get(1, "any")
    params = {
        "name": f"gemm_pack_f32_{how}_w{panels.width}",
        "k": k,
        "ctype": job.problem.input(job.views.inputs[1]).ctype,
        "n": n,
        "src": src,
        "batch": batch,
        "row": panels.row,
        "panel": panels.panel,
        "strips": strips,
        "nv": tile.nv,
        "vw": tile.vw,
        "chunk": chunk,
        "wg": local,
    }
    args = (In(job.views.inputs[1]), scratch)
    return Launch("gemm/pack.cl.mako", params, args, global_size, local)


def _tiled(job: _Job, found: Product, tile: Tile, panels: Panels, how: str, b: Arg) -> Launch:
    blocks, tiles = -(-found.n // panels.width), -(-found.m // tile.mr)
    first = _small(job, found) if job.first is None else job.first
    lanes, parts = (1, 1) if job.target.is_cpu or not first else split_sums(found, tile, job.target)
    if parts > 1:
        across = -(-blocks // lanes) * lanes
        global_size: tuple[int, ...] = (across, tiles * parts, found.matrices)
        local: tuple[int, ...] = (lanes, parts, 1)
    else:
        sizes = (blocks, tiles) if first else (tiles, blocks)
        global_size, local = grid(job.target, *sizes, found.matrices)
    order = "blocks" if first else "rows"
    name = f"gemm_tiled_f32_{how}_t{tile.mr}x{panels.width}_{order}" + f"_p{parts}" * (parts > 1)
    params = job.params(found) | {
        "name": name,
        "row": panels.row,
        "panel": panels.panel,
        "b_moves": not isinstance(b, Const),
        "shift": how == "direct",
        "channels_fastest": first,
        "mr": tile.mr,
        "nv": tile.nv,
        "vw": tile.vw,
        "parts": parts,
        "wg": local,
        "types": job.types(b),
        "aligned": reads_aligned(job, found, tile, how),
    }
    return Launch("gemm/tiled.cl.mako", params, job.args(b), global_size, local)


def _reference(job: _Job) -> Variant:
    found = product(job.views)
    ctype = job.problem.outputs[0].ctype
    global_size, local = grid(job.target, found.m * found.n, found.matrices)
    name = f"gemm_reference_{job.problem.outputs[0].label}"
    params = job.params(found) | {"name": name, "ctype": ctype, "b": found.b, "wg": local}
    args = job.args(In(job.views.inputs[1]))
    return Variant(name, (Launch("gemm/reference.cl.mako", params, args, global_size, local),))
