"""Start cache_worker.py in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("cache_worker.py")
REPOSITORY = Path(__file__).parents[2]


def start_worker(*args: object, before: tuple[str, ...] = (), **env: str) -> subprocess.Popen[str]:
    """Start a task; shell commands `before` it run with it in a mount name space of its own."""
    command = [sys.executable, str(WORKER), *map(str, args)]
    if before:
        script = " && ".join([*before, 'exec "$@"'])
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", *command]
    path = f"{REPOSITORY}{os.pathsep}{WORKER.parent}"
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **env},
    )


def answer_of(child: subprocess.Popen[str]) -> Any:
    """Wait for a task and return its answer."""
    out, err = child.communicate()
    assert child.returncode == 0, err
    return json.loads(out)


def run_worker(*args: object, before: tuple[str, ...] = (), **env: str) -> Any:
    """Run a task and return its answer."""
    return answer_of(start_worker(*args, before=before, **env))
