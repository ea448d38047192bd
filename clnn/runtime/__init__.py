"""Devices, programs, buffers and sessions: the only room that imports pyopencl."""

from __future__ import annotations
