#!/usr/bin/env bash
# Tests and measures trainerd on a machine with an NVIDIA GPU, from a build tree or from the package. Needs bash, python3, the driver
# and CUDA's libraries; PyTorch for comparisons, in $PYTHON (default python3).
#
#   tests/gpu/run.sh [--out DIR] [--only PATTERN] [PHASE...]
#
#   contact  library paths, device and link rates, a tiny job, three steps of benchmark A, its operator ledger, test_cuda by tags, loss
#            curves of CUDA and CPU
#   tuning   A with each tuning option of a job, beside PyTorch; B once; rates of operators
#   record   A, B and C beside PyTorch, a loss curve beside PyTorch's, layouts on one GPU, a quickstart run, compute-sanitizer, autotuning
#   variants fast attention in both programs, state in fp32 (only on request)
#
# Default: the first three phases, at most 9.5 minutes each. Results are written at once to DIR (./gpu-results): results.jsonl, log.txt,
# table.md. --only runs the steps of these phases whose names match. Exits with 0 if all tests that ran passed. Without a GPU it runs
# nothing, says so and exits with 0.
set -euo pipefail
command -v python3 >/dev/null || { echo "run.sh: python3 is needed" >&2; exit 2; }
exec python3 "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
