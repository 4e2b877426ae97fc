#!/usr/bin/env bash
# Exposed communication by axis: times layouts of two ranks, one pinned thread each, beside one rank of two
# threads and PyTorch's DistributedDataParallel on Gloo, and prints Markdown tables.
#
#   tests/bench/exposed.sh [--models "quickstart larger"] [--rows "one dp2-on ..."] [--modes "eager compile"]
#                          [--rounds N] [--steps N] [--raw FILE]
#
# Needs build/release/trainerd. $PYTHON (default python3) is the interpreter with torch; without torch PyTorch's
# rows are left out, as with --modes "". Runs are appended to FILE, and the tables cover all its runs: a long
# measurement can be made in pieces of whole rounds. Rows that the binary does not support are left out.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
trainerd=${TRAINERD:-$here/../../build/release/trainerd}
python=${PYTHON:-python3}
models="quickstart larger"
rows=
modes="eager compile"
rounds=3
steps=8
raw=

while (($#)); do
  case $1 in
    --models) models=$2 ;;
    --rows) rows=$2 ;;
    --modes) modes=$2 ;;
    --rounds) rounds=$2 ;;
    --steps) steps=$2 ;;
    --raw) raw=$2 ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done

if [[ ! -x $trainerd ]]; then
  echo "exposed.sh: $trainerd is not there: build it first (cmake --build --preset release --target trainerd)" >&2
  exit 2
fi
if (($(nproc) < 2)); then
  echo "exposed.sh: two cores are needed" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=${raw:-$work/results.jsonl}
if [[ -z $rows ]]; then rows=$(python3 "$here/exposed.py" rows "$trainerd"); fi
if [[ -n $modes ]] && ! "$python" -c 'import torch' 2>/dev/null; then
  echo "exposed.sh: $python has no torch: PyTorch's rows are left out (set PYTHON)" >&2
  modes=
fi

# As in step.sh: settings that make PyTorch faster, if installed.
preload=
if grep -q AuthenticAMD /proc/cpuinfo && command -v cc >/dev/null; then
  echo 'int mkl_serv_intel_cpu_true(void) { return 1; }' >"$work/shim.c"
  cc -shared -fPIC -o "$work/shim.so" "$work/shim.c" && preload=$work/shim.so
fi
jemalloc=$(ldconfig -p 2>/dev/null | awk '/libjemalloc\.so\.2 / {print $NF; exit}' || true)
if [[ -n $jemalloc ]]; then preload=${preload:+$preload:}$jemalloc; fi

theirs() {  # model mode
  local meet=$work/meet.$RANDOM.$RANDOM rank pids=() failed=0
  for rank in 0 1; do
    env LD_PRELOAD="$preload" OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 GLOO_SOCKET_IFNAME=lo \
      MALLOC_CONF=oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always \
      taskset -c "$rank" "$python" "$here/pytorch_ddp.py" --model "$1" --mode "$2" --rank "$rank" --meet "$meet" \
      --steps "$steps" >"$work/out.$rank" 2>"$work/errors.$rank" &
    pids+=($!)
  done
  for rank in 0 1; do wait "${pids[$rank]}" || failed=1; done
  if ((failed)); then
    tail -n 5 "$work"/errors.* >&2
    echo "exposed.sh: PyTorch in $2 mode failed: this run is missing from the table" >&2
    return 0
  fi
  tail -n 1 "$work/out.0" >>"$results"
}

for model in $models; do
  for ((round = 1; round <= rounds; ++round)); do
    for row in $rows; do
      echo "exposed.sh: $model, round $round of $rounds, $row" >&2
      python3 "$here/exposed.py" run "$trainerd" "$model" "$row" "$steps" >>"$results"
    done
    for mode in $modes; do
      echo "exposed.sh: $model, round $round of $rounds, PyTorch DDP ($mode)" >&2
      theirs "$model" "$mode"
    done
  done
done

python3 "$here/exposed.py" table "$results"
