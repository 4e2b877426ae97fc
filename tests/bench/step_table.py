#!/usr/bin/env python3
"""Turns the JSON lines of step_bench and pytorch_step.py, in the order of their runs, into Markdown tables."""

import json
import sys
from statistics import median

LAYERS, HIDDEN, FFN, SEQ = 6, 384, 1024, 256


def flops_per_token(vocab):
    """6 x matmul parameters (head included, input embedding not) + 6 L D S (causal attention)."""
    matmul_parameters = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN) + vocab * HIDDEN
    return 6 * matmul_parameters + 6 * LAYERS * HIDDEN * SEQ


def is_ours(run):
    return run["impl"] == "trainerd"


class Row:
    """All runs of one (vocabulary, precision, threads), in order."""

    def __init__(self, key, runs):
        self.vocab, self.precision, self.threads = key
        self.runs = runs
        self.ours = [r for r in runs if is_ours(r)]
        self.flops = flops_per_token(self.vocab) * runs[0]["tokens_per_step"]
        self.our_seconds = median(s for r in self.ours for s in r["step_seconds"])
        # A share of the ceiling compares a run with the ceiling measured in the same process.
        self.ceiling = median(r["ceiling_flops"] for r in self.ours)
        self.our_share = median(
            self.flops / median(r["step_seconds"]) / r["ceiling_flops"] for r in self.ours)
        seconds = {}
        for r in runs:
            if not is_ours(r):
                seconds.setdefault(r["impl"], []).extend(r["step_seconds"])
        self.best = min(seconds, key=lambda impl: median(seconds[impl])) if seconds else None
        self.best_seconds = median(seconds[self.best]) if seconds else None

    def ratio(self):
        """Median, over the best mode's runs, of the run's time divided by that of our runs just before and after it."""
        ratios = []
        for i, r in enumerate(self.runs):
            if r["impl"] == self.best:
                neighbours = [n for n in self.runs[max(i - 1, 0) : i + 2] if is_ours(n)]
                if neighbours:
                    mine = median(s for n in neighbours for s in n["step_seconds"])
                    ratios.append(median(r["step_seconds"]) / mine)
        return median(ratios) if ratios else None


def read_rows(path):
    groups = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            run = json.loads(line)
            groups.setdefault((run["vocab"], run["precision"], run["threads"]), []).append(run)
    return [Row(key, runs) for key, runs in groups.items() if any(is_ours(r) for r in runs)]


def print_table(header, rows):
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * 3 + "---:|" * (len(header) - 3))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def row_name(row):
    return [row.vocab, row.precision, row.threads]


def print_speed(rows):
    absent = "failed" if any(row.best for row in rows) else "no torch"
    cells = []
    for row in rows:
        tokens = row.runs[0]["tokens_per_step"]
        line = row_name(row) + [
            f"{1e3 * row.our_seconds:.1f}", f"{tokens / row.our_seconds:,.0f}",
            f"{row.flops / row.our_seconds / 1e9:.0f}", f"{row.ceiling / 1e9:.0f}",
            f"{100 * row.our_share:.0f}%"]
        ratio = row.ratio()
        if ratio is None:
            line += [absent] * 3
        else:
            mode = row.best.removeprefix("pytorch-")
            share = row.flops / row.best_seconds / row.ceiling
            line += [f"{1e3 * row.best_seconds:.1f} ({mode})", f"{100 * share:.0f}%", f"{ratio:.2f}"]
        cells.append(line)
    print_table(["vocabulary", "precision", "threads", "ms/step", "tokens/s", "GFLOP/s", "ceiling GFLOP/s",
                 "% of ceiling", "PyTorch ms/step", "PyTorch % of ceiling", "PyTorch / ours"], cells)


def print_parts(rows):
    names = []
    for row in rows:
        for run in row.ours:
            names += [n for n in run.get("parts", {}) if n not in names]
    if not names:
        return
    print("Where our step's time goes, % of a median step:\n")
    cells = []
    for row in rows:
        shares = [median(100 * r.get("parts", {}).get(n, 0.0) / median(r["step_seconds"]) for r in row.ours)
                  for n in names]
        cells.append(row_name(row) + [f"{s:.1f}" for s in shares] + [f"{100 - sum(shares):.1f}"])
    print_table(["vocabulary", "precision", "threads", *names, "rest"], cells)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: step_table.py RESULTS.jsonl")
    rows = read_rows(sys.argv[1])
    if not rows:
        sys.exit("step_table.py: no run of ours in " + sys.argv[1])
    versions = sorted({r["torch"] for row in rows for r in row.runs if "torch" in r})
    isas = sorted({r["isa"] for row in rows for r in row.ours if "isa" in r})
    print(f"{LAYERS} layers, hidden {HIDDEN}, ffn {FFN}, {SEQ} tokens, micro-batch 8"
          + (f"; PyTorch {', '.join(versions)}" if versions else "") + f"; {', '.join(isas)} kernels; medians of interleaved runs.\n")
    print_speed(rows)
    print_parts(rows)
    ratios = [ratio for row in rows if (ratio := row.ratio()) is not None]
    if ratios:
        print(f"Median ratio PyTorch / ours over {len(ratios)} rows: {median(ratios):.2f}, "
              f"smallest {min(ratios):.2f}.")
    else:
        print("No ratio to PyTorch: no torch.")


if __name__ == "__main__":
    main()
