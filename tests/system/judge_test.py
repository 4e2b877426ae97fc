"""Steps are judged before their update: verification computes them again, and spikes follow the job's policy."""

import errno
import unittest

from faults_test import DP2, FaultsTest, faults
from nodes_test import free_port
from partner_test import TWO
from restart_test import KILLED, STEPS
from support import *

ZERO1 = ["--set", "parallel.dp=2", "--set", "parallel.zero=1", "--set", "precision=fp32"]
TENSOR = "layers.1.down.weight"


def flip(step, **more):
    """A flip of the highest bit of the exponent: a small gradient becomes one of 1e30 or more."""
    return {"kind": "flip_gradient", "step": step, "rank": 1, "tensor": TENSOR, "bit": 30, **more}


def spikes(*policy, **more):
    return ["--set", "supervise.spikes=" + json.dumps({"policy": policy, "score": 50, **more})]


class JudgeTest(FaultsTest):
    def told(self, name, kind):
        return [e for e in self.events(name) if e["event"] == kind]


@sliced(6)
class Verify(JudgeTest):
    every = ["--set", "supervise.verify.every=4"]

    def test_a_flipped_gradient_is_named_before_the_update_and_changes_nothing(self):
        for name, layout in (("zero1", ZERO1), ("zero0", DP2))[:2 if FULL else 1]:  # step_judge_test.cpp has all layouts
            output = self.broken(name, *layout, *self.every, *faults({"kind": "flip_gradient", "step": 12, "rank": 1, "tensor": TENSOR}))
            message = "silent corruption in step 12: rank 1 computed other results the first time than the second; the third time agrees with one of them, and the step goes on with that"
            self.assertIn(message, output)
            [event] = self.told(name, "corruption")
            self.assertEqual((event["message"], event["details"]), (message, [f"rank 1: {TENSOR}"]))
            self.assertEqual(len(self.injected(name)), 1)
            shutil.rmtree(self.root / "whole", ignore_errors=True)
            self.assertEqual(self.losses(name), self.whole(*layout))

    def test_a_flip_in_a_run_of_two_nodes_is_named_by_node_0_and_leaves_the_run_as_undisturbed(self):
        name, port = "nodes", free_port()
        arguments = [*KILLED, *TWO, *self.every, *faults({"kind": "flip_gradient", "step": 12, "rank": 3})]
        outputs = self.finish([self.start_node(self.job(name, schedule=CONSTANT), node, port, *arguments) for node in (0, 1)])
        self.assertRegex(outputs[0], r"silent corruption in step 12: ranks? [\d, ]*3 computed other results the first time than the second")
        self.assert_as_whole(name, *TWO)

    def test_three_results_that_all_differ_end_the_run(self):
        output = self.broken("three", *ZERO1, *self.every, *faults({"kind": "flip_gradient", "step": 12, "rank": 1, "tensor": TENSOR, "times": 3}), status=8)
        self.assertIn("silent corruption in step 12: rank 1 computed three times, and no two results are alike", output)
        self.assertIn(f"rank 1: {TENSOR}", output)
        self.assertEqual(self.last_step("three"), 11)

    def test_a_rank_that_differs_a_second_time_ends_the_run(self):
        output = self.broken("second", *ZERO1, *self.every, *faults(*({"kind": "flip_gradient", "step": step, "rank": 1} for step in (12, 20))), status=8)
        self.assertIn("silent corruption in step 20: rank 1 computed other results", output)
        self.assertIn("; rank 1 differed in step 12 too, so the run ends", output)


@sliced(6)
class Spikes(JudgeTest):
    def test_a_spike_of_the_hardware_is_gone_when_the_step_is_computed_again(self):
        output = self.broken("retry", *ZERO1, *spikes("retry"), *faults(flip(28)))
        self.assertRegex(output, r"spike in step 28: the gradient norm is \S+, \S+ robust standard deviations above the median \S+ of the latest 27 steps; it is computed again \(retry 1 of 3\)")
        [event] = self.told("retry", "corruption")
        self.assertEqual(event["message"], "silent corruption in step 28: rank 1 computed other results when the step was computed again after a spike: "
                                           "its hardware is the cause, not the data")
        self.assertEqual(event["details"], [f"rank 1: {TENSOR}"])
        self.assert_as_whole("retry", *ZERO1)

    def test_a_skipped_step_is_marked_and_the_run_goes_on(self):
        self.broken("skip", *ZERO1, *spikes("skip"), *faults(flip(28)))
        self.assertRegex(self.told("skip", "spike")[0]["message"], r"^spike in step 28: .*; nothing is updated \(skip 1 of 5\)$")
        self.assertEqual([s["step"] for s in self.steps("skip") if s.get("skipped")], [28])
        self.assert_samples_once("skip")
        whole = self.whole(*ZERO1)
        self.assertEqual(self.losses("skip")[:28], whole[:28])
        self.assertNotEqual(self.losses("skip")[28:], whole[28:])
        self.assertEqual(len(self.losses("skip")), STEPS)

    def test_without_a_policy_a_spike_is_an_event_and_nothing_else(self):
        self.broken("told", *ZERO1, *spikes(), *faults(flip(28)))
        self.assertRegex(self.told("told", "spike")[0]["message"],
                         r"^spike in step 28: the gradient norm is \S+, \S+ robust standard deviations above the median \S+ of the latest 27 steps; "
                         r"supervise\.spikes has no policy$")
        self.assertEqual([s["step"] for s in self.steps("told") if s.get("skipped")], [])
        self.assertEqual(self.losses("told")[:28], self.whole(*ZERO1)[:28])
        self.assertEqual(len(self.losses("told")), STEPS)

    def test_a_rollback_goes_back_to_a_checkpoint_and_does_the_steps_again(self):
        # A durable tier that fails at that moment does not matter, since the directory has the checkpoint.
        tier = ["--set", f"checkpoint={{every: 5, durable: {{to: {self.root / 'tier'}, every: 5}}}}"]
        output = self.broken("back", *ZERO1, *spikes("rollback"), *tier, *faults({"kind": "fail_store", "step": 27, "seconds": 1}, flip(28)))
        self.assertRegex(output, r"the durable tier cannot be looked at: .*Input/output error.*\(injected\)")
        self.assertRegex(output, r"spike in step 28: .*; the run goes back \(rollback 1 of 2\)")
        self.assertIn("the run goes back to step 25; steps 26 to 28 are done again", output)
        self.assertEqual(len([e for e in self.events("back") if e["event"] == "resume"]), 1)
        self.assert_as_whole("back", *ZERO1)

    def test_a_rollback_to_a_good_checkpoint_withdraws_those_after_it_and_ends_the_run_where_it_cannot(self):
        arguments = [*ZERO1, *spikes("rollback", data="skip"), "--set", "checkpoint={async: false, every: 5, good_after: 3}", *faults(flip(28))]
        output = self.broken("good", *arguments)
        self.assertRegex(output, r"checkpoint .*/step-00000025 does not count any more: the run goes back to step 20")
        self.assertIn("the run goes back to step 20; the samples of steps 21 to 28 are passed over", output)
        rules, environment = self.failing_disk()
        rules.write_text(f"remove {errno.EROFS} step-00000025/COMPLETE\nwrite {errno.ENOSPC} passed-over.json\n")
        output = self.broken("kept", *arguments, status=5, env=environment)
        self.assertRegex(output, r"the samples that the run passes over could not be written down; a later start of the job reads them again: .*No space left")
        self.assertRegex(output, r"checkpoints after step 20, to which the run goes back, could not be withdrawn: .*step-00000025/COMPLETE.*Read-only file system")
        self.assertRegex(output, r"the run goes back to step 20, and checkpoint .*/step-00000025 of a later step still counts: it could not be withdrawn; remove it")

    @unittest.skipUnless(FULL, "a node lost in the moment of a rollback")
    def test_a_node_that_is_lost_while_the_run_goes_back_is_done_without(self):
        # The checkpoint of step 25 is in progress, and the rollback waits for it.
        name, port = "lost", free_port()
        hold, environment = self.slow_disk()
        hold.write_text("step-00000025")
        arguments = [*KILLED, *ZERO1, *spikes("rollback"), "--set", "cluster.failures.elastic=true", *faults(flip(28))]
        agents = [self.start_node(self.job(name, schedule=CONSTANT), node, port, *arguments, env=environment) for node in (0, 1)]
        self.read_until(agents[0], r"the run goes back \(rollback 1 of 2\)")
        agents[1].kill()
        self.read_until(agents[0], r"node 1 .*was lost after step")
        hold.unlink()
        output = self.finish_one(agents[0])
        self.assertRegex(output, r"node 1 \(\S+\) was lost meanwhile; the run goes on with 1 node")
        self.assertEqual(self.last_step(name), STEPS)
        self.assert_samples_once(name)
        agents[1].communicate(timeout=PATIENCE)

    @unittest.skipUnless(FULL, "a minute: how long snapshots have to reach the disk")
    def test_a_rollback_that_waits_in_vain_for_the_disk_ends_the_run(self):
        hold, environment = self.slow_disk()
        hold.write_text("step-00000025")
        process = self.start(self.job("held", schedule=CONSTANT), *KILLED, *ZERO1, *spikes("rollback"), "--set", "checkpoint={every: 5, give_up: 1s}",
                             *faults(flip(28)), env=environment)
        self.read_until(process, "snapshots that are under way do not reach the disk")
        hold.unlink()
        self.assertIn("spike in step 28", self.finish_one(process, status=6))

    def test_without_a_checkpoint_a_rollback_goes_back_to_the_start(self):
        output = self.broken("start", *ZERO1, *spikes("rollback"), "--set", "checkpoint.every=0", *faults(flip(20)))
        self.assertIn("the run goes back to its start; steps 1 to 20 are done again", output)
        self.assertEqual(self.losses("start"), self.whole(*ZERO1))

    def test_a_rollback_of_two_nodes_passes_the_samples_over(self):
        name, port = "over", free_port()
        arguments = [*KILLED, *ZERO1, *spikes("rollback", data="skip"), *faults(flip(28))]
        outputs = self.finish([self.start_node(self.job(name, schedule=CONSTANT), node, port, *arguments) for node in (0, 1)])
        lines = [json.loads(line) for line in (self.root / name / "samples.jsonl").read_text().splitlines()]
        count = lines[0]["count"]
        self.assertIn(f"the run goes back to step 25; the samples of steps 26 to 28 are passed over, and step 26 begins with sample {28 * count}", outputs[0])
        self.assertEqual([line["step"] for line in lines], list(range(1, STEPS + 1)))
        self.assertEqual([line["first"] for line in lines], [count * (n if n < 25 else n + 3) for n in range(STEPS)])

    def test_samples_that_were_passed_over_stay_so_when_the_job_is_started_again_before_its_next_checkpoint(self):
        name = "started"
        output = self.broken(name, *ZERO1, *spikes("rollback", data="skip", rollbacks=1), *faults(flip(28), flip(29)), status=6)
        self.assertIn("supervise.spikes has no action left: rollback: 1 of 1 used", output)
        self.assertEqual(json.loads((self.root / name / "passed-over.json").read_text())["step"], 25)
        self.assertNotIn("was never finished", output)
        stop, resume = [e for e in self.events(name) if e["event"] in ("stop", "resume")]
        self.assertEqual((stop["event"], stop["message"], resume["event"]), ("stop", "stopped after step 27 to go back to step 25", "resume"))
        self.run_job(self.job(name, schedule=CONSTANT), *KILLED, *ZERO1)
        lines = [json.loads(line) for line in (self.root / name / "samples.jsonl").read_text().splitlines()]
        count = lines[0]["count"]
        self.assertEqual([line["first"] for line in lines], [count * (n if n < 25 else n + 3) for n in range(STEPS)])

    def test_a_policy_that_is_used_up_ends_the_run_with_its_evidence(self):
        output = self.broken("end", *ZERO1, *spikes("retry", "skip", skips=1, retries=1), *faults(flip(28, times=9, element=1), flip(30, times=9, element=1)), status=6)
        self.assertRegex(output, r"spike in step 28, computed again with the same result: .*; nothing is updated \(skip 1 of 1\)")
        self.assertRegex(output, r"step 30: the gradient norm is .*; the step updated nothing, and supervise.spikes has no action left: retry: 1 of 1 used; skip: 1 of 1 used")
        self.assertRegex(output, r"; the last good checkpoint is \S+/step-00000025\b")
        self.assertEqual(self.last_step("end"), 29)

    def test_without_a_score_only_what_is_not_finite_is_a_spike(self):
        self.broken("finite", *ZERO1, *spikes("skip", score=0), *faults(flip(28)))
        self.assertEqual(self.told("finite", "spike"), [])
        self.assertEqual([s["step"] for s in self.steps("finite") if s["grad_norm"] > 1e9], [28])


if __name__ == "__main__":
    unittest.main(verbosity=2)
