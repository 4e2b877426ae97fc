#!/usr/bin/env python3
"""Tables of run.py's records. usage: table.py results.jsonl"""

import json
import sys
from statistics import median

# Rates are reported for an optimizer step of this many tokens, whatever number of microbatches was run.
STEP_TOKENS = 524288


def rows(header, lines):
    """A Markdown table with numbers aligned right."""
    marks = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in [header, marks, *lines]) + "\n"


def equivalent(result):
    """Tokens/s of a step of STEP_TOKENS tokens: the microbatches that it needs, and one update."""
    step, update = median(result["step_seconds"]), median(result["optimizer_seconds"])
    tokens = result["micro"] * result["seq_len"]
    microbatch = (step - update) / result["microbatches"]
    return STEP_TOKENS / (microbatch * STEP_TOKENS / tokens + update), microbatch, update


def tuning_of(result):
    """Options of our run that differ from a benchmark's defaults."""
    text = ", GEMMs not timed" if result.get("gemm_algorithms", "timed") != "timed" and result.get("peak_flops") else ""
    if (workspace := result.get("gemm_workspace_bytes", 2**28)) != 2**28:
        text += f", workspace {workspace // 2**20} MiB"
    if chunk := result.get("head_chunk_tokens"):
        text += f", head chunk {chunk}"
    return text


def trainings(records):
    return [r for r in records if "step_seconds" in r.get("result", {})]


def training_table(records):
    facts = {}  # by job: facts that only our program reports
    for r in trainings(records):
        if r["result"].get("peak_flops"):
            facts[r["result"]["job"]] = (r["result"]["flops_per_token"], r["result"]["peak_flops"])
    lines = []
    for r in trainings(records):
        result = r["result"]
        rate, microbatch, update = equivalent(result)
        flops, peak = facts.get(result["job"], (None, None))
        seen = r.get("device", {})
        memory = result.get("planned_bytes") or result.get("peak_bytes")
        timed = tuning_of(result)
        lines.append([f"{result['job']}: {result['impl']}{timed}", result["attention"], result.get("attention_library", ""), result["master"],
                      f"{result['micro']} x {result['seq_len']}", f"{1e3 * microbatch:.1f}", f"{1e3 * update:.1f}", f"{rate:,.0f}",
                      f"{100 * rate * flops / peak:.1f}%" if peak else "", f"{memory / 2**30:.1f}" if memory else "",
                      f"{seen['sm_mhz']['median']:.0f}" if seen else "", f"{seen['watts']['median']:.0f}" if seen else "",
                      f"{seen['memory_mib']['most'] / 1024:.1f}" if seen else "", f"{result['losses'][0]:.4f}, {result['losses'][-1]:.4f}"])
    return rows(["", "attention", "by", "state", "microbatch", "ms/microbatch", "ms/update", "tokens/s", "MFU", "GiB allocated", "SM MHz", "W",
                 "GiB used", "first and last loss"], lines)


def misnamed(records):
    """Reasons why our bf16 rows are wrong: they name a library but ran our own attention or widened GEMMs."""
    found = []
    for r in trainings(records):
        result = r["result"]
        own, widened = result.get("own_attention_calls", 0), result.get("widened_gemms", 0)
        on_gpu = result.get("attention_library") and result.get("peak_flops")
        if on_gpu and result["impl"] == "trainerd" and result.get("compute", "bf16") == "bf16" and (own or widened) \
                and "own kernels" not in result["attention_library"]:
            found.append(f"{result['job']}: {own} calls of attention by own kernels, {widened} widened GEMMs, and the row says {result['attention_library']}")
    return found


def ratios(records):
    """Our rate over PyTorch's best, per job, kind of attention and state."""
    best = {}
    for r in trainings(records):
        result = r["result"]
        key = (f"{result['job']}, {result['seq_len']} tokens", result["attention"], result["master"])
        if tuning_of(result):
            continue  # opt-in: beside the ratio, not in it
        if r["phase"] == "contact":
            continue  # its first steps are not warmed up
        side = "ours" if result["impl"] == "trainerd" else "theirs"
        best.setdefault(key, {"ours": [], "theirs": []})[side].append((equivalent(result)[0], result["impl"]))
    lines = []
    for (job, attention, master), sides in best.items():
        if not sides["ours"] or not sides["theirs"]:
            continue
        ours = median(rate for rate, _ in sides["ours"])
        theirs, impl = max(sides["theirs"])
        lines.append([job, attention, master, f"{ours:,.0f}", f"{theirs:,.0f} ({impl})", f"{ours / theirs:.3f}"])
    return rows(["", "attention", "state", "ours, tokens/s", "PyTorch, the faster", "ratio"], lines) if lines else ""


def operator_tables(records):
    measured = [r for r in records if "floor_seconds" in r and not r["kind"].startswith("ledger")]
    timed = {(r["job"], r["op"]): f"{r['flops'] / r['seconds'] / 1e12:.0f}" for r in measured if r["kind"] == "timed gemm"}
    timed |= {(r["job"], r["op"]): "not used" for r in measured if r["kind"] == "timed gemm not used"}
    text = ""
    for kind, title in (("gemm", "GEMMs"), ("attention", "Attention"), ("memory", "Memory-bound operators")):
        lines = []
        for r in (m for m in measured if m["kind"] == kind):
            line = [f"{r['job']}: {r['op']}", r["shape"], f"{1e6 * r['seconds']:.0f}"]
            if kind == "memory":
                line += [f"{r['bytes'] / 1e6:.1f}", f"{1e6 * r['floor_seconds']:.0f}", f"{r['bytes'] / r['seconds'] / 1e9:.0f}"]
            else:
                line += [f"{r['flops'] / 1e12:.3f}", f"{r['flops'] / r['seconds'] / 1e12:.0f}"]
            if kind == "gemm":
                line.append(timed.get((r["job"], r["op"]), ""))
            lines.append(line + [f"{100 * r['floor_seconds'] / r['seconds']:.0f}%"])
        if lines:
            columns = {"memory": ["MB", "floor us", "GB/s"], "gemm": ["TFLOP", "TFLOP/s", "by timing"], "attention": ["TFLOP", "TFLOP/s"]}[kind]
            text += f"## {title}\n\n" + rows(["", "shape", "us", *columns, "of the floor"], lines) + "\n"
    return text


def ledger_tables(records):
    """Operators of one step by class, longest first: time, rate reached, and lower bound by bytes and FLOPs."""
    text = ""
    totals = {r["job"]: r for r in records if r.get("kind") == "ledger total"}
    for job, total in totals.items():
        lines = []
        for r in records:
            if r.get("kind") != "ledger" or r["job"] != job:
                continue
            seconds = max(r["seconds"], 1e-9)  # at least a clock tick
            rate = f"{r['bytes'] / seconds / 1e9:,.0f} GB/s" if r["class"] == "memory" else f"{r['flops'] / seconds / 1e12:,.1f} TFLOP/s"
            lines.append([r["op"], r["shape"], r["calls"], f"{1e3 * seconds:.2f}", f"{100 * seconds / total['step_seconds']:.1f}%", rate,
                          f"{1e3 * r['floor_seconds']:.2f}", f"{100 * r['floor_seconds'] / seconds:.0f}%"])
        rest = total["step_seconds"] - total["operator_seconds"]
        lines.append(["between operators", "", "", f"{1e3 * rest:.2f}", f"{100 * rest / total['step_seconds']:.1f}%", "", "", ""])
        text += f"## Operators of a step of {job}\n\n" + rows(["", "shape", "calls", "ms", "of the step", "reached", "floor ms", "of the floor"], lines)
        text += f"\nFloors by {total['bytes_per_second'] / 1e9:,.0f} GB/s of a copy and {total['flops_per_second'] / 1e12:,.1f} TFLOP/s.\n\n"
    return text


def device_lines(records):
    """The results of device_bench."""
    text = ""
    for r in records:
        if r.get("kind") == "device":
            text += f"- {r['device']}: {r['gemm_library']}; {r['attention_library'] or 'own attention'}\n"
            text += "".join(f"- {path}\n" for path in r["libraries"])
        elif r.get("kind") == "device copy":
            text += f"- copies of {r['bytes'] / 2**20:.0f} MiB: {r['bytes_per_second'] / 1e9:,.0f} GB/s (read and written)\n"
        elif r.get("kind") == "host copy":
            text += f"- host link: {r['to_device_bytes_per_second'] / 1e9:.1f} GB/s to the device, {r['from_device_bytes_per_second'] / 1e9:.1f} GB/s from it\n"
        elif r.get("kind") == "sustained gemm":
            rates = ", ".join(f"{r[key + '_flops_per_second'] / 1e12:,.1f}" for key in ("first", "median", "last"))
            text += f"- a product of {r['size']} for {r['seconds']:.0f} s: first, median and last second {rates} TFLOP/s\n"
        if "device" in r and "sm_mhz" in (r["device"] if isinstance(r["device"], dict) else {}) and r.get("step", "").startswith("device:"):
            text += f"- meanwhile {r['device']['sm_mhz']['median']:.0f} MHz and {r['device']['watts']['median']:.0f} W (medians)\n"
    return text


def gemm_means(records):
    """TFLOP/s over all GEMMs of a job by role, each counted once: with the library's first algorithm and with the fastest."""
    sums = {}
    for r in records:
        if "floor_seconds" in r and r["kind"] in ("gemm", "timed gemm"):
            total = sums.setdefault((r["job"], r["op"].split()[-1]), {}).setdefault(r["kind"], [0.0, 0.0])
            total[0] += r["flops"]
            total[1] += r["seconds"]
    rate = lambda total: f"{total[0] / total[1] / 1e12:.0f}" if total else ""
    lines = [[f"{job}: {role}", rate(kinds.get("gemm")), rate(kinds.get("timed gemm"))] for (job, role), kinds in sums.items()]
    return "## GEMMs by role\n\n" + rows(["", "TFLOP/s", "by timing"], lines) + "\n" if lines else ""


def markdown(records):
    text = "# GPU results\n\n"
    for r in records:
        if "machine" in r:
            text += "".join(f"- {name}: {value}\n" for name, value in r["machine"].items())
        if r.get("kind") == "copy":
            text += f"- copy: {r['bytes_per_second'] / 1e9:.0f} GB/s (read and written); {r['gemm_library']}; {r['attention_library'] or 'own attention'}\n"
    text += device_lines(records)
    steps = [[r["step"], r["outcome"].splitlines()[0], f"{r['seconds']:.1f}" if "seconds" in r else ""] for r in records if "step" in r]
    if steps:
        text += "\n## Steps\n\n" + rows(["step", "outcome", "s"], steps) + "\n"
    if trainings(records):
        text += f"## Training, as steps of {STEP_TOKENS:,} tokens\n\n" + training_table(records) + "\n" + ratios(records) + "\n"
    if misnamed(records):
        text += "## Rows that are not what they say\n\n" + "".join(f"- {row}\n" for row in misnamed(records)) + "\n"
    return text + ledger_tables(records) + gemm_means(records) + operator_tables(records)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as lines:
        read = [json.loads(line) for line in lines]
    print(markdown(read))
    sys.exit(1 if misnamed(read) else 0)
