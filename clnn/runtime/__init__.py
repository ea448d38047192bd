"""Devices, programs, buffers and sessions: the only room that imports pyopencl.

Its folders, each of which may import from those before it: process, drivers, device, doctor, build,
measure, run.
"""

from __future__ import annotations
