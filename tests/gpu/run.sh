#!/usr/bin/env bash
# Tests and measures trainerd on a machine with an NVIDIA GPU, from a build tree or from the package. Needs bash, python3, the driver
# and CUDA's libraries; PyTorch for comparisons, in $PYTHON (default python3).
#
#   tests/gpu/run.sh [--out DIR] [PHASE...]
#
#   1        operators against the CPU's values; rates of GEMMs, attention and memory-bound operators
#   2        benchmarks A and B, ours and PyTorch's (2a, 2b: one of them)
#   3        benchmark C, layouts on one GPU, compute-sanitizer, loss curves of CUDA and CPU, a quickstart run
#
# Every phase by default, ten minutes each at most. Results are written to DIR (./gpu-results) as they come: results.jsonl, log.txt,
# table.md. Ends with 0 when every test that was run passed, and without a GPU, where it runs none and says so.
set -euo pipefail
command -v python3 >/dev/null || { echo "run.sh: python3 is needed" >&2; exit 2; }
exec python3 "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
