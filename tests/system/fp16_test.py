"""Training in fp16: overflows are reported and cost a step's update, and deaths, resumes and other layouts keep the loss scale."""

import unittest

from restart_test import CONSTANT, KILLED, RestartTest
from support import *

# The scale begins so high that the first steps overflow, and rises again every eight updates.
FP16 = ["--set", "precision={compute: fp16, initial_loss_scale: 1073741824, loss_scale_window: 8}"]
FOUR = ["--set", "parallel.tp=2", "--set", "parallel.dp=2", "--set", "batch.micro=1"]


class Fp16(RestartTest):
    def scales(self, name):
        return [s["loss_scale"] for s in self.steps(name)]

    def test_overflows_are_events_and_steps_that_updated_nothing(self):
        output = self.run_job(self.job("a"), *FP16, "--set", "steps=12")
        steps = self.steps("a")
        overflows = [s for s in steps if s.get("overflow")]
        self.assertGreater(len(overflows), 1)
        self.assertLess(len(overflows), 12)
        for at, step in enumerate(overflows):
            self.assertEqual((step["step"], step["loss_scale"], step["skipped"], step["grad_norm"]), (at + 1, 2.0 ** (30 - at), True, None))
        events = [e for e in self.events("a") if e["event"] == "overflow"]
        self.assertEqual([e["message"] for e in events],
                         [f"step {at + 1}: gradients overflowed with the loss scale {2 ** (30 - at):.6g}; nothing was updated, and the scale is "
                          f"{2 ** (29 - at):.6g} from here on" for at in range(len(overflows))])
        self.assertIn(events[0]["message"], output)
        for step in steps[len(overflows):]:
            self.assertGreater(step["grad_norm"], 0)
        self.assertLess(steps[-1]["loss"], steps[0]["loss"])

    def test_gradients_that_overflow_at_the_least_scale_end_the_run(self):
        output = self.run_job(self.job("a"), "--set", "steps=12", "--set",
                              "precision={compute: fp16, initial_loss_scale: 4294967296, min_loss_scale: 2147483648}", status=6)
        self.assertRegex(output, r"step 2: the gradient of \S+ is not finite; the step updated nothing, and the loss scale is already "
                                 r"precision.min_loss_scale, 2\S+")
        self.assertEqual([s.get("overflow") for s in self.steps("a")], [True])

    def test_a_death_changes_no_bit(self):
        layout = [*FOUR, *FP16]
        process = self.start(self.job("killed", schedule=CONSTANT), *KILLED, *layout)
        self.wait_for_step(process, 17, "killed")
        self.kill_worker(process, 1)
        self.finish_one(process)
        self.assertEqual(len(self.restarts("killed")), 1)
        self.assert_as_whole("killed", *layout)
        self.assertEqual(self.scales("killed"), self.scales("whole"))
        self.assertGreater(max(b / a for a, b in zip(self.scales("whole"), self.scales("whole")[1:])), 1)  # it rose

    def test_other_layouts_and_precisions_go_on(self):
        whole = self.run_job(self.job("whole", schedule=CONSTANT), *FP16, "--set", "steps=24")
        self.assertIn("overflowed", whole)
        self.run_job(self.job("parts", schedule=CONSTANT), *FP16, "--set", "steps=8")
        output = self.run_job(self.job("parts", schedule=CONSTANT), *FP16, *FOUR, "--set", "steps=16")
        self.assertIn("resuming from", output)
        self.run_job(self.job("parts", schedule=CONSTANT), *FP16, "--set", "steps=24")
        self.assertEqual(self.scales("parts"), self.scales("whole"))
        for a, b in zip(self.steps("parts"), self.steps("whole")):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=2e-2)
        # A run in bf16 leaves the state behind, and one in fp16 begins it.
        output = self.run_job(self.job("parts", schedule=CONSTANT), "--set", "precision=bf16", "--set", "steps=28")
        self.assertIn("precision", output)
        self.run_job(self.job("parts", schedule=CONSTANT), "--set", "precision=fp16", "--set", "steps=32")
        steps = self.steps("parts")
        self.assertEqual({s["step"] for s in steps if "loss_scale" not in s}, set(range(25, 29)))
        self.assertEqual([s["loss_scale"] for s in steps[28:]], [65536.0] * 4)
        self.assertLess(steps[-1]["loss"], steps[0]["loss"])

    def test_text_is_made_by_a_model_in_fp16(self):
        self.run_job(self.job("a"), *FP16, "--set", "steps=12")
        made = {}
        for precision in ("fp32", "fp16"):
            command = [BINARY, "generate", self.root / "a", "--prompt", "x", "--max-tokens", "12", "--ignore-eos", "--precision", precision, "--json"]
            printed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(printed.returncode, 0, printed.stderr)
            made[precision] = json.loads(printed.stdout)["ids"]
        self.assertEqual(len(made["fp16"]), 12)
        self.assertEqual(made["fp16"][:2], made["fp32"][:2])


if __name__ == "__main__":
    unittest.main()
