"""All cases, by importing the modules that add them to the table."""

from __future__ import annotations

import case_amx
import case_any_shape
import case_boxes
import case_elements
import case_espdl
import case_fixed
import case_graphs
import case_images
import case_matrices
import case_mli
import case_mma
import case_openvx
import case_quantised
import case_recurrent
import case_rows
import case_stored
import case_trees
import case_universal
import case_universal_bytes
import case_workgroups
from table import CASES, Case, jobs

__all__ = ["CASES", "MODULES", "Case", "jobs"]

MODULES = (
    case_amx,
    case_any_shape,
    case_boxes,
    case_elements,
    case_espdl,
    case_fixed,
    case_graphs,
    case_images,
    case_matrices,
    case_mli,
    case_mma,
    case_openvx,
    case_quantised,
    case_recurrent,
    case_rows,
    case_stored,
    case_trees,
    case_universal,
    case_universal_bytes,
    case_workgroups,
)
