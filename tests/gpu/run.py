#!/usr/bin/env python3
"""The work of run.sh: phases of steps, each with a time limit, results written as they come."""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import table

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
JOBS = TESTS / "bench" / "gpu"
PHASE_SECONDS = 600
# A phase's last seconds are for stopping what runs and for the table.
RESERVE_SECONDS = 25

SMALL_JOB = """\
name: curve
seed: 1
device: {device}
model: {{layers: 4, hidden: 256, heads: 4, kv_heads: 2, ffn: 704, vocab: 512, seq_len: 128, qkv_bias: true}}
batch: {{global: 8, micro: {micro}}}
precision: {precision}
optimizer: {{lr: 1.0e-3, schedule: {{kind: constant}}}}
steps: 1000
data: {{format: synthetic}}
"""
CURVE_STEPS = 20


class Places:
    """Where the programs are: in a package, tests/ has its binaries beside it; in a source tree, the build folder has them."""

    def __init__(self, build=None):
        root = TESTS.parent
        if build is None:
            build = TESTS if (TESTS / "test_cuda").exists() else root / "build" / "release"
        self.binaries = pathlib.Path(build)
        packaged = self.binaries == TESTS
        self.trainerd = (root / "bin" if packaged else self.binaries) / "trainerd"
        self.share = root / "share" / "trainerd" if packaged else root
        self.missing = [str(p) for p in (self.trainerd, self.binary("test_cuda")) if not p.exists()]

    def binary(self, name):
        return self.binaries / name

    def libraries(self):
        """LD_LIBRARY_PATH of our programs."""
        found = subprocess.run([self.share / "deploy" / "cuda-libraries.sh"], capture_output=True, text=True)
        if found.returncode != 0:
            print(found.stderr, file=sys.stderr, end="")
        return ":".join(p for p in (found.stdout.strip(), os.environ.get("LD_LIBRARY_PATH", "")) if p)

    def build(self):
        """Version, commit and architectures, as the package says or git does."""
        known = self.share / "BUILD"
        if known.exists():
            return dict(line.split(": ", 1) for line in known.read_text().splitlines())
        commit = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
        return {"commit": commit.stdout.strip() or "unknown"}


class Watch(threading.Thread):
    """Clocks, power, memory and temperature during a step, by nvidia-smi where it is there."""

    QUERY = ("clocks.sm", "power.draw", "memory.used", "temperature.gpu")

    def __init__(self):
        super().__init__(daemon=True)
        self.samples, self.process = [], None
        if shutil.which("nvidia-smi"):
            self.process = subprocess.Popen(["nvidia-smi", "--query-gpu=" + ",".join(self.QUERY), "--format=csv,noheader,nounits",
                                             "--id=0", "--loop-ms=500"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.start()

    def run(self):
        for line in self.process.stdout:
            try:
                self.samples.append([float(x) for x in line.split(",")])
            except ValueError:
                continue  # "[N/A]": this sample is not whole

    def summary(self):
        if self.process is None:
            return None
        self.process.terminate()
        self.process.wait()
        self.join(5)
        if not self.samples:
            return None
        columns = dict(zip(("sm_mhz", "watts", "memory_mib", "celsius"), zip(*self.samples)))
        return {name: {"median": statistics.median(v), "most": max(v)} for name, v in columns.items()}


class Run:
    """The results of all phases, and the clock of one."""

    def __init__(self, out, places):
        self.out, self.places = out, places
        out.mkdir(parents=True, exist_ok=True)
        self.results = open(out / "results.jsonl", "a", encoding="utf-8")
        self.log = open(out / "log.txt", "a", encoding="utf-8")
        self.records, self.phase, self.end = [], "", 0.0
        self.begun = time.monotonic()  # of the phase; what is done before the first one counts as its
        self.libraries = places.libraries()

    def begin(self, phase, seconds=PHASE_SECONDS):
        if self.phase:
            self.begun = time.monotonic()
        self.phase, self.end = phase, self.begun + seconds - RESERVE_SECONDS

    def left(self):
        return self.end - time.monotonic()

    def record(self, **fields):
        record = {"phase": self.phase, **fields}
        self.records.append(record)
        self.results.write(json.dumps(record) + "\n")
        self.results.flush()
        os.fsync(self.results.fileno())
        return record

    def note(self, text):
        print(text, flush=True)
        self.log.write(text + "\n")
        self.log.flush()

    def ours(self, name):
        return str(self.places.binary(name))

    def step(self, name, command, limit, ours=True, watch=False, lines=False):
        """Runs a command for at most `limit` seconds. Returns (record, output). With `lines`, its JSON lines become records. A program
        that is not `ours` fails without failing the run."""
        limit = min(limit, self.left())
        if limit < 1:
            return self.record(step=name, outcome="not run: the phase's time was over"), ""
        self.note(f"== phase {self.phase}: {name} (at most {limit:.0f} s): {' '.join(map(str, command))}")
        env = dict(os.environ, PYTHONUNBUFFERED="1")
        if ours:
            env["LD_LIBRARY_PATH"] = self.libraries
        monitor = Watch() if watch else None
        begin = time.monotonic()
        output, outcome = run_limited(command, limit, env)
        took = time.monotonic() - begin
        self.log.write(output + "\n")
        found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        fields = {"step": name, "outcome": outcome, "ours": ours, "seconds": round(took, 3)}
        if outcome != "passed":
            fields["tail"] = output[-2000:]
        if monitor and (seen := monitor.summary()):
            fields["device"] = seen
        if lines:
            for line in found:
                self.record(measure=name, **line)
        elif found:
            fields["result"] = found[-1]
        self.note(f"   {outcome} in {took:.1f} s")
        return self.record(**fields), output

    def failed(self):
        return [r for r in self.records if r.get("outcome", "").startswith(("failed", "timed out")) and r.get("ours", True)]

    def close(self):
        self.results.close()
        self.log.close()


def run_limited(command, limit, env):
    """Output (both streams) and outcome. What runs longer is ended with everything it started."""
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        except OSError as error:
            return str(error), f"failed: {error.strerror}"
        try:
            code = process.wait(limit)
            outcome = "passed" if code == 0 else f"failed: status {code}"
        except subprocess.TimeoutExpired:
            outcome = f"timed out after {limit:.0f} s"
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        out.seek(0)
        return out.read(), outcome


# ---- Phases ----

def phase_1(run):
    record, output = run.step("operators against the CPU's values", [run.ours("test_cuda")], 330)
    if record["outcome"] == "passed" and "All tests passed" not in output:
        run.record(step="operators: what was run", outcome="failed: test_cuda passed without running a test")
    for job in "abc":
        run.step(f"rates of operators, {job}", [run.ours("operators_bench"), JOBS / f"{job}.yaml"], 120, watch=True, lines=True)


def python():
    return os.environ.get("PYTHON", "python3")


def has_torch():
    return subprocess.run([python(), "-c", "import torch"], capture_output=True).returncode == 0


def train(run, job, *overrides, limit=150):
    """Our training step, timed."""
    command = [run.ours("train_bench"), JOBS / f"{job}.yaml"]
    for override in overrides:
        command += ["--set", override]
    return run.step(" ".join(["ours", job, *overrides]), command, limit, watch=True)[0]


def pytorch(run, job, mode, *flags, overrides=(), limit=240):
    """PyTorch's, of the same job."""
    command = [run.ours("train_bench"), str(JOBS / f"{job}.yaml"), "--describe"]
    for override in overrides:
        command += ["--set", override]
    described = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, LD_LIBRARY_PATH=run.libraries))
    name = " ".join(["PyTorch", job, mode, *flags, *overrides])
    if described.returncode != 0:
        return run.record(step=name, outcome="failed: the job cannot be described", tail=described.stderr)
    shapes = run.out / "shapes.json"
    shapes.write_text(described.stdout)
    return run.step(name, [python(), JOBS / "pytorch_train.py", shapes, "--mode", mode, *flags], limit, ours=False, watch=True)[0]


AUTOTUNE = "max-autotune-no-cudagraphs"
MASTER = "precision={compute: bf16, grads: bf16}"


def versus(run, job, torch, smaller, master):
    """Ours, theirs, ours; what matters most first. `smaller`: overrides for a PyTorch whose memory is not enough; `master`: those of the
    variant with the state in fp32."""
    ours = train(run, job)
    fits = ()
    if torch:
        theirs = pytorch(run, job, "default", "--deterministic")
        if "out of memory" in theirs.get("tail", "").lower():
            fits = smaller
            theirs = pytorch(run, job, "default", "--deterministic", overrides=fits)
        train(run, job)
        compare_losses(run, job, ours, theirs)
        pytorch(run, job, AUTOTUNE, "--deterministic", overrides=fits)
    else:
        run.record(step=f"PyTorch {job}", outcome="skipped: no torch in " + python())
    train(run, job, "gemm_algorithms=timed")
    train(run, job, "attention=fast")
    if torch:
        pytorch(run, job, "default", overrides=fits)
    train(run, job, *master)
    if torch:
        pytorch(run, job, "default", "--deterministic", overrides=master)


def compare_losses(run, job, ours, theirs):
    """The first losses come from the same weights and tokens: they differ by rounding alone, less than one rounding to bf16 would."""
    a, b = (r.get("result", {}).get("losses") for r in (ours, theirs))
    if not a or not b:
        return
    apart = [abs(x - y) / abs(x) for x, y in zip(a, b)]
    outcome = "passed" if apart[0] <= 2.0 ** -9 else f"failed: the first losses are {a[0]:.6f} and {b[0]:.6f}"
    run.record(step=f"losses of {job}: ours and PyTorch's", outcome=outcome, first=apart[0], largest=max(apart))


def phase_2a(run):
    versus(run, "a", has_torch(), ("batch.micro=16",), (MASTER,))


def phase_2b(run):
    versus(run, "b", has_torch(), ("batch.micro=8",), (MASTER, "batch.micro=2", "batch.global=8"))


def phase_3(run):
    curves(run)
    quickstart(run)
    layouts(run)
    train(run, "c", limit=120)
    if has_torch():
        pytorch(run, "c", "default", "--deterministic", limit=150)
    sanitizer(run)


def curve(run, folder, device, precision, micro):
    job = folder / f"{device}-{precision}-{micro}.yaml"
    job.write_text(SMALL_JOB.format(device=device, precision=precision, micro=micro))
    record, _ = run.step(f"curve: {device}, {precision}, micro-batch {micro}",
                         [run.ours("train_bench"), job, "--warmup", "0", "--steps", str(CURVE_STEPS)], 90)
    return record.get("result", {}).get("losses")


def apart(a, b):
    return max(abs(x - y) / abs(x) for x, y in zip(a, b))


def judge_curves(cpu_fp32, others, cpu_bf16, cuda_fp32, cuda_bf16):
    """(what, difference, bound) of each precision. In fp32 the bound is four times the most that other orders of sums (`others`) change on
    the CPU, as layouts are held to (tests/core/layouts_test.cpp); in bf16 twice what bf16 itself changes there: both stray from fp32."""
    return [("fp32", apart(cpu_fp32, cuda_fp32), 4 * max(apart(cpu_fp32, other) for other in others)),
            ("bf16", apart(cpu_bf16, cuda_bf16), 2 * apart(cpu_fp32, cpu_bf16))]


def curves(run):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        cpu_fp32, *others = (curve(run, folder, "cpu", "fp32", micro) for micro in (4, 1, 2, 8))
        narrow = [curve(run, folder, *which) for which in (("cpu", "bf16", 4), ("cuda", "fp32", 4), ("cuda", "bf16", 4))]
    if not all([cpu_fp32, *others, *narrow]):
        return
    for precision, difference, bound in judge_curves(cpu_fp32, others, *narrow):
        outcome = "passed" if difference <= bound else f"failed: {difference:.2e} apart, more than {bound:.2e}"
        run.record(step=f"{CURVE_STEPS} losses, CUDA and CPU, {precision}", outcome=outcome, difference=difference, bound=bound,
                   last_loss=narrow[-1][-1])


def quickstart(run):
    """The quickstart job on the GPU, reading the standard library of this Python in place of C++'s."""
    library = pathlib.Path(os.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        command = [run.places.trainerd, "run", run.places.share / "configs" / "quickstart.yaml"]
        for override in ("device=cuda", "parallel.dp=1", "threads=0", f"output={folder}/run", "steps=200", f"data.train=['{library}/*.py']",
                         f"data.valid=['{library}/json/*.py', '{library}/email/*.py']"):
            command += ["--set", override]
        record, _ = run.step("quickstart on CUDA", command, 120, watch=True)
        if record["outcome"] != "passed":
            return None
        log = pathlib.Path(folder) / "run" / "steps.jsonl"
        steps = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        if not steps:
            return run.record(step="quickstart on CUDA: what it learned", outcome="failed: it left no steps.jsonl")
        first, last = steps[0]["loss"], steps[-1]["loss"]
        # Bytes of text at random cost ln 256 = 5.5; their frequencies alone bring that to about 3.2.
        outcome = "passed" if len(steps) == 200 and last < 3.0 else f"failed: {len(steps)} steps, loss {first:.2f} to {last:.2f}"
        return run.record(step="quickstart on CUDA: what it learned", outcome=outcome, first_loss=first, last_loss=last,
                   tokens_per_second=steps[-1]["tokens_per_second"], mfu=steps[-1].get("mfu"))


# Several ranks on one GPU: programs that are for a GPU as a whole, and those of which some tests carry a tag.
RANKS_TESTS = (("test_cuda_comm", ()), ("test_core", ("[gpu]",)))


def layouts(run):
    for binary, tags in RANKS_TESTS:
        path = run.places.binary(binary)
        env = dict(os.environ, LD_LIBRARY_PATH=run.libraries)
        listed = run_limited([path, "--list-test-names-only", *tags], 60, env)[0] if path.exists() else ""
        names = [line.strip() for line in listed.splitlines() if line.strip()]
        if not names or "no GPU" in listed:
            run.record(step=f"{binary}: several ranks on one GPU", outcome="skipped: it has no such test here")
            continue
        run.record(step=f"{binary}: several ranks on one GPU", outcome=f"found {len(names)} tests", names=names)
        record, output = run.step(f"{binary} {' '.join(tags)}".strip(), [path, *tags], 150)
        if record["outcome"] == "passed" and "All tests passed" not in output:
            run.record(step=f"{binary}: what was run", outcome=f"failed: {binary} passed without running a test")


def find_sanitizer():
    found = shutil.which("compute-sanitizer")
    for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
        path = pathlib.Path(root) / "bin" / "compute-sanitizer"
        if not found and root and path.exists():
            found = str(path)
    return found


def sanitizer(run):
    program = find_sanitizer()
    if program is None:
        return run.record(step="compute-sanitizer", outcome="skipped: it is not installed here")
    # It slows a kernel a hundredfold: the memory-bound kernels, on small shapes.
    for tool in ("memcheck", "racecheck"):
        command = [program, "--tool", tool, "--error-exitcode", "9", run.ours("test_cuda"), "[norm],[mlp],[loss],[embedding],[update]~[rounding]"]
        record, output = run.step(f"compute-sanitizer {tool}", command, 120)
        if re.search(r"not supported|Unable to", output) and record["outcome"] != "passed":
            run.note("   compute-sanitizer does not work on this machine")
    return None


PHASES = {"1": phase_1, "2a": phase_2a, "2b": phase_2b, "3": phase_3}


def chosen_phases(asked):
    chosen = []
    for phase in asked or ["1", "2", "3"]:
        if phase == "2":
            chosen += ["2a", "2b"]
        elif phase in PHASES:
            chosen.append(phase)
        else:
            sys.exit(f"run.py: there is no phase {phase}: 1, 2, 2a, 2b, 3")
    return chosen


def machine(run):
    """What the results were measured on."""
    facts = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), **run.places.build()}
    if shutil.which("nvidia-smi"):
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm", "--format=csv,noheader", "--id=0"],
                               capture_output=True, text=True)
        facts["nvidia_smi"] = asked.stdout.strip()
    facts["LD_LIBRARY_PATH"] = run.libraries
    return facts


def main():
    parser = argparse.ArgumentParser(prog="run.sh", description="Tests and measures trainerd on a GPU.")
    parser.add_argument("phases", nargs="*", metavar="PHASE", help="1, 2 (2a, 2b), 3; default: all")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", "gpu-results")), help="folder of the results")
    parser.add_argument("--build", type=pathlib.Path, help="folder of the binaries, when it is not build/release")
    args = parser.parse_args()
    phases = chosen_phases(args.phases)
    places = Places(args.build)
    if places.missing:
        sys.exit("run.py: not there: " + ", ".join(places.missing) + ": build them, or run this from the package")
    run = Run(args.out, places)
    seen, outcome = run_limited([places.binary("test_cuda"), "--list-test-names-only"], 120, dict(os.environ, LD_LIBRARY_PATH=run.libraries))
    if "no GPU: no test was run" in seen:
        run.record(outcome="no GPU", detail=seen.strip())
        run.note(seen.strip())
        return 0
    # Catch's lists end with how many they are.
    if outcome.startswith("timed out") or not seen.strip():
        sys.exit(f"run.py: test_cuda cannot list its tests: {outcome}\n{seen}")
    run.record(machine=machine(run))
    half = sum(p.startswith("2") for p in phases) == 2 and "2" in (args.phases or ["2"])
    for phase in phases:
        run.begin(phase, PHASE_SECONDS / 2 if half and phase.startswith("2") else PHASE_SECONDS)
        PHASES[phase](run)
    text = table.markdown(run.records)
    (args.out / "table.md").write_text(text)
    print(text)
    run.close()
    return 1 if run.failed() or table.misnamed(run.records) else 0


if __name__ == "__main__":
    sys.exit(main())
