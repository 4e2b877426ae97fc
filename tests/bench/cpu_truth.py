#!/usr/bin/env python3
"""Compares plans with real runs on this machine's processor: 20 jobs of one and two ranks, one pinned thread each.

  cpu_truth.py run BINARY CLUSTER STEPS OUT.jsonl [NAME ...]  trains and plans the jobs whose names begin with NAME (default: all), appends lines
  cpu_truth.py table OUT.jsonl                                errors, and the order of layouts per model

CLUSTER is a file that `trainerd calibrate` wrote just before: see cpu_truth.sh.
"""

import collections
import json
import pathlib
import subprocess
import sys
import tempfile
from statistics import mean, median

import exposed

MODELS = {
    "llama-10m": "{layers: 6, hidden: 384, heads: 6, ffn: 1024, vocab: 256, seq_len: 256}",
    "gpt-17m": "{layers: 4, hidden: 512, heads: 8, ffn: 2048, vocab: 8192, seq_len: 512, mlp: gelu, norm: layer, positions: learned, bias: true}",
    "wide-31m": "{layers: 2, hidden: 1024, heads: 16, kv_heads: 4, ffn: 2816, vocab: 4096, seq_len: 256}",
    "tiny-1m": "{layers: 4, hidden: 128, heads: 4, ffn: 512, vocab: 1024, seq_len: 64}",
}

Job = collections.namedtuple("Job", "model precision batch micro parallel recompute compete", defaults=["", "none", True])
JOBS = {
    # One rank. Jobs with compete=False have another precision or batch than the model's other rows.
    "llama-fp32": Job("llama-10m", "fp32", 16, 8, compete=False),
    "llama-bf16": Job("llama-10m", "bf16", 16, 8),
    "llama-recompute": Job("llama-10m", "bf16", 16, 8, recompute="full"),
    "gpt-fp32": Job("gpt-17m", "fp32", 4, 2, compete=False),
    "gpt-bf16": Job("gpt-17m", "bf16", 8, 4),
    "gpt-selective": Job("gpt-17m", "bf16", 8, 4, recompute="selective"),
    "wide-bf16": Job("wide-31m", "bf16", 8, 2),
    "tiny-fp32": Job("tiny-1m", "fp32", 64, 32),
    # Two ranks.
    "llama-dp2": Job("llama-10m", "bf16", 16, 8, "dp: 2"),
    "llama-dp2-zero1": Job("llama-10m", "bf16", 16, 4, "dp: 2, zero: 1"),
    "llama-dp2-zero3": Job("llama-10m", "bf16", 16, 4, "dp: 2, zero: 3"),
    "llama-tp2": Job("llama-10m", "bf16", 16, 8, "tp: 2"),
    "llama-pp2": Job("llama-10m", "bf16", 16, 2, "pp: 2"),
    "llama-pp2-zb": Job("llama-10m", "bf16", 16, 2, "pp: 2, schedule: zb-h1"),
    "gpt-dp2-zero2": Job("gpt-17m", "bf16", 8, 2, "dp: 2, zero: 2"),
    "gpt-tp2-sp": Job("gpt-17m", "bf16", 8, 4, "tp: 2, sequence_parallel: true"),
    "gpt-pp2-interleaved": Job("gpt-17m", "bf16", 8, 1, "pp: 2, schedule: interleaved, virtual_stages: 2"),
    "wide-dp2": Job("wide-31m", "bf16", 8, 2, "dp: 2"),
    "wide-tp2": Job("wide-31m", "bf16", 8, 4, "tp: 2"),
    "tiny-dp2": Job("tiny-1m", "fp32", 64, 32, "dp: 2"),
}


DISTURBED = 0.1  # cores used by other processes


def ranks_of(job):
    return 2 if job.parallel else 1


def text_of(job, output):
    return f"""\
name: truth
seed: 1
output: {output}
device: cpu
threads: 1
model: {MODELS[job.model]}
parallel: {{{job.parallel}}}
recompute: {{kind: {job.recompute}}}
precision: {job.precision}
batch: {{global: {job.batch}, micro: {job.micro}}}
optimizer: {{lr: 1.0e-3, schedule: {{kind: constant}}}}
steps: 1000000
data: {{format: synthetic}}
metrics: {{listen: "127.0.0.1:0"}}
"""


def plan(binary, job, cluster):
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "job.yaml"
        path.write_text(text_of(job, directory))
        done = subprocess.run([binary, "plan", path, "--cluster", cluster, "--json"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"cpu_truth.py: no plan: {done.stderr or done.stdout}")
        return json.loads(done.stdout)


def train(binary, job, steps):
    """Trains up to three times if other processes used the cores. The least disturbed time counts."""
    best = None
    for _ in range(3):
        made = exposed.train(binary, lambda output: text_of(job, output), [], ranks_of(job), steps)
        best = made if best is None else min(best, made, key=lambda m: m[1])
        if best[1] < DISTURBED:
            break
    return best


def run(binary, cluster, steps, out, beginnings):
    for name in (n for n in JOBS if not beginnings or any(n.startswith(b) for b in beginnings)):
        job = JOBS[name]
        planned = plan(binary, job, cluster)
        records, others, processor = train(binary, job, steps)
        line = {"job": name, "measured": median(r["step_seconds"] for r in records), "planned": planned["step_seconds"], "others": others, "processor": processor,
                "measured_time": {part: median(r["time"][part] for r in records) for part in records[0]["time"]},
                "planned_time": planned["time"]}
        with pathlib.Path(out).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{name}: measured {1e3 * line['measured']:.1f} ms, planned {1e3 * line['planned']:.1f} ms, "
              f"{100 * (line['planned'] / line['measured'] - 1):+.1f}% (processor {1e3 * processor:.1f} ms, others {others:.2f} cores)", file=sys.stderr)


def table(path):
    """Per job the medians of its lines."""
    rounds = collections.defaultdict(list)
    for line in map(json.loads, pathlib.Path(path).read_text(encoding="utf-8").splitlines()):
        rounds[line["job"]].append(line)
    lines = {job: {key: median(line[key] for line in mine) for key in ("measured", "planned", "processor", "others")} for job, mine in rounds.items()}
    print("| job | ranks | measured ms/step | processor ms/step | planned ms/step | error | cores that others took |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    errors = {}
    for name in (n for n in JOBS if n in lines):
        line = lines[name]
        errors[name] = line["planned"] / line["measured"] - 1
        print(f"| {name} | {ranks_of(JOBS[name])} | {1e3 * line['measured']:.1f} | {1e3 * line['processor']:.1f} | {1e3 * line['planned']:.1f} | "
              f"{100 * errors[name]:+.1f}% | {line['others']:.2f} |")
    sizes = [abs(e) for e in errors.values()]
    print(f"\n{len(sizes)} jobs: mean error {100 * mean(sizes):.1f}%, largest {100 * max(sizes):.1f}%, "
          f"{sum(s <= 0.1 for s in sizes)} within 10%.\n")
    for model in MODELS:
        for ranks in (1, 2):
            rivals = [n for n in errors if JOBS[n].model == model and JOBS[n].compete and ranks_of(JOBS[n]) == ranks]
            if len(rivals) < 2:
                continue
            chosen = min(rivals, key=lambda n: lines[n]["planned"])
            best = min(rivals, key=lambda n: lines[n]["measured"])
            print(f"{model}, {ranks} rank(s): of {len(rivals)} layouts the plan chooses {chosen}, "
                  f"{100 * (lines[chosen]['measured'] / lines[best]['measured'] - 1):.1f}% slower than the best ({best}).")


def main():
    arguments = sys.argv[1:]
    if len(arguments) >= 5 and arguments[0] == "run":
        run(arguments[1], arguments[2], int(arguments[3]), arguments[4], arguments[5:])
    elif len(arguments) == 2 and arguments[0] == "table":
        table(arguments[1])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
