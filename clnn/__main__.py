"""The command `clnn` as `python -m clnn`, for where scripts are not on the path."""

from __future__ import annotations

from clnn.cli.main import main

raise SystemExit(main())
