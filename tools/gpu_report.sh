#!/bin/sh
# Reports on one GPU within ten minutes: see tools/gpu_report.py, or run with --help.
# Uses $PYTHON, else the environment in $CLNN_VENV or .venv, else python3.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
for python in "${PYTHON:-}" "${CLNN_VENV:-$root/.venv}/bin/python" python3 python3.14 python3.13 \
  python3.12 python3.11 python3.10; do
  [ -n "$python" ] || continue
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    exec "$python" "$here/gpu_report.py" "$@"
  fi
done
echo "tools/gpu_report.sh: Python 3.10 or newer is needed and none was found. Set PYTHON to one." >&2
exit 2
