"""run.py and its tables, with stand-ins for the programs, and with the real ones on the CPU."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
import machine
import phases
import run
import table
from documents import documented
from slices import sliced

BF16 = re.search(r"\b(avx512_bf16|amx_bf16)\b", pathlib.Path("/proc/cpuinfo").read_text())

BUILD = os.environ.get("TRAINERD_BUILD")
SCRIPT = pathlib.Path(run.__file__).parent / "run.sh"
TINY = phases.job_file("tiny")

OURS = {"impl": "trainerd", "job": "a", "master": "bf16", "attention": "deterministic", "attention_library": "cuDNN 9.19.0", "micro": 32,
        "microbatches": 4, "seq_len": 1024, "step_seconds": [2.1, 2.0, 2.2], "optimizer_seconds": [0.1, 0.1, 0.1], "losses": [12.0, 11.5],
        "planned_bytes": 2**36, "peak_flops": 989e12, "flops_per_token": 1e10, "own_attention_calls": 0, "widened_gemms": 0}
GRAPHS = {**OURS, "step_seconds": [1.0, 1.1, 1.2], "graphs": 7, "graph_calls": 300, "graph_launches": 420, "no_graphs": []}
THEIRS = {"impl": "pytorch default", "job": "a", "master": "bf16", "attention": "deterministic", "attention_library": "cudnn", "micro": 32,
          "microbatches": 4, "seq_len": 1024, "step_seconds": [2.5], "optimizer_seconds": [0.1], "losses": [12.001, 11.51], "peak_bytes": 2**36}
GEMM = {"kind": "gemm", "job": "a", "op": "qkv fprop", "shape": "32768 x 2048 x 1536", "flops": 2e11, "bytes": 1e8, "seconds": 2.5e-4,
        "least_seconds": 2.4e-4, "floor_seconds": 2e-4}
TIMED = {**GEMM, "kind": "timed gemm", "seconds": 2e-4}
NORM = {"kind": "memory", "job": "a", "op": "add_norm_forward", "shape": "32768 x 1536", "flops": 1e9, "bytes": 4e8, "seconds": 1.25e-4,
        "least_seconds": 1e-4, "floor_seconds": 1e-4}
LEDGER = [{"kind": "ledger", "job": "a", "op": "linear_fprop", "class": "gemm", "shape": "32768 x 1536 x 1536", "dtype": "bf16", "calls": 112,
           "seconds": 0.025, "flops": 1.73e13, "bytes": 2e10, "floor_seconds": 0.0175},
          {"kind": "ledger", "job": "a", "op": "add_norm_forward", "class": "memory", "shape": "", "dtype": "bf16", "calls": 228, "seconds": 0.05,
           "flops": 1e9, "bytes": 1.6e11, "floor_seconds": 0.04},
          {"kind": "ledger total", "job": "a", "device": "NVIDIA H200", "step_seconds": 0.1, "operator_seconds": 0.075, "floor_seconds": 0.0575,
           "bytes_per_second": 4e12, "flops_per_second": 989e12, "own_attention_calls": 0, "widened_gemms": 0}]
DEVICE = [{"kind": "device", "device": "NVIDIA H200", "gemm_library": "cuBLASLt 13.0.2", "attention_library": "cuDNN 9.19.0",
           "libraries": ["/usr/lib/libcublasLt.so.13"]},
          {"kind": "device copy", "bytes": 2**30, "bytes_per_second": 4.3e12},
          {"kind": "host copy", "to_device_bytes_per_second": 5.5e10, "from_device_bytes_per_second": 5.4e10},
          {"kind": "sustained gemm", "size": 8192, "seconds": 10, "first_flops_per_second": 8e14, "median_flops_per_second": 7.5e14,
           "last_flops_per_second": 7.4e14}]


def lines_of(records):
    return "".join(f"echo '{json.dumps(r)}'\n" for r in records)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)


class Limits(Folder):
    def test_what_runs_too_long_is_ended_with_all_it_started(self):
        begin = time.monotonic()
        output, outcome = machine.run_limited(["sh", "-c", "sleep 60 & echo $!; sleep 60"], 0.5, dict(os.environ))
        self.assertLess(time.monotonic() - begin, 50)
        self.assertEqual(outcome, "timed out after 0 s")
        child = int(output)
        for _ in range(100):
            if not pathlib.Path(f"/proc/{child}").exists() or "Z" in pathlib.Path(f"/proc/{child}/stat").read_text().split()[2]:
                return
            time.sleep(0.05)
        self.fail("a process that the step had started still runs")

    def test_outcomes(self):
        self.assertEqual(machine.run_limited(["sh", "-c", "echo out; echo err >&2"], 30, dict(os.environ)), ("out\nerr\n", "passed"))
        self.assertEqual(machine.run_limited(["sh", "-c", "exit 3"], 30, dict(os.environ))[1], "failed: status 3")
        self.assertEqual(machine.run_limited([self.root / "nothing"], 30, dict(os.environ))[1], "failed: No such file or directory")

    def test_a_phase_that_is_over_starts_nothing(self):
        one = machine.Run(self.root, machine.Places(self.root))
        self.addCleanup(one.close)
        one.begun = time.monotonic()
        one.begin("contact", machine.RESERVE_SECONDS + 0.5)
        marker = self.root / "marker"
        record, _ = one.step("late", ["touch", marker], 60)
        self.assertEqual(record["outcome"], "not run: the phase's time was over")
        self.assertFalse(marker.exists())
        self.assertEqual(one.failed(), [])
        one.begin("contact", machine.RESERVE_SECONDS + 2)
        record, _ = one.step("cut", ["sleep", "60"], 60)
        self.assertTrue(record["outcome"].startswith("timed out"))
        self.assertEqual(len(one.failed()), 1)
        # The records are already on the disk.
        self.assertEqual([json.loads(x)["step"] for x in (self.root / "results.jsonl").read_text().splitlines()], ["late", "cut"])


class Tables(Folder):
    def test_a_step_of_524288_tokens_is_sixteen_microbatches_and_one_update(self):
        rate, microbatch, update = table.equivalent(OURS)
        self.assertAlmostEqual(microbatch, 0.5)
        self.assertAlmostEqual(update, 0.1)
        self.assertAlmostEqual(rate, 524288 / (16 * 0.5 + 0.1))

    def test_rates_ratios_and_floors(self):
        records = [{"phase": "record", "step": "ours a", "outcome": "passed", "result": OURS},
                   {"phase": "record", "step": "PyTorch a", "outcome": "passed", "result": THEIRS,
                    "device": {"sm_mhz": {"median": 1755, "most": 1980}, "watts": {"median": 690, "most": 700},
                               "memory_mib": {"median": 1, "most": 102400}, "celsius": {"median": 60, "most": 66}}},
                   {"phase": "tuning", "measure": "rates", **GEMM}, {"phase": "contact", "measure": "rates", **TIMED}, {"phase": "contact", "measure": "rates", **NORM}]
        text = table.markdown(records)
        ours, theirs = 524288 / 8.1, 524288 / (16 * 0.6 + 0.1)
        self.assertIn(f"| {ours:,.0f} | {100 * ours * 1e10 / 989e12:.1f}% | 64.0 |", text)
        self.assertIn(f"| {theirs:,.0f} | {100 * theirs * 1e10 / 989e12:.1f}% | 64.0 | 1755 | 690 | 100.0 |", text)
        self.assertIn(f"| a, 1024 tokens | deterministic | bf16 | {ours:,.0f} | {theirs:,.0f} (pytorch default) | {ours / theirs:.3f} |", text)
        self.assertIn("| a: qkv fprop | 32768 x 2048 x 1536 | 250 | 0.200 | 800 | 1000 | 80% |", text)
        self.assertIn("| a: fprop | 800 | 1000 |", text)
        self.assertIn("| a: add_norm_forward | 32768 x 1536 | 125 | 400.0 | 100 | 3200 | 80% |", text)

    def test_tuned_runs_are_named_and_stand_beside_the_ratio(self):
        tuned = {**OURS, "gemm_algorithms": "first", "gemm_workspace_bytes": 2**25, "head_chunk_tokens": 8192, "step_seconds": [1.0]}
        plain = {**OURS, "gemm_algorithms": "timed", "gemm_workspace_bytes": 2**28, "head_chunk_tokens": 0}
        records = [{"phase": "tuning", "step": "x", "outcome": "passed", "result": r} for r in (plain, tuned, THEIRS)]
        text = table.markdown(records)
        self.assertIn("| a: trainerd, GEMMs not timed, workspace 32 MiB, head chunk 8192 |", text)
        self.assertIn(f"| {524288 / 8.1:,.0f} | {524288 / (16 * 0.6 + 0.1):,.0f} (pytorch default) |", text)

    def test_a_ledger_says_what_each_class_reached_and_what_lies_between(self):
        text = table.markdown([{"phase": "contact", "measure": "operator ledger of a", **r} for r in LEDGER])
        self.assertIn("| linear_fprop | 32768 x 1536 x 1536 | 112 | 25.00 | 25.0% | 692.0 TFLOP/s | 17.50 | 70% |", text)
        self.assertIn("| add_norm_forward |  | 228 | 50.00 | 50.0% | 3,200 GB/s | 40.00 | 80% |", text)
        self.assertIn("| between operators |  |  | 25.00 | 25.0% |", text)
        self.assertIn("Floors by 4,000 GB/s of a copy and 989.0 TFLOP/s.", text)
        self.assertNotIn("GEMMs by role", text)

    def test_rates_of_the_device_come_first(self):
        seen = {"sm_mhz": {"median": 1755, "most": 1980}, "watts": {"median": 690, "most": 700}}
        text = table.markdown([{"phase": "contact", "measure": "device", **r} for r in DEVICE] +
                              [{"phase": "contact", "step": "device: rates", "outcome": "passed", "seconds": 12.0, "device": seen}])
        self.assertIn("- NVIDIA H200: cuBLASLt 13.0.2; cuDNN 9.19.0\n- /usr/lib/libcublasLt.so.13\n", text)
        self.assertIn("- copies of 1024 MiB: 4,300 GB/s (read and written)\n- host link: 55.0 GB/s to the device, 54.0 GB/s from it\n", text)
        self.assertIn("first, median and last second 800.0, 750.0, 740.0 TFLOP/s\n- meanwhile 1755 MHz and 690 W (medians)\n", text)

    def test_a_choice_that_did_not_apply_is_no_rate_of_it(self):
        text = table.markdown([{"measure": "rates", **GEMM}, {"measure": "rates", **TIMED, "kind": "timed gemm not used"}])
        self.assertIn("| a: qkv fprop | 32768 x 2048 x 1536 | 250 | 0.200 | 800 | not used | 80% |", text)
        self.assertIn("| a: fprop | 800 |  |", text)

    def test_a_row_that_ran_by_own_kernels_says_so_or_fails(self):
        def found(**changed):
            return table.misnamed([{"phase": "2a", "step": "ours a", "outcome": "passed", "result": {**OURS, "compute": "bf16", **changed}}])
        self.assertEqual(found(own_attention_calls=0, widened_gemms=0), [])
        self.assertIn("a: 112 calls of attention by own kernels", found(own_attention_calls=112)[0])
        self.assertIn("3 widened GEMMs", found(widened_gemms=3)[0])
        self.assertEqual(found(own_attention_calls=112, attention_library="own kernels"), [])
        self.assertEqual(found(own_attention_calls=112, compute="fp32"), [])
        rows = [{"phase": "2a", "step": "ours a", "outcome": "passed", "result": {**OURS, "own_attention_calls": 7}}]
        self.assertIn("Rows that are not what they say", table.markdown(rows))
        results = self.root / "results.jsonl"
        results.write_text("".join(json.dumps(r) + "\n" for r in rows))
        self.assertEqual(subprocess.run([sys.executable, table.__file__, results], capture_output=True).returncode, 1)

    def test_the_page_says_how_tables_are_printed(self):
        results = self.root / "gpu-results" / "results.jsonl"
        results.parent.mkdir()
        rows = [{"phase": "2a", "step": f"{side['impl']} a", "outcome": "passed", "result": side} for side in (OURS, THEIRS)]
        results.write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = documented("tests/bench/gpu/README.md", "tests/gpu/table.py", {"gpu-results": results.parent})
        done = subprocess.run(words, capture_output=True, text=True, cwd=SCRIPT.parents[2])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.rstrip(), table.markdown(rows).rstrip())
        self.assertIn("| a, 1024 tokens | deterministic | bf16 |", done.stdout)

    def test_nothing_measured_is_a_table_of_steps_alone(self):
        text = table.markdown([{"phase": "contact", "step": "x", "outcome": "failed: status 1\nmore", "seconds": 2.0}])
        self.assertIn("| x | failed: status 1 | 2.0 |", text)
        self.assertNotIn("tokens", text)


class Judgements(Folder):
    def test_curves_are_held_to_what_rounding_does_on_the_cpu(self):
        cpu = [6.0, 5.0]
        verdicts = phases.judge_curves(cpu, [[6.0, 5.0001], [6.0, 5.0005]], [6.0, 5.0004],
                                       {"bf16": ([6.0, 5.01], [6.0, 5.03]), "fp16": ([6.0, 5.002], [6.0, 5.001])})
        self.assertEqual([v[0] for v in verdicts], ["fp32", "bf16", "fp16"])
        self.assertAlmostEqual(verdicts[0][1], 0.0004 / 5)
        self.assertAlmostEqual(verdicts[0][2], 4 * 0.0005 / 5)
        self.assertAlmostEqual(verdicts[1][1], 0.02 / 5.01)
        self.assertAlmostEqual(verdicts[1][2], 2 * 0.01 / 5)
        self.assertAlmostEqual(verdicts[2][1], 0.001 / 5.002)
        self.assertAlmostEqual(verdicts[2][2], 2 * 0.002 / 5)

    def test_first_losses_that_differ_by_more_than_rounding_fail(self):
        one = machine.Run(self.root, machine.Places(self.root))
        self.addCleanup(one.close)
        one.begin("record")
        phases.compare_losses(one, "a", {"result": OURS}, {"result": THEIRS})
        self.assertEqual(one.records[-1]["outcome"], "passed")
        phases.compare_losses(one, "a", {"result": OURS}, {"result": {**THEIRS, "losses": [12.1, 11.5]}})
        self.assertTrue(one.records[-1]["outcome"].startswith("failed"))
        phases.compare_losses(one, "a", {"result": {**OURS, "losses": [None, 11.5]}}, {"result": THEIRS})
        self.assertEqual(one.records[-1]["outcome"], "failed: a loss is not finite")

    def test_a_rate_by_other_kernels_than_the_librarys_fails(self):
        one = machine.Run(self.root, machine.Places(self.root))
        self.addCleanup(one.close)
        one.begin("contact")
        for change, outcome in (({}, "passed"), ({"own_attention_calls": 28}, "failed: 28 own_attention_calls"),
                                ({"widened_gemms": 3}, "failed: 3 widened_gemms"), ({"losses": [12.0, None]}, "failed: loss None")):
            phases.check_path(one, {"step": "ours a", "result": {**OURS, **change}})
            self.assertEqual(one.records[-1]["outcome"], outcome)
        self.assertEqual(len(one.failed()), 3)

    def test_graphs_change_no_bit_of_a_loss_and_are_there(self):
        for change, outcome in (({}, "passed"), ({"losses": [12.0, 11.500001]}, "failed: the losses differ"),
                                ({"graphs": 0, "no_graphs": ["forward: x"]}, "failed: 0 graphs with auto and 0 with off: ['forward: x']")):
            one = machine.Run(self.root, machine.Places(self.root))
            self.addCleanup(one.close)
            one.begin("contact")
            results = {"cuda_graphs=auto": {**GRAPHS, **change}, "cuda_graphs=off": OURS}
            train, phases.train = phases.train, lambda run, job, *overrides, results=results, **_: {"result": results[overrides[-1]]}
            try:
                phases.graphs(one)
            finally:
                phases.train = train
            self.assertEqual(one.records[-1]["outcome"], outcome)

    def test_a_line_of_nvidia_smi_that_is_cut_off_is_no_sample(self):
        watch = machine.Watch()
        for line in ("1755, 690.1, 80000, 60\n", "1755, [N/A], 80000, 60\n", "1755, 690.\n", "\n"):
            watch.add(line)
        self.assertEqual(watch.samples, [[1755, 690.1, 80000, 60]])

    def test_half_a_line_is_no_result(self):
        self.assertEqual(machine.json_lines('{"a": 1}\nnoise\n{"b": '), [{"a": 1}])


class Script(Folder):
    def program(self, name, text, shell="/bin/sh"):
        path = self.root / name
        path.write_text(f"#!{shell}\n" + text)
        path.chmod(0o755)
        return path

    def run_script(self, *args, seconds=120):
        env = {**os.environ, "PYTHON": str(self.root / "python"), "TMPDIR": str(self.root)}
        env.pop("OUT", None)
        done = subprocess.run([SCRIPT, "--out", self.root / "out", "--build", self.root, *args], env=env, capture_output=True, text=True, timeout=seconds)
        records = [json.loads(line) for line in (self.root / "out" / "results.jsonl").read_text().splitlines()]
        return done, records


class Programs(Script):
    """The whole script with programs that repeat real outputs."""

    TEST_CUDA = """case "$*" in
  --list-tags) echo '    2  [.print]'; echo '    2  [gemm]'; echo '    1  [norm]' ;;
  *--list-test-names-only*'[norm]~[gemm]~[.]') ;;
  *--list-test-names-only*'[gemm]~[.]') echo 'one'; echo 'two' ;;
  *--list-test-names-only*) echo 'three' ;;
  *) echo '0.001 s: a test'; echo 'All tests passed (9 assertions in 3 test cases)' ;;
esac
"""

    def setUp(self):
        super().setUp()
        self.program("trainerd", "exit 0\n")
        self.program("test_cuda", self.TEST_CUDA)
        self.program("operators_bench", lines_of([GEMM, NORM]))
        self.program("device_bench", lines_of(DEVICE))
        self.program("train_bench", f"case \"$*\" in *--describe*) echo '{{}}' ;; *--ledger*) {lines_of(LEDGER)} ;; *cuda_graphs=auto*) {lines_of([GRAPHS])} ;; *) {lines_of([OURS])} ;; esac\n")
        self.program("python", f"case \"$*\" in *pytorch_train*) {lines_of([THEIRS])} ;; esac\n")

    def test_contact_shows_the_device_a_tiny_job_the_ledger_and_every_tag(self):
        done, records = self.run_script("contact")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        steps = {r["step"]: r["outcome"] for r in records if "step" in r}
        wanted = ["device: libraries, copies, a product for ten seconds", "ours tiny device=cpu", "ours tiny device=cuda", "losses of tiny: CPU and CUDA",
                  "ours tiny device=cuda cuda_graphs=auto", "ours tiny device=cuda cuda_graphs=off", "tiny: CUDA graphs and call by call",
                  "ours a gemm_algorithms=first", "ours a gemm_algorithms=first: losses and kernels", "operator ledger of a", "test_cuda [gemm]: 2 tests"]
        self.assertEqual([step for step in steps if step in wanted], wanted)
        # Tests of several tags run only once, and tests without a tag run too.
        self.assertEqual([step for step in steps if step.startswith("test_cuda")][1:], ["test_cuda without a tag: 1 tests"])
        self.assertEqual(steps["20 losses, CUDA and CPU, fp32"], "passed")
        [graphs] = [r for r in records if r.get("step") == "tiny: CUDA graphs and call by call"]
        self.assertEqual((graphs["outcome"], graphs["graphs"]), ("passed", 7))
        self.assertAlmostEqual(graphs["faster"], 2.1 / 1.1)
        self.assertIn("## Operators of a step of a", done.stdout)
        self.assertRegex(done.stdout, r"commit: [0-9a-f]{12}|commit: unknown")
        self.assertIn("0.001 s: a test", (self.root / "out" / "log.txt").read_text())

    def test_tuning_tries_the_choices_of_a_job_beside_pytorch(self):
        done, records = self.run_script("tuning")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        steps = [r["step"] for r in records if "step" in r and "losses" not in r["step"]]
        self.assertEqual(steps, ["ours a", "ours a gemm_algorithms=first", "ours a --gemm-workspace 32 gemm_algorithms=first",
                                 "ours a --head-chunk 8192 gemm_algorithms=first", "ours a attention=fast", "PyTorch a default --deterministic", "ours a",
                                 "ours b", "rates of operators, a", "rates of operators, b"])
        # Runs with timed algorithms share their choices, those of other shapes do not.
        log = (self.root / "out" / "log.txt").read_text()
        files = re.findall(r"ours (\S+) .*--gemm-choices (\S+)", log)
        self.assertEqual([job for job, _ in files], ["a", "a", "a", "b"])
        self.assertEqual(len({file for _, file in files}), 2)
        self.assertIn("GEMMs by role", done.stdout)

    def test_the_record_compares_each_benchmark_and_its_last_steps_are_not_fatal(self):
        self.program("test_core", "case \"$*\" in *list*) echo 'layouts share' ;; *) echo 'All tests passed (5 assertions in 1 test case)' ;; esac\n")
        self.program("compute-sanitizer", "exit 9\n")
        os.environ["PATH"], before = f"{self.root}:{os.environ['PATH']}", os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", before)
        done, records = self.run_script("record")
        steps = {r["step"]: r["outcome"] for r in records if "step" in r}
        names = [r["step"] for r in records if "step" in r and "losses" not in r["step"]]
        # Ours, theirs, ours.
        self.assertEqual(names[:3], ["ours a", "PyTorch a default --deterministic", "ours a"])
        at = names.index("ours b")
        self.assertEqual(names[at:at + 5], ["ours b", "PyTorch b default --deterministic", "ours b", "ours c", "PyTorch c default --deterministic"])
        self.assertLess(names.index("quickstart on CUDA"), at)
        self.assertEqual(names[-3:], ["compute-sanitizer memcheck", "compute-sanitizer racecheck",
                                      "PyTorch a max-autotune-no-cudagraphs --deterministic"])
        self.assertEqual(steps["compute-sanitizer memcheck"], "failed: status 9")
        self.assertEqual(steps["100 losses, ours and PyTorch's"], "passed")
        self.assertEqual(steps["test_core: several ranks on one GPU"], "found 1 tests")
        self.assertEqual(steps["test_core [gpu]"], "passed")
        self.assertTrue(steps["test_cuda_comm: several ranks on one GPU"].startswith("skipped"))
        # The stand-in for trainerd writes no steps: the only failure.
        self.assertEqual([r["step"] for r in records if r.get("outcome", "").startswith("failed") and r.get("ours", True)],
                         ["quickstart on CUDA: what it learned"])
        self.assertEqual(done.returncode, 1)
        self.assertIn("| a, 1024 tokens | deterministic | bf16 |", done.stdout)

    def test_variants_run_when_they_are_asked_for(self):
        done, records = self.run_script("variants")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sum(r["step"].startswith("PyTorch") for r in records if "step" in r), 3)

    def test_a_pattern_chooses_steps(self):
        done, records = self.run_script("contact", "--only", "ledger")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([r["step"] for r in records if "seconds" in r and "step" in r], ["operator ledger of a"])

    def test_a_test_that_fails_is_the_scripts_failure_and_the_next_tag_runs(self):
        self.program("test_cuda", self.TEST_CUDA.replace("*) echo '0.001 s: a test'", "'[gemm]'*) echo 'test cases: 3 | 1 failed'; exit 1 ;;\n  *) echo '0.001 s: a test'"))
        done, records = self.run_script("contact")
        self.assertEqual(done.returncode, 1)
        steps = {r["step"]: r["outcome"] for r in records if r.get("step", "").startswith("test_cuda")}
        self.assertEqual(steps["test_cuda [gemm]: 2 tests"], "failed: status 1")
        self.assertEqual(sum(outcome == "passed" for outcome in steps.values()), len(steps) - 1)
        self.assertGreater(len(steps), 1)
        self.assertIn("failed: status 1", done.stdout)

    def test_kernels_of_our_own_in_a_benchmark_fail_the_script(self):
        self.program("train_bench", f"case \"$*\" in *--ledger*) {lines_of(LEDGER)} ;; *) {lines_of([{**OURS, 'own_attention_calls': 28}])} ;; esac\n")
        done, records = self.run_script("contact")
        self.assertEqual(done.returncode, 1)
        self.assertIn("failed: 28 own_attention_calls", [r.get("outcome") for r in records])

    def test_a_ledger_without_a_total_is_a_failure(self):
        self.program("train_bench", f"case \"$*\" in *--ledger*) {lines_of(LEDGER[:2])} ;; *) {lines_of([OURS])} ;; esac\n")
        self.assertEqual(self.run_script("contact")[0].returncode, 1)

    def test_a_library_that_the_loader_does_not_find_is_named(self):
        (self.root / "libtrainerd_cuda.so").touch()
        self.program("ldd", "printf '\\tlibcudnn.so.9 => not found\\n\\tlibcublasLt.so.13 => /opt/libcublasLt.so.13 (0x00007f)\\n'\n")
        os.environ["PATH"], before = f"{self.root}:{os.environ['PATH']}", os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", before)
        done, records = self.run_script("contact", "--only", "nothing|libraries of the plugin")
        found = [r for r in records if r.get("step") == "libraries that the loader finds"]
        self.assertEqual([r["outcome"] for r in found], ["failed: not found: libcudnn.so.9"])
        self.assertEqual(found[0]["paths"]["libcublasLt.so.13"], "/opt/libcublasLt.so.13")
        self.assertEqual(done.returncode, 1)

    def test_a_failing_peer_is_reported_and_fails_nothing(self):
        self.program("python", "case \"$*\" in *pytorch_train*) echo 'out of memory'; exit 1 ;; esac\n")
        done, records = self.run_script("tuning")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("failed: status 1", done.stdout)
        self.assertEqual({r["tail"] for r in records if r.get("ours") is False}, {"out of memory\n"})

    def test_a_peer_short_of_memory_gets_smaller_microbatches(self):
        self.program("python", "case \"$*\" in *pytorch_train*) echo 'CUDA out of memory. Tried to'; exit 1 ;; esac\n")
        _, records = self.run_script("record")
        steps = [r.get("step") for r in records]
        self.assertIn("PyTorch a default --deterministic batch.micro=16", steps)
        self.assertIn(f"PyTorch a {phases.AUTOTUNE} --deterministic batch.micro=16", steps)
        self.assertNotIn("ours a batch.micro=16", steps)
        self.assertNotIn("PyTorch c default --deterministic model.seq_len=4096", steps)

    def test_on_a_device_that_is_too_small_both_programs_get_the_size_that_fits(self):
        self.program("train_bench", f"""case "$*" in
  *--describe*) echo '{{}}' ;;
  */b.yaml*micro=4*|*/a.yaml*) {lines_of([OURS])} ;;
  */b.yaml*) echo 'train_bench: stage 0 does not fit: it lacks 32.3 GiB' >&2; exit 1 ;;
  */c.yaml*) echo 'train_bench: out of memory' >&2; exit 1 ;;
  *) {lines_of([OURS])} ;;
esac
""")
        _, records = self.run_script("record", "--only", "^(ours|PyTorch) [bc]")
        steps = {r["step"]: r["outcome"] for r in records if re.match(r"(ours|PyTorch) [bc](?!.*losses)", r.get("step", ""))}
        self.assertEqual(list(steps),
                         ["ours b", "ours b batch.micro=8", "ours b batch.micro=4", "PyTorch b default --deterministic batch.micro=4",
                          "ours c", "ours c model.seq_len=4096", "ours c model.seq_len=2048", "PyTorch c"])
        self.assertEqual(steps["PyTorch b default --deterministic batch.micro=4"], "passed")
        self.assertEqual(steps["PyTorch c"], "not run: there is no result of ours to compare with")

    def test_a_phase_that_breaks_loses_neither_the_table_nor_the_next_phase(self):
        self.program("train_bench", f"case \"$*\" in *--ledger*) {lines_of(LEDGER)} ;; *) {lines_of([{'losses': 1}])} ;; esac\n")
        done, records = self.run_script("contact", "variants")
        self.assertEqual(done.returncode, 1)
        steps = {r["step"]: r["outcome"] for r in records if "step" in r}
        self.assertRegex(steps["contact: the phase itself"], "^failed: TypeError: ")
        self.assertEqual(steps["ours a attention=fast"], "passed")
        self.assertIn("| ours a attention=fast | passed |", (self.root / "out" / "table.md").read_text())

    def test_a_gpu_that_the_tests_do_not_find_is_a_failure(self):
        self.program("test_cuda", "echo 'a GPU is here, but no test was run (no CUDA here: libnccl.so.2: cannot open shared object file)'; exit 1\n")
        self.program("nvidia-smi", "echo 'GPU 0: NVIDIA H100 (UUID: GPU-0)'\n")
        os.environ["PATH"], before = f"{self.root}:{os.environ['PATH']}", os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", before)
        done, records = self.run_script("contact")
        self.assertEqual(done.returncode, 2)
        self.assertIn("| test_cuda finds the GPU | failed: this machine has one, but a GPU is here, but no test was run (no CUDA here: libnccl.so.2", done.stdout)
        self.assertIn("trainerd --version", [r.get("step") for r in records])

    def test_a_program_that_the_loader_cannot_start_is_named(self):
        self.program("test_cuda", f"echo '{self.root}/test_cuda: /lib/libc.so.6: version `GLIBC_2.36'\\'' not found (required by libstdc++.so.6)'; exit 1\n")
        done = subprocess.run([SCRIPT, "--out", self.root / "out", "--build", self.root], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("version `GLIBC_2.36' not found", done.stderr)

    def test_a_test_program_that_ran_nothing_has_not_passed(self):
        self.program("test_cuda", self.TEST_CUDA.replace("All tests passed", "No test cases matched"))
        self.assertEqual(self.run_script("contact")[0].returncode, 1)

    def test_there_is_no_other_phase(self):
        done = subprocess.run([SCRIPT, "--build", self.root, "4"], capture_output=True, text=True, cwd=self.root)
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no phase 4", done.stderr)

    def test_a_program_that_is_not_there_is_named(self):
        (self.root / "device_bench").unlink()
        done = subprocess.run([SCRIPT, "--build", self.root], capture_output=True, text=True, cwd=self.root)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(str(self.root / "device_bench"), done.stderr)


@unittest.skipUnless(BUILD, "TRAINERD_BUILD names no folder of binaries")
@sliced(6)
class OnTheCpu(Script):
    """The real measuring programs in the CPU world."""

    def test_contact_with_the_real_programs_on_the_cpu(self):
        # The CPU replaces the GPU, the tiny job replaces A, and two tags of the CPU's operator tests replace test_cuda.
        real = pathlib.Path(BUILD)
        self.program("trainerd", f"exec {real}/trainerd \"$@\"\n")
        self.program("operators_bench", "exit 1\n")
        self.program("python", "exit 1\n")
        self.program("device_bench", f"exec {real}/device_bench --device cpu --seconds 0.2 --size 256\n")
        # A CPU has no graphs: the stand-in reports one with `auto`.
        self.program("train_bench", f"""set -o pipefail
graphs=0; case "$*" in *cuda_graphs=auto*) graphs=1 ;; esac
small=(); case "$1" in */cpu-*|*/cuda-*) small=(--set model.layers=2 --set model.hidden=64 --set model.ffn=176) ;; esac
{real}/train_bench "${{@/%\\/a.yaml//tiny.yaml}}" --set device=cpu "${{small[@]}}" | sed "s/\\"graphs\\":0,/\\"graphs\\":$graphs,/"
""", shell="/bin/bash")
        self.program("test_cuda", f"""case "$*" in
  --list-tags) {real}/test_kernels --list-tags | grep -E '\\[(flat|reduce)\\]' ;;
  *--list-test-names-only*' ~'*) ;;
  *) exec {real}/test_kernels "$@" ;;
esac
""")
        done, records = self.run_script("contact", seconds=280)
        failed = {r["step"]: r["outcome"] for r in records if r.get("outcome", "").startswith(("failed", "timed out")) and r.get("ours", True)}
        if not BF16:  # the row in bf16 is refused, as it should be
            self.assertRegex(failed.pop("ours a gemm_algorithms=first: losses and kernels"), r"^failed: \d+ widened_gemms$")
        self.assertEqual(failed, {}, done.stdout[-4000:])
        self.assertEqual(done.returncode, 0 if BF16 else 1)
        steps = {r["step"]: r for r in records if "step" in r}
        for name in ("trainerd --version", "ours tiny device=cuda", "losses of tiny: CPU and CUDA", "tiny: it learns on CUDA",
                     *(["ours a gemm_algorithms=first: losses and kernels"] if BF16 else []), "20 losses, CUDA and CPU, fp32", "20 losses, CUDA and CPU, bf16", "20 losses, CUDA and CPU, fp16"):
            self.assertEqual(steps[name]["outcome"], "passed", name)
        self.assertEqual(steps["losses of tiny: CPU and CUDA"]["largest"], 0)
        self.assertEqual(len(steps["ours a gemm_algorithms=first"]["result"]["losses"]), 3)
        tags = [name for name in steps if name.startswith("test_cuda [")]
        self.assertEqual([re.match(r"test_cuda (\[\w+\]): [1-9]", name)[1] for name in tags], ["[flat]", "[reduce]"])
        log = (self.root / "out" / "log.txt").read_text()
        self.assertRegex(log, r"(?m)^\d+\.\d+ s: sum_parts adds its parts")
        for heading in ("## Operators of a step of tiny", "- a product of 256 for 0 s", "- host link:"):
            self.assertIn(heading, done.stdout)

    def measured(self, *command):
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return machine.json_lines(done.stdout)

    def test_the_ledger_holds_every_operator_of_a_step(self):
        one = machine.Run(self.root, machine.Places(pathlib.Path(BUILD)))
        self.addCleanup(one.close)
        one.begin("contact")
        phases.ledger(one, "tiny")
        self.assertEqual(one.failed(), [])
        rows = [r for r in one.records if r.get("kind") == "ledger"]
        total = [r for r in one.records if r.get("kind") == "ledger total"][0]
        calls = {}
        for r in rows:
            calls[r["op"]] = calls.get(r["op"], 0) + r["calls"]
        # Two layers, four microbatches; the head is one more product of each kind; the MLP's gate and up are one fused product.
        self.assertEqual([calls[op] for op in ("attention_forward", "attention_backward", "embedding_forward")], [8, 8, 4])
        self.assertEqual(calls["linear_fprop"], 4 * (2 * 3 + 1))
        self.assertEqual(calls["linear_swiglu"], 8)
        # Computed from the job's sizes: six FLOPs per matmul parameter and token, and four per attention pair and channel, of which
        # the causal mask leaves half.
        hidden, ffn, vocab, length, kv, layers = 64, 176, 512, 32, 32, 2
        products = layers * (hidden * (hidden + 2 * kv) + hidden * hidden + 3 * hidden * ffn) + vocab * hidden
        tokens = 8 * length
        flops = sum(r["flops"] for r in rows if r["class"] == "gemm")
        self.assertAlmostEqual(flops / (6 * products * tokens), 1, delta=0.01)
        attention = sum(r["flops"] for r in rows if r["op"] == "attention_forward")
        self.assertAlmostEqual(attention / (layers * 8 * 4 * hidden * length * length / 2), 1, delta=0.01)
        self.assertAlmostEqual(sum(r["seconds"] for r in rows), total["operator_seconds"], delta=1e-9)
        self.assertLessEqual(total["operator_seconds"], total["step_seconds"])
        self.assertGreater(total["floor_seconds"], 0)
        self.assertGreater(total["flops_per_second"], 1e9)
        self.assertIn("## Operators of a step of tiny", table.markdown(one.records))

    def test_device_bench_measures_this_machine(self):
        found = self.measured(pathlib.Path(BUILD) / "device_bench", "--device", "cpu", "--seconds", "0.2", "--size", "256")
        self.assertEqual([r["kind"] for r in found], ["device", "device copy", "device copy", "host copy", "sustained gemm"])
        self.assertTrue(all(r["bytes_per_second"] > 1e8 for r in found if r["kind"] == "device copy"))
        self.assertGreater(found[-1]["median_flops_per_second"], 1e8)

    def test_wrong_options_are_refused(self):
        for command in (["device_bench", "--seconds", "0"], ["device_bench", "--device", "tpu"], ["train_bench", TINY, "--steps", "0"],
                        ["train_bench", TINY, "--gemm-workspace", "256"], ["train_bench", TINY, "--head-chunk", "-1"]):
            done = subprocess.run([str(pathlib.Path(BUILD) / command[0]), *map(str, command[1:])], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1)
            self.assertIn(command[0] + ": ", done.stderr)


@unittest.skipUnless(BUILD, "TRAINERD_BUILD names no folder of binaries")
class WithoutGpu(Folder):
    def test_nothing_is_run_and_nothing_passes(self):
        done = subprocess.run([SCRIPT, "--out", self.root / "out", "--build", BUILD], capture_output=True, text=True, timeout=120)
        if "no GPU" not in done.stdout:
            self.skipTest("this machine has a GPU")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no GPU: no test was run", done.stdout)
        records = [json.loads(line) for line in (self.root / "out" / "results.jsonl").read_text().splitlines()]
        self.assertEqual([r["outcome"] for r in records], ["no GPU"])
        self.assertIn("commit", records[0]["machine"])


if __name__ == "__main__":
    unittest.main()
