#!/usr/bin/env bash
# Tests and measures trainerd on a machine with an NVIDIA GPU, from a build tree or from the package. Needs bash, python3, the driver
# and CUDA's libraries; PyTorch for comparisons, in $PYTHON (default python3).
#
#   tests/gpu/run.sh [--out DIR] [--only PATTERN] [PHASE...]
#
#   contact  library paths, device and link rates, a tiny job, three steps of benchmark A, its operator ledger, test_cuda by tags, loss
#            curves of CUDA and CPU
#   tuning   A by the choices that a job has, beside PyTorch; B once; rates of operators
#   record   A, B and C beside PyTorch, a loss curve beside PyTorch's, layouts on one GPU, a quickstart run, compute-sanitizer, autotuning
#   variants fast attention in both programs, state in fp32 (where it is asked for)
#
# The first three by default, 9.5 minutes each at most. Results are written to DIR (./gpu-results) as they come: results.jsonl, log.txt,
# table.md. --only runs the steps of these phases whose names match. Ends with 0 when every test that was run passed, and without a GPU,
# where it runs none and says so.
set -euo pipefail
command -v python3 >/dev/null || { echo "run.sh: python3 is needed" >&2; exit 2; }
exec python3 "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
