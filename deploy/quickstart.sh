#!/usr/bin/env bash
# From a clone to a trained model: installs what is missing, builds, trains the quickstart job (about three minutes on two cores).
set -euo pipefail
cd "$(dirname "$0")/.."

./deploy/install-deps.sh
cmake --preset release -DTRAINERD_TESTS=OFF -DTRAINERD_UNITY=ON
cmake --build --preset release
exec ./build/release/trainerd run configs/quickstart.yaml "$@"
