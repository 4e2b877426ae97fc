#!/usr/bin/env bash
# From a clone to a trained model: installs what is missing, builds, trains the quickstart job (one to two minutes on two cores).
set -euo pipefail
cd "$(dirname "$0")/.."

./deploy/install-deps.sh
# The job runs on the CPU. Without a GPU the CUDA plugin, a third of the work, is left to later builds: cmake --preset release -DTRAINERD_CUDA=AUTO
cuda=OFF
[ ! -e /dev/nvidiactl ] || cuda=AUTO
cmake --preset release -DTRAINERD_TESTS=OFF -DTRAINERD_UNITY=ON -DTRAINERD_CUDA=$cuda
cmake --build --preset release
exec ./build/release/trainerd run configs/quickstart.yaml "$@"
