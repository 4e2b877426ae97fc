#!/usr/bin/env bash
# Parity with transformers: builds, makes an environment of the pinned versions, and prints the table of README.md.
#   ./tests/parity/run.sh                    # build/parity, with a virtual environment in it
#   BUILD=build/release ./tests/parity/run.sh
#   PYTHON=/path/to/python ./tests/parity/run.sh    # one that has torch, transformers and safetensors
set -euo pipefail
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build/parity}
cmake -S . -B "$BUILD" -DCMAKE_BUILD_TYPE=Release -DTRAINERD_TESTS=ON > /dev/null
cmake --build "$BUILD" --target trainerd parity_dump -j "${JOBS:-$(nproc)}"
if [ -z "${PYTHON:-}" ]; then
  python3 -m venv "$BUILD/venv"
  "$BUILD/venv/bin/pip" install --quiet --extra-index-url https://download.pytorch.org/whl/cpu -r tests/parity/requirements.txt
  PYTHON=$BUILD/venv/bin/python
fi
exec "$PYTHON" tests/parity/parity.py --trainerd "$BUILD/trainerd" --dump "$BUILD/parity_dump"
