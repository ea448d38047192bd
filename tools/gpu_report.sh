#!/bin/sh
# Reports on one GPU within ten minutes: see tools/benchmarks/gpu_report.py, or run with --help.
# Uses $PYTHON, else the environment in $CLNN_VENV or .venv, else python3.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
if [ -n "${PYTHON:-}" ]; then
  fits "$PYTHON" && exec "$PYTHON" "$here/benchmarks/gpu_report.py" "$@"
  echo "tools/gpu_report.sh: PYTHON is $PYTHON, which is no Python 3.10 or newer. Set it to one, or unset it." >&2
  exit 2
fi
for python in "${CLNN_VENV:-$root/.venv}/bin/python" python3 python3.14 python3.13 python3.12 \
  python3.11 python3.10; do
  fits "$python" && exec "$python" "$here/benchmarks/gpu_report.py" "$@"
done
echo "tools/gpu_report.sh: Python 3.10 or newer is needed and none was found. Set PYTHON to one." >&2
exit 2
