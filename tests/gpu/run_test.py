"""run.py and its tables, by stand-ins for the programs it runs, and by the real ones where there is no GPU."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import run
import table

BUILD = os.environ.get("TRAINERD_BUILD")
SCRIPT = pathlib.Path(run.__file__).parent / "run.sh"

OURS = {"impl": "trainerd", "job": "a", "master": "bf16", "attention": "deterministic", "attention_library": "cuDNN 9.19.0", "micro": 32,
        "microbatches": 4, "seq_len": 1024, "step_seconds": [2.1, 2.0, 2.2], "optimizer_seconds": [0.1, 0.1, 0.1], "losses": [12.0, 11.5],
        "planned_bytes": 2**36, "peak_flops": 989e12, "flops_per_token": 1e10}
THEIRS = {"impl": "pytorch default", "job": "a", "master": "bf16", "attention": "deterministic", "attention_library": "cudnn", "micro": 32,
          "microbatches": 4, "seq_len": 1024, "step_seconds": [2.5], "optimizer_seconds": [0.1], "losses": [12.001, 11.51], "peak_bytes": 2**36}
GEMM = {"kind": "gemm", "job": "a", "op": "qkv fprop", "shape": "32768 x 2048 x 1536", "flops": 2e11, "bytes": 1e8, "seconds": 2.5e-4,
        "least_seconds": 2.4e-4, "floor_seconds": 2e-4}
TIMED = {**GEMM, "kind": "timed gemm", "seconds": 2e-4}
NORM = {"kind": "memory", "job": "a", "op": "add_norm_forward", "shape": "32768 x 1536", "flops": 1e9, "bytes": 4e8, "seconds": 1.25e-4,
        "least_seconds": 1e-4, "floor_seconds": 1e-4}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)


class Limits(Folder):
    def test_what_runs_too_long_is_ended_with_all_it_started(self):
        begin = time.monotonic()
        output, outcome = run.run_limited(["sh", "-c", "sleep 60 & echo $!; sleep 60"], 0.5, dict(os.environ))
        self.assertLess(time.monotonic() - begin, 50)
        self.assertEqual(outcome, "timed out after 0 s")
        child = int(output)
        for _ in range(100):
            if not pathlib.Path(f"/proc/{child}").exists() or "Z" in pathlib.Path(f"/proc/{child}/stat").read_text().split()[2]:
                return
            time.sleep(0.05)
        self.fail("a process that the step had started still runs")

    def test_outcomes(self):
        self.assertEqual(run.run_limited(["sh", "-c", "echo out; echo err >&2"], 30, dict(os.environ)), ("out\nerr\n", "passed"))
        self.assertEqual(run.run_limited(["sh", "-c", "exit 3"], 30, dict(os.environ))[1], "failed: status 3")
        self.assertEqual(run.run_limited([self.root / "nothing"], 30, dict(os.environ))[1], "failed: No such file or directory")

    def test_a_phase_that_is_over_starts_nothing(self):
        one = run.Run(self.root, run.Places(self.root))
        self.addCleanup(one.close)
        one.begun = time.monotonic()
        one.begin("1", run.RESERVE_SECONDS + 0.5)
        marker = self.root / "marker"
        record, _ = one.step("late", ["touch", marker], 60)
        self.assertEqual(record["outcome"], "not run: the phase's time was over")
        self.assertFalse(marker.exists())
        self.assertEqual(one.failed(), [])
        one.begin("1", run.RESERVE_SECONDS + 2)
        record, _ = one.step("cut", ["sleep", "60"], 60)
        self.assertTrue(record["outcome"].startswith("timed out"))
        self.assertEqual(len(one.failed()), 1)
        # On the disk already.
        self.assertEqual([json.loads(x)["step"] for x in (self.root / "results.jsonl").read_text().splitlines()], ["late", "cut"])


class Tables(unittest.TestCase):
    def test_a_step_of_524288_tokens_is_sixteen_microbatches_and_one_update(self):
        rate, microbatch, update = table.equivalent(OURS)
        self.assertAlmostEqual(microbatch, 0.5)
        self.assertAlmostEqual(update, 0.1)
        self.assertAlmostEqual(rate, 524288 / (16 * 0.5 + 0.1))

    def test_rates_ratios_and_floors(self):
        records = [{"phase": "2a", "step": "ours a", "outcome": "passed", "result": OURS},
                   {"phase": "2a", "step": "PyTorch a", "outcome": "passed", "result": THEIRS,
                    "device": {"sm_mhz": {"median": 1755, "most": 1980}, "watts": {"median": 690, "most": 700},
                               "memory_mib": {"median": 1, "most": 102400}, "celsius": {"median": 60, "most": 66}}},
                   {"phase": "1", "measure": "rates", **GEMM}, {"phase": "1", "measure": "rates", **TIMED}, {"phase": "1", "measure": "rates", **NORM}]
        text = table.markdown(records)
        ours, theirs = 524288 / 8.1, 524288 / (16 * 0.6 + 0.1)
        self.assertIn(f"| {ours:,.0f} | {100 * ours * 1e10 / 989e12:.1f}% | 64.0 |", text)
        self.assertIn(f"| {theirs:,.0f} | {100 * theirs * 1e10 / 989e12:.1f}% | 64.0 | 1755 | 690 | 100.0 |", text)
        self.assertIn(f"| a | deterministic | bf16 | {ours:,.0f} | {theirs:,.0f} (pytorch default) | {ours / theirs:.3f} |", text)
        self.assertIn("| a: qkv fprop | 32768 x 2048 x 1536 | 250 | 0.200 | 800 | 1000 | 80% |", text)
        self.assertIn("| a: fprop | 800 | 1000 |", text)
        self.assertIn("| a: add_norm_forward | 32768 x 1536 | 125 | 400.0 | 100 | 3200 | 80% |", text)

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
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        results = pathlib.Path(folder.name) / "results.jsonl"
        results.write_text("".join(json.dumps(r) + "\n" for r in rows))
        self.assertEqual(subprocess.run([sys.executable, table.__file__, results], capture_output=True).returncode, 1)

    def test_nothing_measured_is_a_table_of_steps_alone(self):
        text = table.markdown([{"phase": "1", "step": "x", "outcome": "failed: status 1\nmore", "seconds": 2.0}])
        self.assertIn("| x | failed: status 1 | 2.0 |", text)
        self.assertNotIn("tokens", text)


class Judgements(Folder):
    def test_curves_are_held_to_what_rounding_does_on_the_cpu(self):
        cpu = [6.0, 5.0]
        verdicts = run.judge_curves(cpu, [[6.0, 5.0001], [6.0, 5.0005]], [6.0, 5.01], [6.0, 5.0004], [6.0, 5.03])
        self.assertEqual([v[0] for v in verdicts], ["fp32", "bf16"])
        self.assertAlmostEqual(verdicts[0][1], 0.0004 / 5)
        self.assertAlmostEqual(verdicts[0][2], 4 * 0.0005 / 5)
        self.assertAlmostEqual(verdicts[1][1], 0.02 / 5.01)
        self.assertAlmostEqual(verdicts[1][2], 2 * 0.01 / 5)

    def test_first_losses_that_differ_by_more_than_rounding_fail(self):
        one = run.Run(self.root, run.Places(self.root))
        self.addCleanup(one.close)
        one.begin("2a")
        run.compare_losses(one, "a", {"result": OURS}, {"result": THEIRS})
        self.assertEqual(one.records[-1]["outcome"], "passed")
        run.compare_losses(one, "a", {"result": OURS}, {"result": {**THEIRS, "losses": [12.1, 11.5]}})
        self.assertTrue(one.records[-1]["outcome"].startswith("failed"))


class Programs(Folder):
    """The whole script with programs that say what real ones have said."""

    def program(self, name, text):
        path = self.root / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def setUp(self):
        super().setUp()
        self.program("trainerd", "exit 0\n")
        self.program("test_cuda", "echo 'All tests passed (9 assertions in 3 test cases)'\n")
        self.program("operators_bench", f"echo '{json.dumps(GEMM)}'\necho '{json.dumps(NORM)}'\n")
        self.program("train_bench", f"case \"$*\" in *--describe*) echo '{{}}' ;; *) echo '{json.dumps(OURS)}' ;; esac\n")
        self.python = self.program("python", f"case \"$*\" in *pytorch_train*) echo '{json.dumps(THEIRS)}' ;; esac\n")

    def run_script(self, *args):
        env = {**os.environ, "PYTHON": str(self.python)}
        env.pop("OUT", None)
        done = subprocess.run([SCRIPT, "--out", self.root / "out", "--build", self.root, *args], env=env, capture_output=True, text=True, timeout=120)
        records = [json.loads(line) for line in (self.root / "out" / "results.jsonl").read_text().splitlines()]
        return done, records

    def test_phases_one_and_two_leave_their_records_and_a_table(self):
        done, records = self.run_script("1", "2a")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        steps = [r["step"] for r in records if "step" in r]
        self.assertEqual(steps[0], "operators against the CPU's values")
        # Ours, theirs, ours.
        self.assertEqual(steps[4:8], ["ours a", "PyTorch a default --deterministic", "ours a", "losses of a: ours and PyTorch's"])
        self.assertEqual(sum("kind" in r for r in records), 6)
        self.assertIn("GEMMs by role", (self.root / "out" / "table.md").read_text())
        self.assertIn("| a | deterministic | bf16 |", done.stdout)

    def test_a_test_that_fails_is_the_scripts_failure(self):
        self.program("test_cuda", "case \"$*\" in *list*) echo one ;; *) echo 'test cases: 3 | 1 failed'; exit 1 ;; esac\n")
        done, records = self.run_script("1")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([r["outcome"] for r in records if r.get("step", "").startswith("operators")], ["failed: status 1"])
        self.assertIn("failed: status 1", done.stdout)

    def test_a_peer_that_fails_is_told_and_fails_nothing(self):
        self.program("python", "case \"$*\" in *pytorch_train*) echo 'out of memory'; exit 1 ;; esac\n")
        done, records = self.run_script("2a")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("failed: status 1", done.stdout)
        self.assertEqual({r["tail"] for r in records if r.get("ours") is False}, {"out of memory\n"})

    def test_a_peer_short_of_memory_gets_smaller_microbatches(self):
        self.program("python", "case \"$*\" in *pytorch_train*) echo 'CUDA out of memory. Tried to'; exit 1 ;; esac\n")
        _, records = self.run_script("2a")
        self.assertIn("PyTorch a default --deterministic batch.micro=16", [r.get("step") for r in records])

    def test_a_test_program_that_ran_nothing_has_not_passed(self):
        self.program("test_cuda", "echo 'No test cases matched'\n")
        self.assertEqual(self.run_script("1")[0].returncode, 1)

    def test_phase_three_judges_curves_and_finds_the_tests_of_several_ranks(self):
        self.program("test_core", "case \"$*\" in *list*) echo 'layouts share' ;; *) echo 'All tests passed (5 assertions in 1 test case)' ;; esac\n")
        done, records = self.run_script("3")
        steps = {r["step"]: r["outcome"] for r in records if "step" in r}
        self.assertEqual(steps["20 losses, CUDA and CPU, fp32"], "passed")
        self.assertEqual(steps["test_core: several ranks on one GPU"], "found 1 tests")
        self.assertEqual(steps["test_core [gpu]"], "passed")
        self.assertTrue(steps["test_cuda_comm: several ranks on one GPU"].startswith("skipped"))
        # The stand-in for trainerd leaves no steps behind.
        self.assertTrue(steps["quickstart on CUDA: what it learned"].startswith("failed"))
        self.assertEqual(done.returncode, 1)

    def test_there_is_no_other_phase(self):
        done = subprocess.run([SCRIPT, "--build", self.root, "4"], capture_output=True, text=True, cwd=self.root)
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no phase 4", done.stderr)


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


if __name__ == "__main__":
    unittest.main()
