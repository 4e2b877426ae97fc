#!/usr/bin/env bash
# Installs, builds and runs every test.
#   tests/run.sh                    the release build, as CI runs it
#   tests/run.sh full               the same with full-length loops and all slices (tests/slices.py), of which CI runs a part
#   tests/run.sh asan | tsan        the same tests under address+undefined or thread sanitizers
#   tests/run.sh fuzz [SECONDS]     every fuzz target under libFuzzer for SECONDS each (60); needs clang
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
limit=900  # seconds, of a test that has no limit of its own: one that hangs must fail
[ "$preset" = release ] || limit=7200
if [ "$preset" = full ]; then
  preset=release
  export TRAINERD_FULL_TESTS=1
  unset TRAINERD_TEST_SLICE
else
  # The same for the same commit. 0 to 11 contain every slice of two, three, four and six.
  commit=$(git rev-parse --verify --short=6 HEAD 2>/dev/null || echo 0)
  export TRAINERD_TEST_SLICE=${TRAINERD_TEST_SLICE:-$((16#${commit:0:6} % 12))}
fi

./deploy/install-deps.sh --build-tests
if [ "$preset" = fuzz ]; then
  seconds=${2:-60}
  command -v clang++ >/dev/null || { echo "tests/run.sh fuzz needs clang and libclang-rt-14-dev" >&2; exit 1; }
  cmake --preset fuzz
  cmake --build --preset fuzz
  for target in build/fuzz/fuzz_*; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    name=$(basename "$target")
    corpus=build/fuzz/corpus/$name
    mkdir -p "$corpus"
    echo "== $name for $seconds s"
    "$target" -max_total_time="$seconds" -rss_limit_mb=4096 -print_final_stats=1 "$corpus" "tests/fuzz/seeds/${name#fuzz_}"
  done
  exit 0
fi

# Sanitizer builds compile each source separately, without precompiled headers, and so detect missing includes.
unity=OFF
if [ "$preset" = release ]; then
  unity=ON
  ./deploy/install-cuda-deps.sh
fi
# Programs that the tests start are installed during the build.
fetched=$(mktemp)
trap 'wait; rm -f "$fetched"' EXIT
./deploy/install-deps.sh --tests >"$fetched" 2>&1 &
fetching=$!
cmake --preset "$preset" -DTRAINERD_TESTS=ON -DTRAINERD_WERROR=ON -DTRAINERD_UNITY=$unity -DTRAINERD_CUDA=AUTO
built=0
cmake --build --preset "$preset" || built=$?
wait "$fetching" || { cat "$fetched" >&2; exit 1; }
[ "$built" -eq 0 ] || exit "$built"
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp ${TSAN_OPTIONS:-}"
# tests/CMakeLists.txt defines which tests run concurrently on two cores. A failed test runs once more, alone. If it then passes, the cause
# was a busy machine or a race, and both outputs are in the log. If it fails again, the script fails. With a sanitizer nothing is rerun.
failed=build/$preset/Testing/Temporary/LastTestsFailed.log
rm -f "$failed"
echo "== tests: ${TRAINERD_TEST_SLICE:+slice }${TRAINERD_TEST_SLICE:-all} (tests/slices.py)"
if ! ctest --test-dir "build/$preset" --output-on-failure --timeout $limit -j 100; then
  if [ "$preset" != release ] || [ ! -s "$failed" ]; then exit 1; fi
  echo "== the tests that failed beside others, alone" >&2
  ctest --test-dir "build/$preset" --output-on-failure --timeout $limit --rerun-failed
  echo "== they passed alone; look at the failures above" >&2
fi
