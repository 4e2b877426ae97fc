#!/usr/bin/env python3
"""Cost of supervising an undisturbed run: time per step and processor time with the defaults of `supervise`, and with hashes of
replicas, over those without.

  supervision.py BINARY [--before BINARY] [--pairs N] [--job FILE] [--steps N] [--set KEY=VALUE ...]
  supervision.py BINARY --agent [--pairs N] [--seconds S] [--job FILE] [--set KEY=VALUE ...]

The second form measures the agent's processor time per step, with and without supervision, by the kernel's nanosecond counters. No
rank waits for this part. supervision_bench measures the cost per step.

Pages of ranks and rings of operations are always written: to include their cost, compare with an older binary without them
(--before), which then runs the other side of each pair. By default the other side is the same binary without hang watch and
pre-flight. The processor time includes the start, and so the pre-flight. Runs with and without alternate; a ratio is that of the
two runs of a pair. Prints a Markdown table of medians with the 95% interval of the median (by order statistics). On a busy machine
the intervals are too wide for a result.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import tempfile
import time
from statistics import median

ROOT = pathlib.Path(__file__).resolve().parents[2]
WARMUP = 20
OFF = ["supervise.hang_factor=0", "supervise.preflight=false"]
KINDS = {"hang watch, pages, pre-flight": [], "the same with hash_every: 100": ["supervise.hash_every=100"]}


def measure(binary, job, output, settings):
    """(median seconds per step, processor seconds of all processes)"""
    words = [word for setting in [f"output={output}", "checkpoint.every=0", "evaluate.every=0", "metrics.listen=off", *settings]
             for word in ("--set", setting)]
    process = subprocess.Popen([binary, "run", job, "--fresh", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{binary} run {job} {' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
    steps = [json.loads(line)["step_seconds"] for line in (output / "steps.jsonl").read_text().splitlines()]
    return median(steps[WARMUP:]), usage.ru_utime + usage.ru_stime


def agent_seconds(pid):
    """Processor seconds of all threads of the process so far."""
    return sum(int(path.read_text().split()[0]) for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def measure_agent(binary, job, output, settings, seconds):
    """Processor seconds of the agent per step, over `seconds`."""
    words = [word for setting in [f"output={output}", "checkpoint.every=0", "evaluate.every=0", "steps=100000000", *settings]
             for word in ("--set", setting)]
    process = subprocess.Popen([binary, "run", job, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = output / "steps.jsonl"

    def step():
        return log.read_bytes().count(b"\n") if log.exists() else 0

    try:
        while step() < WARMUP:
            if process.poll() is not None:
                raise SystemExit(f"{binary} run {job} {' '.join(words)} ended with {process.returncode}")
            time.sleep(0.05)
        first, before = step(), agent_seconds(process.pid)
        time.sleep(seconds)
        return (agent_seconds(process.pid) - before) / (step() - first), seconds / (step() - first)
    finally:
        process.kill()
        process.wait()


def print_agent(arguments):
    on, off, steps = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        for turn in range(arguments.pairs):
            for name in ("on", "off") if turn % 2 == 0 else ("off", "on"):
                output = pathlib.Path(directory) / f"{name}-{turn}"
                cost, step = measure_agent(arguments.binary, arguments.job, output, [*arguments.settings, *(OFF if name == "off" else [])],
                                           arguments.seconds)
                (on if name == "on" else off).append(cost)
                steps.append(step)
    step = median(steps)
    shares = [(a - b) / step for a, b in zip(on, off)]
    low, high = interval(shares)
    print(f"{pathlib.Path(arguments.job).name}, steps of {1e3 * step:.2f} ms, {arguments.pairs} pairs of {arguments.seconds:g} s")
    print("| processor time of the agent per step | with | without | difference, of a step (95% interval) |\n|---|---:|---:|---:|")
    print(f"| | {1e6 * median(on):.0f} us | {1e6 * median(off):.0f} us | {100 * median(shares):+.3f}% ({100 * low:+.3f} to {100 * high:+.3f}) |")


def interval(values):
    """The median's 95% interval by order statistics."""
    values, n = sorted(values), len(values)
    below = 0
    while sum(math.comb(n, k) for k in range(below + 2)) / 2**n < 0.025:
        below += 1
    return values[below], values[n - 1 - below]


def text(ratios):
    low, high = interval(ratios)
    return f"{100 * (median(ratios) - 1):+.2f}% ({100 * (low - 1):+.2f} to {100 * (high - 1):+.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--before")
    parser.add_argument("--agent", action="store_true")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--job", default=str(ROOT / "configs" / "tiny.yaml"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    if arguments.agent:
        return print_agent(arguments)
    common = [f"steps={arguments.steps}", *arguments.settings]
    with tempfile.TemporaryDirectory() as directory:
        output = pathlib.Path(directory) / "run"
        measured = {name: ([], []) for name in KINDS}
        seconds = []
        for turn in range(arguments.pairs):
            for name, settings in KINDS.items():
                sides = [("on", arguments.binary, settings), ("off", arguments.before or arguments.binary, [] if arguments.before else OFF)]
                both = {side: measure(binary, arguments.job, output, [*common, *set_to])
                        for side, binary, set_to in (sides if turn % 2 == 0 else reversed(sides))}
                seconds.append(both["off"][0])
                for of, on, off in zip(measured[name], both["on"], both["off"]):
                    of.append(on / off)
    print(f"{pathlib.Path(arguments.job).name}, {arguments.steps} steps of {1e3 * median(seconds):.2f} ms, {arguments.pairs} pairs")
    print(f"| over {'the binary from before' if arguments.before else 'a run without'} | step | processor time |\n|---|---:|---:|")
    for name, (step, processor) in measured.items():
        print(f"| {name} | {text(step)} | {text(processor)} |")


if __name__ == "__main__":
    main()
