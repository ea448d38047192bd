"""From graph to launch list: padding, views, memory. No device needed."""

from __future__ import annotations
