#!/usr/bin/env bash
# Parity with transformers and peft: builds, creates an environment with the pinned versions, prints the tables of README.md, and
# runs the complete example of fine-tuning.
#   ./tests/parity/run.sh                    # build/parity, with a virtual environment in it
#   BUILD=build/release ./tests/parity/run.sh
#   EXTRA_INDEX=https://download.pytorch.org/whl/cpu ./tests/parity/run.sh    # torch for CPUs only, which is smaller
#   PYTHON=/path/to/python ./tests/parity/run.sh    # an interpreter with the packages of requirements.txt
set -euo pipefail
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build/parity}
cmake -S . -B "$BUILD" -DCMAKE_BUILD_TYPE=Release -DTRAINERD_TESTS=ON > /dev/null
cmake --build "$BUILD" --target trainerd parity_dump -j "${JOBS:-$(nproc)}"
if [ -z "${PYTHON:-}" ]; then
  python3 -m venv "$BUILD/venv"
  "$BUILD/venv/bin/pip" install --quiet ${EXTRA_INDEX:+--extra-index-url "$EXTRA_INDEX"} -r tests/parity/requirements.txt
  PYTHON=$BUILD/venv/bin/python
fi
status=0
for table in parity lora; do
  "$PYTHON" tests/parity/$table.py --trainerd "$BUILD/trainerd" --dump "$BUILD/parity_dump" || status=$?
  echo
done
# The example of fine-tuning. At its end trainerd and transformers give the same answer.
example=$(mktemp -d)
trap 'rm -rf "$example"' EXIT
PATH=$(cd "$BUILD" && pwd):$PATH PYTHON=$PYTHON configs/examples/finetune/run.sh "$example" > "$example/log" || { cat "$example/log" >&2; exit 1; }
answers=$(grep " says " "$example/log" | tail -2 | sort -u)
echo "the example's answer, by both: $answers"
[ "$answers" = "The cow says moo." ] || status=1
exit $status
