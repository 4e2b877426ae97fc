#!/usr/bin/env python3
"""Cost of saving: the write rate of a checkpoint against the disk's, and the wall time of training with saves over that without.

  checkpoint.py BINARY [--pairs N] [--directory DIR]

Runs of a row alternate with those of its reference. Prints a Markdown table of medians.
"""

import argparse
import json
import mmap
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from statistics import median

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS, WARMUP = 60, 8
STATE = """
name: state
output: {output}
device: cpu
threads: 2
model: {{layers: 12, hidden: 768, heads: 12, ffn: 2048, vocab: 16384, seq_len: 64, norm: rms, positions: rope, mlp: swiglu}}
precision: {{compute: fp32}}
steps: {steps}
batch: {{global: 1, micro: 1}}
optimizer: {{lr: 1.0e-4}}
data: {{format: synthetic}}
checkpoint: {{every: 0}}
evaluate: {{every: 0}}
metrics: {{listen: "off"}}
"""


def run(binary, job, *settings):
    words = [word for setting in settings for word in ("--set", setting)]
    subprocess.run([binary, "run", job, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def direct_seconds(directory, size):
    """Seconds of a sequential direct write of `size` bytes, with flush."""
    file = directory / "direct"
    buffer = memoryview(bytearray(os.urandom(1 << 20) * 16))
    page = mmap.mmap(-1, len(buffer))  # aligned for O_DIRECT
    page.write(buffer)
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    begin = time.monotonic()
    for _ in range(size // len(buffer)):
        os.write(fd, page)
    os.fsync(fd)
    seconds = time.monotonic() - begin
    os.close(fd)
    file.unlink()
    return seconds * size / (size // len(buffer) * len(buffer))


def bandwidth(args, directory):
    """Seconds of a direct write over those of a save of the same size: 1 is the disk's rate."""
    ratios, rates = [], []
    for pair in range(args.pairs):
        output = directory / f"state-{pair}"
        job = directory / "state.yaml"
        job.write_text(STATE.format(output=output, steps=1))
        run(args.binary, job)
        [saved] = [e for e in lines(output / "events.jsonl") if e["event"] == "checkpoint"]
        os.sync()
        direct = direct_seconds(directory, saved["bytes"])
        ratios.append(direct / saved["write_seconds"])
        rates.append(saved["bytes"] / saved["write_seconds"])
        shutil.rmtree(output)
    return saved["bytes"], median(rates), median(ratios)


def costs(args, directory):
    """Per way of saving: (median of its wall time over that without saves, share of the ledger)."""
    ways = {"none": "checkpoint={every: 0}", "disk": "checkpoint={every: 50}", "memory": "checkpoint={every: 0, memory: 10}"}
    seconds, stalls = {way: [] for way in ways}, {way: [] for way in ways}
    for pair in range(args.pairs):
        for way, setting in ways.items():
            output = directory / f"{way}-{pair}"
            run(args.binary, ROOT / "configs" / "quickstart.yaml", setting, f"output={output}", f"steps={STEPS}", "evaluate.every=0")
            steps = lines(output / "steps.jsonl")[WARMUP:-1]  # the last step saves in any case
            seconds[way].append(sum(s["step_seconds"] for s in steps))
            stalls[way].append(sum(s["time"]["checkpoint"] for s in steps) / seconds[way][-1])
            shutil.rmtree(output)
    return {way: (median(a / b for a, b in zip(seconds[way], seconds["none"])), median(stalls[way])) for way in ways if way != "none"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--directory", type=pathlib.Path, default=None, help="on the disk to measure; default: the temporary directory")
    args = parser.parse_args()
    args.binary = args.binary.resolve()
    with tempfile.TemporaryDirectory(dir=args.directory) as name:
        directory = pathlib.Path(name)
        size, rate, ratio = bandwidth(args, directory)
        print("| what | measured | wanted |\n|---|---|---|")
        print(f"| write of a checkpoint of {size / 1e9:.2f} GB over a sequential direct write | {ratio:.2f} ({rate / 1e6:.0f} MB/s) | >= 0.90 |", flush=True)
        names = {"disk": ("to the disk, one in 50 steps", "1%"), "memory": ("to memory, one in 10 steps", "0.5%")}
        for way, (wall, stall) in costs(args, directory).items():
            what, wanted = names[way]
            print(f"| wall time with saves {what}, over without | {100 * (wall - 1):+.2f}% (checkpoint stall {100 * stall:.2f}%) | < {wanted} |")


if __name__ == "__main__":
    main()
