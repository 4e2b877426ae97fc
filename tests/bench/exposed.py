#!/usr/bin/env python3
"""Runs one layout, or prints the table of all runs: see exposed.sh.

  exposed.py rows BINARY                    the rows that this binary supports, one per line
  exposed.py run BINARY MODEL ROW STEPS     trains, prints one JSON line
  exposed.py table RESULTS.jsonl            Markdown
"""

import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from statistics import median

WARMUP_STEPS = 3
START_SECONDS = 120  # longest wait for the next step

Model = collections.namedtuple("Model", "layers hidden heads ffn vocab seq batch micro pipeline_micro")
MODELS = {
    "quickstart": Model(6, 384, 6, 1024, 256, 256, 16, 8, 2),
    "larger": Model(8, 768, 12, 2048, 8192, 512, 8, 4, 1),
}

REFERENCE = "one"
PYTORCH = "pytorch-ddp"
DP2 = ["parallel.dp=2"]
GRADS_BEHIND = "parallel.overlap_grad_reduce"
PARAMS_BEHIND = "parallel.overlap_param_gather"
BACKWARD_BEHIND = "parallel.overlap_tp_backward"
FLOWS_BEHIND = "parallel.overlap_p2p"
PP2 = ["parallel.pp=2"]
TP2_SP = ["parallel.tp=2", "parallel.sequence_parallel=true"]
Row = collections.namedtuple("Row", "label overlap ranks settings", defaults=["", 1, []])
ROWS = {
    REFERENCE: Row("1 rank, 2 threads"),
    "dp2": Row("dp 2", "", 2, DP2),  # for a binary without these keys
    "dp2-off": Row("dp 2", "off", 2, [*DP2, GRADS_BEHIND + "=false", PARAMS_BEHIND + "=false"]),
    "dp2-on": Row("dp 2", "on", 2, [*DP2, GRADS_BEHIND + "=true", PARAMS_BEHIND + "=true"]),
    "tp2": Row("tp 2, sequence parallel", "", 2, TP2_SP),  # for a binary without this key
    "tp2-off": Row("tp 2, sequence parallel", "off", 2, [*TP2_SP, BACKWARD_BEHIND + "=false"]),
    "tp2-backward": Row("tp 2, sequence parallel", "in backward", 2, [*TP2_SP, BACKWARD_BEHIND + "=true"]),
    "tp2-2": Row("tp 2, sequence parallel", "2 chunks", 2, TP2_SP + ["parallel.tp_overlap_chunks=2"]),
    "tp2-4": Row("tp 2, sequence parallel", "4 chunks", 2, TP2_SP + ["parallel.tp_overlap_chunks=4"]),
    "pp2": Row("pp 2, 1f1b", "", 2, PP2),  # for a binary without this key
    "pp2-off": Row("pp 2, 1f1b", "off", 2, [*PP2, FLOWS_BEHIND + "=false"]),
    "pp2-on": Row("pp 2, 1f1b", "on", 2, [*PP2, FLOWS_BEHIND + "=true"]),
    "pp2-zb-off": Row("pp 2, zb-h1", "off", 2, [*PP2, "parallel.schedule=zb-h1", FLOWS_BEHIND + "=false"]),
    "pp2-zb-on": Row("pp 2, zb-h1", "on", 2, [*PP2, "parallel.schedule=zb-h1", FLOWS_BEHIND + "=true"]),
}


def job_text(model, row, output):
    threads = 2 // row.ranks
    micro = model.pipeline_micro if "parallel.pp=2" in row.settings else model.micro
    return f"""\
name: bench
seed: 1
output: {output}
device: cpu
threads: {threads}
model: {{layers: {model.layers}, hidden: {model.hidden}, heads: {model.heads}, ffn: {model.ffn}, vocab: {model.vocab}, seq_len: {model.seq}}}
precision: bf16
batch: {{global: {model.batch}, micro: {micro}}}
optimizer: {{lr: 1.0e-3, schedule: {{kind: constant}}}}
steps: 1000000
data: {{format: synthetic}}
metrics: {{listen: "127.0.0.1:0"}}
"""


def arguments(row):
    return [word for setting in row.settings for word in ("--set", setting)]


def knows(binary, row, directory):
    job = pathlib.Path(directory) / "probe.yaml"
    job.write_text(job_text(MODELS["quickstart"], row, directory))
    return subprocess.run([binary, "validate", job, *arguments(row)], capture_output=True, check=False).returncode == 0


def rows_of(binary):
    with tempfile.TemporaryDirectory() as directory:
        names = [name for name, row in ROWS.items() if knows(binary, row, directory)]
    return [n for n in names if n + "-off" not in names]


def whole_lines(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def workers_of(agent):
    return pathlib.Path(f"/proc/{agent}/task/{agent}/children").read_text().split()


def pin(workers):
    """Pins every thread of rank i to core i. Later threads inherit the core of their creator."""
    cores = sorted(os.sched_getaffinity(0))
    for rank, worker in enumerate(workers):
        for thread in os.listdir(f"/proc/{worker}/task"):
            os.sched_setaffinity(int(thread), {cores[rank]})


def processor_seconds(workers):
    """(seconds that the machine's processors were busy or stolen, seconds that these workers used), both since some time in the
    past."""
    busy = [int(v) for v in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    ours = [pathlib.Path(f"/proc/{w}/stat").read_text().rsplit(")", 1)[1].split()[11:13] for w in workers]
    tick = os.sysconf("SC_CLK_TCK")
    # The fields are user, nice, system, idle, iowait, irq, softirq and steal: all but idle and iowait count.
    return (sum(busy) - busy[3] - busy[4]) / tick, sum(int(v) for times in ours for v in times) / tick


def train(binary, text, settings, ranks, steps):
    """Trains the job `text(output directory)`, each rank on its own core. Returns (records of steps after the warm-up, cores that
    other processes used, processor seconds per step and rank)."""
    if len(os.sched_getaffinity(0)) < ranks:
        sys.exit(f"{ranks} cores are needed")
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        job = directory / "job.yaml"
        job.write_text(text(directory / "out"))
        with (directory / "log").open("w+") as log:
            agent = subprocess.Popen([binary, "run", job, *settings], stdout=log, stderr=subprocess.STDOUT)
            records, last, workers, before = [], time.monotonic(), None, None
            try:
                while len(records) < WARMUP_STEPS + steps:
                    time.sleep(0.02)
                    known, records = len(records), whole_lines(directory / "out" / "steps.jsonl")
                    if len(records) > known:
                        last = time.monotonic()
                    if records and workers is None:
                        workers = workers_of(agent.pid)
                        if len(workers) != ranks:
                            sys.exit(f"{len(workers)} workers, not {ranks}")
                        if ranks > 1:
                            pin(workers)
                    if len(records) >= WARMUP_STEPS and before is None:
                        before, began, first = processor_seconds(workers), time.monotonic(), len(records)
                    if agent.poll() is not None or time.monotonic() - last > START_SECONDS:
                        log.seek(0)
                        sys.exit(f"trained {len(records)} steps and no more:\n{log.read()}")
                busy, ours = (after - b for after, b in zip(processor_seconds(workers), before))
                others = max(0.0, busy - ours) / (time.monotonic() - began)
                processor = ours / ranks / max(1, len(records) - first)
            finally:
                # SIGKILL, because a stop would save a checkpoint first. The workers die with the agent.
                agent.send_signal(signal.SIGKILL)
                agent.wait()
    return records[WARMUP_STEPS:WARMUP_STEPS + steps], others, processor


def run(binary, model_name, row_name, steps):
    model, row = MODELS[model_name], ROWS[row_name]
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("exposed.py: two cores are needed")
    records, others, _ = train(binary, lambda output: job_text(model, row, output), arguments(row), row.ranks, steps)
    print(json.dumps({
        "model": model_name, "row": row_name, "tokens_per_step": model.batch * model.seq,
        "step_seconds": [r["step_seconds"] for r in records],
        "time": {part: [r["time"][part] for r in records] for part in records[0]["time"]},
        "others": others, "loss": records[-1]["loss"]}))


# ---- the table

PARTS = ["exposed_tp", "exposed_dp", "exposed_pp", "exposed_world", "bubble", "compute", "optimizer"]


def print_table(model_name, runs):
    m = MODELS[model_name]
    print(f"{m.layers} layers, hidden {m.hidden}, ffn {m.ffn}, vocabulary {m.vocab}, bf16; {m.batch} sequences of "
          f"{m.seq} tokens a step, micro-batch {m.micro} (pipelines {m.pipeline_micro}); medians of interleaved runs.\n")
    header = ["layout", "overlap", "ms/step", "tokens/s", "of 1 rank, 2 threads",
              *(p.replace("exposed_", "exposed ") + " ms" for p in PARTS), "cores that others took"]
    print("| " + " | ".join(header) + " |")
    print("|---|---|" + "---:|" * (len(header) - 2))
    by_row = collections.defaultdict(list)
    for r in runs:
        by_row[r["row"]].append(r)
    # A round is one run of each row. Rates are compared within a round.
    reference = [median(r["step_seconds"]) for r in by_row.get(REFERENCE, [])]
    for name in [*ROWS, *sorted(n for n in by_row if n not in ROWS)]:
        if name not in by_row:
            continue
        seconds = median(s for r in by_row[name] for s in r["step_seconds"])
        tokens = by_row[name][0]["tokens_per_step"]
        shares = [there / median(r["step_seconds"]) for there, r in zip(reference, by_row[name])]
        label = [ROWS[name].label, ROWS[name].overlap] if name in ROWS else [by_row[name][0]["label"], "on"]
        cells = label + [f"{1e3 * seconds:.1f}", f"{tokens / seconds:,.0f}", f"{100 * median(shares):.0f}%" if shares else ""]
        for part in PARTS:
            values = [v for r in by_row[name] for v in r["time"].get(part, [])]
            cells.append(f"{1e3 * median(values):.1f}" if values else "")
        # Other processes distort the figures, so the table shows how many cores they used.
        others = [r["others"] for r in by_row[name] if "others" in r]
        cells.append(f"{max(others):.2f}" if others else "")
        print("| " + " | ".join(cells) + " |")
    print()


def table(path):
    runs = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    if not runs:
        sys.exit("exposed.py: no run in " + path)
    for model in MODELS:
        mine = [r for r in runs if r["model"] == model]
        if mine:
            print_table(model, mine)
    if any(r["row"].startswith(PYTORCH) for r in runs):
        versions = sorted({r["torch"] for r in runs if "torch" in r})
        print(f"PyTorch {', '.join(versions)}: DistributedDataParallel on Gloo, 2 processes of one thread; its exposed time is "
              "what a step takes beyond one under no_sync. Gradients go over its wire in bf16, over ours in fp32.")


def main():
    words = sys.argv[1:]
    if words[:1] == ["rows"] and len(words) == 2:
        print("\n".join(rows_of(words[1])))
    elif words[:1] == ["run"] and len(words) == 5:
        run(words[1], words[2], words[3], int(words[4]))
    elif words[:1] == ["table"] and len(words) == 2:
        table(words[1])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
