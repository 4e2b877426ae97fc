#!/usr/bin/env python3
"""train_bench and pytorch_train.py train alike: a tiny model on the CPU. Needs torch in $PYTHON; exits with 77 without it.

usage: parity_test.py TRAIN_BENCH
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = os.environ.get("PYTHON", "python3")
STEPS = ["--warmup", "0", "--steps", "12"]
FP32, NARROW = "precision=fp32", "precision={compute: bf16, grads: bf16, master: bf16, moments: bf16}"
MASTER = "precision={compute: bf16, grads: bf16}"


def output(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}: {done.stderr}")
    return done.stdout


def losses(bench, precision, folder):
    job = [bench, HERE / "tiny.yaml", "--set", precision]
    ours = json.loads(output([*job, *STEPS]))["losses"]
    shapes = folder / "shapes.json"
    shapes.write_text(output([*job, "--describe"]))
    theirs = json.loads(output([PYTHON, HERE / "pytorch_train.py", shapes, "--mode", "eager", "--device", "cpu", "--head-chunk", "20", *STEPS]))
    return ours, theirs["losses"]


def apart(a, b):
    return [abs(x - y) / abs(x) for x, y in zip(a, b, strict=True)]


def main():
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode != 0:
        print(f"no torch in {PYTHON}: nothing was compared")
        return 77
    bench = sys.argv[1]
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        exact, their_exact = losses(bench, FP32, pathlib.Path(folder))
        # fp32: twelve steps with another order of sums. Each step changes a loss by a few 2^-24, and training accumulates that.
        worst = max(apart(exact, their_exact))
        print(f"fp32: losses {exact[0]:.4f} to {exact[-1]:.4f}, at most {worst:.1e} apart")
        if worst > 1e-5:
            wrong.append("fp32")
        for name, precision in (("bf16 state", NARROW), ("fp32 state", MASTER)):
            ours, theirs = losses(bench, precision, pathlib.Path(folder))
            # Both programs deviate from fp32 by bf16 rounding, so twice the larger deviation.
            bound = max(*apart(exact, ours), *apart(exact, theirs))
            worst = max(apart(ours, theirs))
            print(f"{name}: losses {ours[0]:.4f} to {ours[-1]:.4f}, at most {worst:.1e} apart; {bound:.1e} from fp32's")
            if worst > 2 * bound or bound > 2.0 ** -7 or ours == theirs:
                wrong.append(name)
        if not exact[-1] < exact[0] - 0.3:
            wrong.append("nothing was learned")
    for name in wrong:
        print("failed: " + name)
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main())
