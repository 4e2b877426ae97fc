#!/usr/bin/env bash
# Fetches what a build with CUDA needs beside the toolkit: the headers of cuDNN's front end, pinned, into build/cuda-deps. 1.18 is
# the last version that does not ask for NVRTC. And NCCL, pinned, where the toolkit has none beside it.
# Does nothing when they are there or where there is no nvcc. Without them the build is whole but for cuDNN's attention, and for ranks
# that have CUDA devices of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.18.0
wheel=nvidia_cudnn_frontend-$version-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl
sha256=382ea063b92cbfd5b442cb75ff8422932d78276aecf139e46713ed1ad3d07af4
target=build/cuda-deps

command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

nccl_version=2.28.9
nccl_wheel=nvidia_nccl_cu13-$nccl_version-py3-none-manylinux_2_18_x86_64.whl
nccl_sha256=e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42
has_nccl() { for folder in /usr/include /usr/local/include /usr/local/cuda/include $target/nccl/include; do [ -f $folder/nccl.h ] && return; done; return 1; }
if ! has_nccl; then
  if python3 -m pip download -q --no-deps --only-binary :all: --python-version 3.11 --platform manylinux_2_18_x86_64 \
      -d "$work" "nvidia-nccl-cu13==$nccl_version"; then
    echo "$nccl_sha256  $work/$nccl_wheel" | sha256sum --check --quiet
    python3 -m zipfile -e "$work/$nccl_wheel" "$work/nccl"
    mkdir -p $target
    rm -rf $target/nccl
    cp -r "$work/nccl/nvidia/nccl" $target/nccl
  else
    echo "install-cuda-deps.sh: no NCCL: ranks on CUDA devices will need cluster.communication: staged" >&2
  fi
fi

[ "$(cat $target/version 2>/dev/null)" = "$version" ] && exit 0

python3 -m pip download -q --no-deps --only-binary :all: --python-version 3.11 --platform manylinux_2_28_x86_64 \
  -d "$work" "nvidia-cudnn-frontend==$version" || { echo "install-cuda-deps.sh: no cuDNN front end: attention will be our own kernels'" >&2; exit 0; }
echo "$sha256  $work/$wheel" | sha256sum --check --quiet
python3 -m zipfile -e "$work/$wheel" "$work/unpacked"
mkdir -p $target
rm -rf $target/include
cp -r "$work/unpacked/include" $target/include
echo $version > $target/version
