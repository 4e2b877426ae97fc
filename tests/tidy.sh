#!/usr/bin/env bash
# Runs clang-tidy 14 with .clang-tidy on the given sources, or on those that differ from main. Minutes for tens of files;
# not part of the tests. Needs the packages clang-tidy and what deploy/install-deps.sh installs.
#   tests/tidy.sh [FILE.cpp...]
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-tidy >/dev/null || { echo "tests/tidy.sh needs clang-tidy" >&2; exit 1; }
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git diff --name-only --diff-filter=d main -- 'kernels/*.cpp' 'parallel/*.cpp' 'io/*.cpp' 'core/*.cpp' 'apps/*.cpp')
[ ${#files[@]} -gt 0 ] || exit 0
# Uses the compile commands of a build without g++'s precompiled headers, which is only configured.
cmake --preset asan >/dev/null
exec clang-tidy -quiet -p build/asan --extra-arg=-Wno-unknown-warning-option --extra-arg=-include \
  --extra-arg="$PWD/tests/fuzz/clang14_source_location.h" "${files[@]}"
