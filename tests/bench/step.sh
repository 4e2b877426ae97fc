#!/usr/bin/env bash
# Times the training step against PyTorch's and against the GEMM ceiling, and prints Markdown tables.
#
#   tests/bench/step.sh [--quick] [--isa avx2] [--modes "eager compile"] [--rounds N] [--steps N] [--raw FILE]
#
# --quick: one round of three steps after two; with --modes compile it takes 6 minutes for --isa avx2 on two
# cores of 2 GHz.
#
# With --isa avx2 both sides use only AVX2 and FMA, in fp32: our kernels and oneDNN, PyTorch's kernels, MKL,
# oneDNN and compiled code. Needs build/release/step_bench. $PYTHON (default python3) is the interpreter with
# torch; without torch the PyTorch columns say so. Settings that make PyTorch faster are used if installed:
# jemalloc with huge pages, and on AMD processors a shim without which MKL uses its slow path in fp32.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bench=${STEP_BENCH:-$here/../../build/release/step_bench}
python=${PYTHON:-python3}
rounds=3
steps=20
raw=
isa=auto
modes="eager compile"
warmup=5
precisions="fp32 bf16"

while (($#)); do
  case $1 in
    --quick) rounds=1 steps=3 warmup=2 ;;
    --modes) modes=$2; shift ;;
    --isa) isa=$2 precisions=fp32; shift ;;
    --rounds) rounds=$2; shift ;;
    --steps) steps=$2; shift ;;
    --raw) raw=$2; shift ;;
    *) sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done

if [[ $isa != auto && $isa != avx2 ]]; then
  echo "step.sh: --isa $isa is not known: only avx2 can be asked of PyTorch" >&2
  exit 2
fi
if [[ ! -x $bench ]]; then
  echo "step.sh: $bench is not there: build it first (cmake --build --preset release --target step_bench)" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=$work/results.jsonl
cores=$(nproc)

preload=
# Limits the instruction set of PyTorch: ATen's kernels, MKL and oneDNN; pytorch_step.py limits the compiler's
# code.
limits=()
if [[ $isa == avx2 ]]; then
  limits=(ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2)
fi

add_preload() { preload=${preload:+$preload:}$1; }

# MKL asks this function whether the processor is Intel's and otherwise leaves AVX-512 unused in fp32.
if grep -q AuthenticAMD /proc/cpuinfo && command -v cc >/dev/null; then
  echo 'int mkl_serv_intel_cpu_true(void) { return 1; }' >"$work/shim.c"
  cc -shared -fPIC -o "$work/shim.so" "$work/shim.c" && add_preload "$work/shim.so"
fi
jemalloc=$(ldconfig -p 2>/dev/null | awk '/libjemalloc\.so\.2 / {print $NF; exit}' || true)
if [[ -n $jemalloc ]]; then add_preload "$jemalloc"; fi

torch=no
if "$python" -c 'import torch' 2>/dev/null; then torch=yes; fi
if [[ $torch == no ]]; then
  echo "step.sh: $python has no torch: only ours is timed (set PYTHON)" >&2
elif [[ -z $jemalloc ]]; then
  echo "step.sh: libjemalloc2 is not installed: PyTorch runs slower than it could" >&2
fi

ours() {  # vocab precision threads
  taskset -c "0-$(($3 - 1))" "$bench" --vocab "$1" --precision "$2" --threads "$3" --steps "$steps" --warmup "$warmup" --isa "$isa" \
    | tail -n 1 >>"$results"
}

theirs() {  # vocab precision threads mode
  local line
  line=$(env LD_PRELOAD="$preload" OMP_NUM_THREADS="$3" TORCHINDUCTOR_COMPILE_THREADS=1 \
    TORCHINDUCTOR_CACHE_DIR="$work/inductor" "${limits[@]}" \
    MALLOC_CONF=oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always \
    taskset -c "0-$(($3 - 1))" "$python" "$here/pytorch_step.py" --vocab "$1" --precision "$2" \
    --threads "$3" --steps "$steps" --warmup "$warmup" --mode "$4" --isa "$isa" 2>"$work/errors" | tail -n 1) || {
    tail -n 5 "$work/errors" >&2
    echo "step.sh: PyTorch in $4 mode failed: this run is missing from the table" >&2
    return 0
  }
  echo "$line" >>"$results"
}

for threads in 1 2; do
  if ((threads > cores)); then
    echo "step.sh: $cores core(s): the rows with $threads threads are left out" >&2
    continue
  fi
  for precision in $precisions; do
    for vocab in 256 32000; do
      echo "step.sh: vocabulary $vocab, $precision, $threads thread(s)" >&2
      # Order: ours, theirs, ours, theirs, ours, ... Each run of theirs is between two of ours.
      ours "$vocab" "$precision" "$threads"
      if [[ $torch == no ]]; then continue; fi
      for ((round = 0; round < rounds; ++round)); do
        for mode in $modes; do
          theirs "$vocab" "$precision" "$threads" "$mode"
          ours "$vocab" "$precision" "$threads"
        done
      done
    done
  done
done

if [[ -n $raw ]]; then cp "$results" "$raw"; fi
python3 "$here/step_table.py" "$results"
