#!/usr/bin/env bash
# The planner's step times against real ones on this machine. For each model: calibrates, then trains and plans its jobs of
# one and two ranks with one pinned thread each; 20 jobs in all. Prints a Markdown table.
#
#   tests/bench/cpu_truth.sh [--rounds N] [--steps N] [--seconds N] [--raw FILE] [--jobs "NAME ..."]     NAME: a job's name or its beginning
#
# Needs build/release/trainerd. --seconds is calibrate's option. Lines are appended to FILE, and the table has the medians of
# all its lines: a long measurement can be made in pieces.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
trainerd=${TRAINERD:-$here/../../build/release/trainerd}
rounds=3
steps=6
seconds=20
raw=
jobs=

while (($#)); do
  case $1 in
    --rounds) rounds=$2 ;;
    --steps) steps=$2 ;;
    --seconds) seconds=$2 ;;
    --raw) raw=$2 ;;
    --jobs) jobs=$2 ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done

if [[ ! -x $trainerd ]]; then
  echo "cpu_truth.sh: $trainerd is not there: build it first (cmake --build --preset release --target trainerd)" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=${raw:-$work/results.jsonl}
# A machine's speed drifts: each group of jobs has a calibration close to its runs, and rounds are interleaved.
measure() {
  "$trainerd" calibrate --threads 1 --ranks 2 --seconds "$seconds" --out "$work/cluster.yaml"
  python3 "$here/cpu_truth.py" run "$trainerd" "$work/cluster.yaml" "$steps" "$results" "$@"
}
for ((round = 0; round < rounds; ++round)); do
  # shellcheck disable=SC2086  # split into words
  if [[ -n $jobs ]]; then measure $jobs; else for model in llama gpt "wide tiny"; do measure $model; done; fi
done
python3 "$here/cpu_truth.py" table "$results"
