"""The phases of run.py: steps, their order, and how results are judged. Each phase ends within its time and leaves its records."""

import functools
import math
import os
import pathlib
import re
import shutil
import tempfile
import zlib
from statistics import median

from machine import HERE, asked, run_limited

JOBS = HERE.parent / "bench" / "gpu"
BENCHMARKS = ("a", "b", "c")  # they ask for GEMM algorithms chosen by timing
FIRST = "gemm_algorithms=first"

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
# Comparison with PyTorch on the same device.
LONG_CURVE_STEPS = 100
AUTOTUNE = "max-autotune-no-cudagraphs"
MASTER = "precision={compute: bf16, grads: bf16}"


def python():
    return os.environ.get("PYTHON", "python3")


@functools.cache
def has_torch(program):
    return not asked([program, "-c", "import torch"])[1]


def skip_torch(run, what):
    run.record(step=what, outcome="skipped: no torch in " + python())


# ---- Training, ours and PyTorch's ----

def job_file(job):
    return JOBS / f"{job}.yaml" if isinstance(job, str) else job


def with_overrides(command, overrides):
    for override in overrides:
        command += ["--set", override]
    return command


def choices_file(run, job, tuning, overrides):
    """Where a benchmark's GEMM choices by timing are kept for its later runs, also those of another phase. The timing itself takes up
    to 90 s."""
    shapes = [o for o in overrides if not o.startswith(("attention=", "gemm_algorithms=", "cuda_graphs="))]
    name = "-".join([run.places.build()["commit"], str(zlib.crc32((run.device + run.libraries).encode())), job_file(job).stem, *tuning, *shapes])
    folder = pathlib.Path(tempfile.gettempdir()) / "trainerd-gemm-choices"
    folder.mkdir(exist_ok=True)
    return folder / (re.sub(r"[^\w.]+", "-", name) + ".txt")


def train(run, job, *overrides, limit=240, steps=(), tuning=()):
    """Our training step, timed. `tuning`: options of train_bench that choose speed against memory."""
    command = with_overrides([run.ours("train_bench"), job_file(job), *steps, *tuning], overrides)
    if job in BENCHMARKS and FIRST not in overrides:
        command += ["--gemm-choices", choices_file(run, job, tuning, overrides)]
    return run.step(" ".join(["ours", job_file(job).stem, *tuning, *overrides]), command, limit, watch=True)[0]


def pytorch(run, job, mode, *flags, overrides=(), limit=240):
    """PyTorch's training step of the same job, timed."""
    file = job_file(job)
    name = " ".join(["PyTorch", file.stem, mode, *flags, *overrides])
    if not run.wants(name):
        return {}
    command = with_overrides([run.ours("train_bench"), str(file), "--describe"], overrides)
    described, error = asked(command, dict(os.environ, LD_LIBRARY_PATH=run.libraries))
    if error:
        return run.record(step=name, outcome="failed: the job cannot be described", tail=error)
    shapes = run.out / "shapes.json"
    shapes.write_text(described)
    return run.step(name, [python(), JOBS / "pytorch_train.py", shapes, "--mode", mode, *flags], limit, ours=False, watch=True)[0]


def losses_of(record):
    return record.get("result", {}).get("losses")


def compare_losses(run, job, ours, theirs, whose="ours and PyTorch's"):
    """The first losses come from the same weights and tokens, so they differ by less than one rounding to bf16."""
    a, b = losses_of(ours), losses_of(theirs)
    if not a or not b:
        return
    if None in (a[0], b[0]):  # NaN, in JSON
        run.record(step=f"losses of {job}: {whose}", outcome="failed: a loss is not finite")
        return
    apart_by = [abs(x - y) / abs(x) for x, y in zip(a, b)]
    outcome = "passed" if apart_by[0] <= 2.0 ** -9 else f"failed: the first losses are {a[0]:.6f} and {b[0]:.6f}"
    run.record(step=f"losses of {job}: {whose}", outcome=outcome, first=apart_by[0], largest=max(apart_by))


def check_path(run, record):
    """A rate counts only if losses are finite and attention and GEMMs ran in the library's bf16 kernels."""
    result = record.get("result")
    if not result:
        return
    wrong = [f"loss {loss}" for loss in result["losses"] if loss is None or not math.isfinite(loss)][:1]
    wrong += [f"{result[key]} {key}" for key in ("own_attention_calls", "widened_gemms", "missed_gemm_choices") if result.get(key, 0) != 0]
    run.record(step=f"{record['step']}: losses and kernels", outcome="failed: " + ", ".join(wrong) if wrong else "passed")


def lacks_memory(record):
    tail = record.get("tail", "").lower()
    return "does not fit" in tail or "out of memory" in tail


# Overrides of each benchmark for smaller devices, in this order: A fits an H100 as it is, B with microbatches of 4, C with 4096 tokens.
SMALLER = {"a": ("batch.micro=16",), "b": ("batch.micro=8", "batch.micro=4", "batch.micro=2"), "c": ("model.seq_len=4096", "model.seq_len=2048")}


def train_largest(run, job, *overrides):
    """Trains in the largest size that fits. Returns the record and the overrides of that size and of the smaller ones."""
    sizes = [(), *((override,) for override in SMALLER[job])]
    ours = train(run, job, *overrides, *sizes[0])
    while lacks_memory(ours) and len(sizes) > 1:
        ours["ours"] = False  # a device that is too small fails nothing
        sizes.pop(0)
        ours = train(run, job, *overrides, *sizes[0])
    check_path(run, ours)
    return ours, sizes


def against(run, job, limit, again=True):
    """Runs ours, PyTorch's, and ours `again`, in the largest size that fits. If PyTorch needs smaller microbatches, ours keeps its
    own. Returns PyTorch's overrides."""
    ours, sizes = train_largest(run, job)
    if not has_torch(python()):
        skip_torch(run, f"PyTorch {job}")
        return sizes[0]
    if not losses_of(ours) and ours.get("outcome") != "left out":
        run.record(step=f"PyTorch {job}", outcome="not run: there is no result of ours to compare with")
        return sizes[0]
    theirs = pytorch(run, job, "default", "--deterministic", overrides=sizes[0], limit=limit)
    if again:
        train(run, job, *sizes[0])
    if lacks_memory(theirs) and len(sizes) > 1 and "seq_len" not in sizes[1][0]:  # another length is another benchmark
        sizes.pop(0)
        theirs = pytorch(run, job, "default", "--deterministic", overrides=sizes[0], limit=limit)
    compare_losses(run, job, ours, theirs)
    return sizes[0]


# ---- Contact: does it run at all, on which path, and the time of each operator ----

def contact(run):
    versions(run)
    run.step("device: libraries, copies, a product for ten seconds", [run.ours("device_bench")], 60, watch=True, lines=True)
    tiny(run)
    graphs(run)
    check_path(run, train(run, "a", FIRST, limit=120, steps=("--warmup", "0", "--steps", "3")))
    ledger(run, "a", FIRST)
    tests_by_tags(run, 330)
    curves(run)


def versions(run):
    """Installed versions. A library of the plugin that the loader does not find is a failure that names it."""
    run.step("trainerd --version", [run.places.trainerd, "--version"], 30)
    plugin = run.places.plugin
    if plugin.exists():
        record, output = run.step("libraries of the plugin", ["ldd", plugin], 30)
        paths = dict(re.findall(r"^\s*(lib(?:cu|nccl|nv)\S*) => (\S.*?)(?: \(0x|$)", output, re.M))
        absent = sorted(name for name, path in paths.items() if path == "not found")
        run.record(step="libraries that the loader finds", outcome="failed: not found: " + ", ".join(absent) if absent else "passed", paths=paths)
    run.step("PyTorch's version", [python(), "-c", "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())"], 60,
             ours=False)


def tiny(run):
    steps = ("--warmup", "0", "--steps", "20")
    here, there = (train(run, "tiny", f"device={device}", limit=60, steps=steps) for device in ("cpu", "cuda"))
    compare_losses(run, "tiny", here, there, "CPU and CUDA")
    if learned := losses_of(there):
        fell = learned[-1] is not None and learned[-1] < learned[0]
        run.record(step="tiny: it learns on CUDA", outcome="passed" if fell else f"failed: losses {learned[0]} to {learned[-1]}")


def graphs(run):
    """A small job dominated by launch overhead, with graphs and call by call: same bits of losses, and the speed-up."""
    steps = ("--warmup", "10", "--steps", "50")
    on, off = (train(run, "tiny", "device=cuda", f"cuda_graphs={choice}", limit=60, steps=steps) for choice in ("auto", "off"))
    if not losses_of(on) or not losses_of(off):
        return
    made, taken = on["result"].get("graphs", 0), [median(r["result"]["step_seconds"]) for r in (on, off)]
    outcome = "passed"
    if losses_of(on) != losses_of(off):
        outcome = "failed: the losses differ"
    elif made == 0 or off["result"].get("graphs", 0) != 0:
        outcome = f"failed: {made} graphs with auto and {off['result'].get('graphs', 0)} with off: {on['result'].get('no_graphs')}"
    run.record(step="tiny: CUDA graphs and call by call", outcome=outcome, graphs=made, seconds_with=taken[0], seconds_without=taken[1],
               faster=taken[1] / taken[0])


def ledger(run, job, *overrides, limit=120):
    """Every operator of a step by class: calls, time, bytes, FLOPs and floor."""
    command = with_overrides([run.ours("train_bench"), job_file(job), "--ledger"], overrides)
    record, output = run.step(f"operator ledger of {job}", command, limit, watch=True, lines=True)
    if record["outcome"] == "passed" and '"ledger total"' not in output:
        run.record(step=f"operator ledger of {job}: its lines", outcome="failed: it printed no total")


def tests_by_tags(run, seconds):
    """Runs test_cuda once per tag, so that a hang or a broken device does not lose other results. Names are printed as tests
    end."""
    program = run.ours("test_cuda")
    env = dict(os.environ, LD_LIBRARY_PATH=run.libraries)
    listed = run_limited([program, "--list-tags"], 60, env)[0]
    tags = [tag for tag in re.findall(r"^\s*\d+\s+(\[[^\]]+\])", listed, re.M) if not tag.startswith(("[.", "[!"))]
    done, begun = [], run.elapsed()
    for tag in [*tags, ""]:
        spec = tag + "".join("~" + other for other in done) + "~[.]"
        done.append(tag)
        names = [n for n in run_limited([program, "--list-test-names-only", spec], 60, env)[0].splitlines() if n.strip()]
        if not names:
            continue
        left = seconds - (run.elapsed() - begun)
        buffered = ["stdbuf", "-oL"] if shutil.which("stdbuf") else []
        record, output = run.step(f"test_cuda {tag or 'without a tag'}: {len(names)} tests", [*buffered, program, spec, "--durations", "yes"],
                                  min(150, left))
        if record["outcome"] == "passed" and "All tests passed" not in output:
            run.record(step=f"test_cuda {tag}: what was run", outcome="failed: test_cuda passed without running a test")


def curve(run, folder, device, precision, micro):
    job = folder / f"{device}-{precision}-{micro}.yaml"
    job.write_text(SMALL_JOB.format(device=device, precision=precision, micro=micro))
    record, _ = run.step(f"curve: {device}, {precision}, micro-batch {micro}",
                         [run.ours("train_bench"), job, "--warmup", "0", "--steps", str(CURVE_STEPS)], 90)
    return losses_of(record)


def apart(a, b):
    return max(abs(x - y) / abs(x) for x, y in zip(a, b))


def judge_curves(cpu_fp32, others, cuda_fp32, halves):
    """(what, difference, bound) of each precision. In fp32 the bound is four times the largest change by other orders of sums
    (`others`) on the CPU, as for layouts (tests/core/train/layouts_test.cpp). In bf16 and fp16 (`halves`: by name the CPU's and the
    device's losses) it is twice the change by that precision on the CPU, since both deviate from fp32."""
    return [("fp32", apart(cpu_fp32, cuda_fp32), 4 * max(apart(cpu_fp32, other) for other in others)),
            *((precision, apart(cpu, cuda), 2 * apart(cpu_fp32, cpu)) for precision, (cpu, cuda) in halves.items())]


def curves(run):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        cpu_fp32, *others = (curve(run, folder, "cpu", "fp32", micro) for micro in (4, 1, 2, 8))
        cuda_fp32 = curve(run, folder, "cuda", "fp32", 4)
        halves = {precision: [curve(run, folder, device, precision, 4) for device in ("cpu", "cuda")] for precision in ("bf16", "fp16")}
    if not all([cpu_fp32, *others, cuda_fp32]):
        return
    last = {"fp32": cuda_fp32, **{precision: cuda for precision, (_, cuda) in halves.items()}}
    for precision, difference, bound in judge_curves(cpu_fp32, others, cuda_fp32, {p: both for p, both in halves.items() if all(both)}):
        outcome = "passed" if difference <= bound else f"failed: {difference:.2e} apart, more than {bound:.2e}"
        run.record(step=f"{CURVE_STEPS} losses, CUDA and CPU, {precision}", outcome=outcome, difference=difference, bound=bound,
                   last_loss=last[precision][-1])


# ---- Tuning: benchmark A with each tuning option of a job, beside PyTorch ----

# (options of train_bench, overrides of the job): without timed GEMM algorithms, and then with another workspace or head chunk; with
# them and fast attention.
TUNING = (((), (FIRST,)), (("--gemm-workspace", "32"), (FIRST,)), (("--head-chunk", "8192"), (FIRST,)), ((), ("attention=fast",)))


def tuning(run):
    ours = train(run, "a")
    check_path(run, ours)
    for options, overrides in TUNING:
        check_path(run, train(run, "a", *overrides, tuning=options, limit=120))
    if has_torch(python()):
        compare_losses(run, "a", ours, pytorch(run, "a", "default", "--deterministic"))
    else:
        skip_torch(run, "PyTorch a")
    train(run, "a")
    train_largest(run, "b")
    for job in "ab":
        run.step(f"rates of operators, {job}", [run.ours("operators_bench"), job_file(job)], 90, watch=True, lines=True)


# ---- The record: the reported figures ----

def record(run):
    fits = against(run, "a", 150)
    curve_against_pytorch(run)
    layouts(run)
    quickstart(run)
    against(run, "b", 200)
    against(run, "c", 150, again=False)
    sanitizer(run)
    if has_torch(python()):
        pytorch(run, "a", AUTOTUNE, "--deterministic", overrides=fits)


def variants(run):
    """In addition to the record: fast attention in both programs, and optimizer state in fp32."""
    torch = has_torch(python())
    train(run, "a", "attention=fast")
    if torch:
        pytorch(run, "a", "default")
    for job, master in (("a", (MASTER,)), ("b", (MASTER, "batch.micro=2", "batch.global=8"))):
        train(run, job, *master)
        if torch:
            pytorch(run, job, "default", "--deterministic", overrides=master)


def curve_against_pytorch(run):
    """Like bench/gpu/parity_test.py on the CPU: both deviate from fp32's losses by bf16 rounding, so they differ by at most twice
    that."""
    if not has_torch(python()):
        return skip_torch(run, "losses beside PyTorch's")
    steps = ("--warmup", "0", "--steps", str(LONG_CURVE_STEPS))
    with tempfile.TemporaryDirectory() as folder:
        job = pathlib.Path(folder) / "small.yaml"
        job.write_text(SMALL_JOB.format(device="cuda", precision="bf16", micro=4))
        exact, ours = (losses_of(train(run, job, precision, limit=60, steps=steps)) for precision in ("precision=fp32", MASTER))
        theirs = losses_of(pytorch(run, job, "eager", "--deterministic", *steps, overrides=(MASTER,), limit=90))
    if not exact or not ours or not theirs:
        return None
    bound = 2 * max(apart(exact, ours), apart(exact, theirs))
    difference = apart(ours, theirs)
    outcome = "passed" if difference <= bound and ours[-1] < ours[0] else f"failed: {difference:.2e} apart, more than {bound:.2e}"
    return run.record(step=f"{LONG_CURVE_STEPS} losses, ours and PyTorch's", outcome=outcome, difference=difference, bound=bound,
                      losses={"fp32": exact, "ours": ours, "pytorch": theirs})


def quickstart(run):
    """The quickstart job on the GPU, with this Python's standard library as data in place of C++'s."""
    library = pathlib.Path(os.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        overrides = ("device=cuda", "parallel.dp=1", "threads=0", f"output={folder}/run", "steps=200", f"data.train=['{library}/*.py']",
                     f"data.valid=['{library}/json/*.py', '{library}/email/*.py']")
        command = with_overrides([run.places.trainerd, "run", run.places.share / "configs" / "quickstart.yaml"], overrides)
        done, _ = run.step("quickstart on CUDA", command, 120, watch=True)
        if done["outcome"] != "passed":
            return None
        log = pathlib.Path(folder) / "run" / "steps.jsonl"
        steps = run.read_lines(log)
        if not steps:
            return run.record(step="quickstart on CUDA: what it learned", outcome="failed: it left no steps.jsonl")
        first, last = steps[0]["loss"], steps[-1]["loss"]
        # Random bytes have a loss of ln 256 = 5.5; learning byte frequencies alone gives about 3.2.
        outcome = "passed" if len(steps) == 200 and last < 3.0 else f"failed: {len(steps)} steps, loss {first:.2f} to {last:.2f}"
        return run.record(step="quickstart on CUDA: what it learned", outcome=outcome, first_loss=first, last_loss=last,
                          tokens_per_second=steps[-1]["tokens_per_second"], mfu=steps[-1].get("mfu"))


# Several ranks on one GPU: programs that need a GPU for all tests, and programs with a tag for some.
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
        done, output = run.step(f"{binary} {' '.join(tags)}".strip(), [path, *tags, "--durations", "yes"], 150)
        if done["outcome"] == "passed" and "All tests passed" not in output:
            run.record(step=f"{binary}: what was run", outcome=f"failed: {binary} passed without running a test")


def find_sanitizer():
    found = shutil.which("compute-sanitizer")
    for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
        path = pathlib.Path(root) / "bin" / "compute-sanitizer"
        if not found and root and path.exists():
            found = str(path)
    return found


def sanitizer(run):
    """compute-sanitizer. Its findings are recorded but fail nothing: it does not work on every machine and slows kernels by a
    factor of 100."""
    program = find_sanitizer()
    if program is None:
        return run.record(step="compute-sanitizer", outcome="skipped: it is not installed here")
    for tool in ("memcheck", "racecheck"):
        command = [program, "--tool", tool, "--error-exitcode", "9", run.ours("test_cuda"), "[norm],[mlp],[loss],[embedding],[update]~[rounding]"]
        run.step(f"compute-sanitizer {tool}", command, 90, fatal=False)
    return None


# In the order of a full run; `variants` runs only on request.
PHASES = {"contact": contact, "tuning": tuning, "record": record, "variants": variants}
EVERY = ("contact", "tuning", "record")
