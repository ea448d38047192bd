"""Graph passes, in the one order in which they run. Each is a function Graph -> Graph."""

from __future__ import annotations

from collections.abc import Callable

from clnn.budget import host_memory
from clnn.graph.ir import Graph, check
from clnn.graph.passes.dead import remove_dead
from clnn.graph.passes.factor_sums import factor_sums
from clnn.graph.passes.functions_before_joins import functions_before_joins
from clnn.graph.passes.functions_before_views import functions_before_views
from clnn.graph.passes.functions_of_images import functions_of_images
from clnn.graph.passes.fuse_branches import fuse_branches
from clnn.graph.passes.fuse_byte_sums import fuse_byte_sums
from clnn.graph.passes.fuse_byte_tables import fuse_byte_tables
from clnn.graph.passes.fuse_functions import fuse_functions
from clnn.graph.passes.fuse_groups import fuse_groups
from clnn.graph.passes.fuse_norm import fuse_scale_shift
from clnn.graph.passes.fuse_pad import fuse_pad
from clnn.graph.passes.fuse_post_ops import fuse_post_ops
from clnn.graph.passes.fuse_quantised import fuse_quantised
from clnn.graph.passes.fuse_separable import fuse_separable
from clnn.graph.passes.fuse_shuffle import fuse_shuffle
from clnn.graph.passes.fuse_written_norms import fuse_written_norms
from clnn.graph.passes.fuse_written_steps import fuse_written_steps
from clnn.graph.passes.order_terms import order_terms
from clnn.graph.passes.phases_of_dilated import phases_of_dilated
from clnn.graph.passes.rational import rational_functions
from clnn.graph.passes.rows_of_images import rows_of_images
from clnn.graph.passes.split_windows import split_windows
from clnn.graph.passes.sum_in_turn import sum_in_turn
from clnn.graph.passes.sum_parts import sum_parts
from clnn.graph.passes.trim_windows import trim_windows
from clnn.graph.passes.view_chains import shorten_chains
from clnn.graph.passes.views import merge_views
from clnn.graph.passes.windows_of_depth import windows_of_depth

PASSES: tuple[Callable[[Graph], Graph], ...] = (
    remove_dead,
    fuse_quantised,
    fuse_byte_tables,
    remove_dead,
    fuse_byte_sums,
    sum_in_turn,
    merge_views,
    fuse_groups,
    fuse_shuffle,
    sum_parts,
    remove_dead,
    fuse_pad,
    fuse_scale_shift,
    fuse_branches,
    remove_dead,
    rational_functions,
    fuse_functions,
    functions_of_images,
    functions_before_joins,
    functions_before_views,
    merge_views,
    shorten_chains,
    order_terms,
    remove_dead,
    fuse_scale_shift,
    fuse_post_ops,
    factor_sums,
    fuse_written_norms,
    fuse_written_steps,
    fuse_separable,
    remove_dead,
)


@host_memory("the passes over the network")
def optimise(
    graph: Graph,
    apart: bool = False,
    fixed: bool = False,
    single: bool = False,
    winograd: bool = False,
) -> Graph:
    """Return `graph` after all passes. Raises PlanError where a pass left it malformed, HostMemoryError.

    apart: separable convolutions stay two nodes each, of which quantisation wants to know; and
    convolutions whole. fixed: the network has no other shapes, so that nodes may depend on extents.
    single: weights stay float32, so that those of branches may be added. winograd: dilated convolutions become
    plain ones where that lets them use Winograd's products.
    """
    left = {
        *([fuse_separable] if apart else []),
        *([] if single else [fuse_branches]),
        *([] if fixed else [shorten_chains, order_terms, factor_sums]),
    }
    graph = trim_windows(graph) if fixed and not apart else graph
    for run in PASSES:
        if run in (merge_views, functions_before_views):
            graph = run(graph, fixed)
        elif run not in left:
            graph = run(graph)
    if fixed and not apart:
        graph = phases_of_dilated(graph) if winograd else graph
        graph = rows_of_images(remove_dead(windows_of_depth(split_windows(graph))))
    return check(graph)
