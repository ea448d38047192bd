"""The command line: one module per subcommand."""

from __future__ import annotations
