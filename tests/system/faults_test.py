"""Runs that break themselves as their jobs say: each kind does what it says, is recorded, and happens once."""

import re
import statistics
import unittest

from partner_test import TWO
from restart_test import KILLED, RestartTest, STEPS
from nodes_test import free_port
from support import *

DP2 = ["--set", "parallel.dp=2", "--set", "parallel.zero=0", "--set", "precision=fp32"]


def faults(*entries, **more):
    """The argument of a job with these faults."""
    return ["--set", "faults=" + json.dumps({"allow": True, "inject": entries, **more})]


class FaultsTest(RestartTest):
    def injected(self, name):
        return [e["message"] for e in self.events(name) if e["event"] == "injected"]

    def done(self, name):
        return (self.root / name / "faults-done").read_text().splitlines()

    def broken(self, name, *arguments, status=0, **kwargs):
        return self.run_job(self.job(name, schedule=CONSTANT), *KILLED, *arguments, status=status, **kwargs)


class Faults(FaultsTest):
    def test_without_leave_a_job_with_faults_is_refused(self):
        output = self.broken("refused", "--set", "faults.inject=[{kind: kill, step: 3}]", status=2)
        self.assertIn("faults.allow: is false, and faults are given: set it to true to let the run break itself", output)
        output = self.broken("absent", *faults({"kind": "flip_parameter", "step": 3, "tensor": "nothing"}), status=2)
        self.assertIn("rank 0 updates nothing of a tensor 'nothing'", output)

    def test_a_killed_worker_is_killed_once_and_the_run_is_as_undisturbed(self):
        output = self.broken("killed", *TWO, *faults({"kind": "kill", "step": 12, "rank": 2}, {"kind": "kill", "step": 12, "rank": 3},
                                                     {"kind": "kill", "step": 23, "rank": 0}))
        self.assertRegex(output, r"restarted: rank [23] \(pid \d+\) ended by signal 9 .* after step 11")
        self.assertRegex(output, r"restarted: rank 0 \(pid \d+\) ended by signal 9 .* after step 22")
        self.assert_as_whole("killed", *TWO)
        # The two of one step happen at once: what the agent heard last of a rank that it ended counts too.
        self.assertEqual(len(self.injected("killed")), len(set(self.injected("killed"))))
        self.assertIn("injected in step 23: rank 0 is killed", self.injected("killed"))
        self.assertEqual(sorted(self.done("killed")), ["kill step 12 rank 2", "kill step 12 rank 3", "kill step 23 rank 0"])
        self.assertIn("injected in step 23: rank 0 is killed", (self.root / "killed" / "report.html").read_text())

    def test_a_crash_that_comes_again_at_the_same_place_ends_the_run(self):
        crash, elsewhere = {"kind": "crash", "step": 12, "rank": 1}, {"kind": "crash", "step": 17, "rank": 1}
        output = self.broken("crash", *TWO, *faults(crash, crash, elsewhere), "--set", "restarts=100", status=8)
        self.assertRegex(output, r"rank 1 by signal 11 \(Segmentation fault\) in step 12 is what ended the attempt before too, so the workers do not start again")
        # At another step it is another crash.
        self.broken("elsewhere", *TWO, *faults(crash, elsewhere), "--set", "restarts=100")
        self.assert_as_whole("elsewhere", *TWO)

    def test_a_killed_agent_does_not_kill_itself_again_after_a_resume(self):
        kill = faults({"kind": "kill_agent", "step": 13})
        self.broken("agent", *kill, status=-9)
        self.assertEqual(self.done("agent"), ["kill_agent step 13 rank 0"])
        self.broken("agent", *kill)
        self.assert_as_whole("agent")

    def test_an_agent_of_two_nodes_is_killed_and_comes_back(self):
        name, port = "node", free_port()
        arguments = [*KILLED, *TWO, "--set", "checkpoint.memory=2", "--set", "checkpoint.partner=true",
                     *faults({"kind": "kill_agent", "step": 13, "rank": 3})]

        def begin(node):
            return self.start_node(self.job(name, schedule=CONSTANT), node, port, *arguments)

        agents = [begin(0), begin(1)]
        agents[1].communicate(timeout=PATIENCE)
        self.assertEqual(agents[1].returncode, -9)
        agents[1] = begin(1)
        outputs = self.finish(agents)
        self.assertIn("injected in step 13: the agent of rank 3 is killed", outputs[0])
        self.assertRegex(outputs[0], r"restarted: .*node 1 .*was lost")
        self.assert_as_whole(name, *TWO)

    def test_a_stopped_and_a_hanging_rank_are_told_by_what_each_did_last(self):
        for kind, state in (("stop", "is stopped"), ("hang", "computes for ever")):
            output = self.broken(kind, "--set", "parallel.dp=2", "--set", "cluster.timeout=1s", "--set", "restarts=0",
                                 *faults({"kind": kind, "step": 12, "rank": 1}), status=7)
            self.assertEqual(self.injected(kind), [f"injected in step 12: rank 1 {state}"])
            self.assertIn("rank 1 has not entered ", output)
            self.assertEqual(self.last_step(kind), 11)

    def test_a_slow_rank_holds_up_its_steps_and_changes_no_number(self):
        self.broken("slow", "--set", "parallel.dp=2", *faults({"kind": "slow", "step": 20, "steps": 5, "rank": 1, "factor": 30}))
        self.assertEqual(self.injected("slow"), ["injected in step 20: rank 1 takes 30 times as long, for 5 steps"])
        seconds = {s["step"]: s["step_seconds"] for s in self.steps("slow")}
        usual = statistics.median(s for step, s in seconds.items() if not 20 <= step < 25)
        self.assertGreater(min(seconds[step] for step in range(20, 25)), 4 * usual)
        self.assert_as_whole("slow", "--set", "parallel.dp=2")

    def test_a_flipped_bit_changes_what_follows_and_is_told_with_its_place(self):
        whole = self.whole(*DP2)
        for kind, first in (("flip_parameter", 12), ("flip_gradient", 13)):
            self.broken(kind, *DP2, *faults({"kind": kind, "step": 12, "rank": 1, "bit": 26, "tensor": "layers.1.down.weight"}))
            [message] = self.injected(kind)
            what = "the gradient of " if kind == "flip_gradient" else ""
            self.assertRegex(message, rf"^injected in step 12: bit 26 of element \d+ of {what}layers.1.down.weight at rank 1: \S+ becomes \S+$")
            losses = self.losses(kind)
            self.assertEqual(losses[:first - 1], whole[:first - 1])
            self.assertNotEqual(losses[first - 1:], whole[first - 1:])
            self.assertEqual(len(losses), STEPS)

    def test_a_broken_checkpoint_is_passed_over_by_the_next_run(self):
        self.broken("bits", "--set", "steps=10", *faults({"kind": "flip_checkpoint", "step": 9}))
        [message] = self.injected("bits")
        self.assertRegex(message, r"^injected: bit 0 of byte \d+ of .*/step-00000010/shard-00000.safetensors$")
        output = self.broken("bits")
        self.assertRegex(output, r"step-00000010 is damaged and will not be used")
        self.assertIn("from step 5", output.replace("after step 5", "from step 5").replace("(step 5)", "from step 5"))
        self.assert_as_whole("bits")

    def test_random_faults_happen_once_each_and_the_run_is_as_undisturbed(self):
        steps = 400 if FULL else STEPS
        length = ["--set", f"steps={steps}", "--set", "parallel.dp=2", "--set", "checkpoint.memory=2"]
        self.broken("random", *length, "--set", "restarts=1000", *faults(random={"seed": 3, "rate": 0.15, "kinds": ["kill", "slow"]}), timeout=600)
        done = self.done("random")
        self.assertEqual(len(done), len(set(done)))
        self.assertGreater(len(done), 2)
        self.assertTrue(any("is killed" in message for message in self.injected("random")), self.injected("random"))
        self.assert_as_whole("random", *length)

    def test_a_replica_whose_bit_flips_is_named_by_rank_and_tensor_at_the_next_check(self):
        three = ["--set", "parallel.dp=3", "--set", "parallel.zero=0", "--set", "batch={global: 6, micro: 1}", "--set", "supervise.hash_every=20"]
        output = self.broken("corrupt", *three, *faults({"kind": "flip_parameter", "step": 14, "rank": 2, "tensor": "layers.1.down.weight"}), status=8)
        self.assertRegex(output, r"silent corruption in the state after step 15: rank 2 differs from its replicas")
        self.assertRegex(output, r"layers\.1\.down\.weight \[0:64, 0:176\]: rank 2 against ranks 0, 1")
        event, *withdrawn = [e for e in self.events("corrupt") if e["event"] == "corruption"]
        self.assertIn("rank 2 differs from its replicas", event["message"])
        self.assertTrue(any(detail.startswith("layers.1.down.weight") for detail in event["details"]), event)
        # What was saved before is not of the flipped bit: the run goes on from there, and is as undisturbed.
        # The snapshot of step 15 was compared by the step after it, and its checkpoint counts no more if it was complete.
        self.assertEqual([c.name for c in self.checkpoints("corrupt")], ["step-00000005", "step-00000010"])
        for e in withdrawn:
            self.assertRegex(e["message"], "step-00000015 does not count any more")
        self.broken("corrupt", *three)
        self.assert_as_whole("corrupt", *three)

    def test_a_run_whose_only_checkpoints_are_withdrawn_begins_again(self):
        arguments = [*DP2, "--set", "supervise.hash_every=20"]
        self.broken("only", *arguments, *faults({"kind": "flip_parameter", "step": 3, "rank": 1}), status=8)
        self.assertEqual(self.checkpoints("only"), [])
        output = self.broken("only", *arguments)
        self.assertIn("before its first checkpoint: it begins at step 1 again", output)
        self.assert_as_whole("only", *arguments)

    def test_of_two_replicas_both_are_named(self):
        output = self.broken("two", *DP2, "--set", "supervise.hash_every=1", *faults({"kind": "flip_gradient", "step": 14, "rank": 1}), status=8)
        self.assertIn("silent corruption in the state after step 14: ranks 0, 1 differ, and there is no majority that tells which is right", output)

    def test_clean_runs_of_any_layout_raise_no_alarm(self):
        layouts = {"tp2": ["parallel.tp=2"], "pp2": ["parallel.pp=2"]}
        layouts.update({f"dp2-zero{zero}": ["parallel.dp=2", f"parallel.zero={zero}"] for zero in range(4)})
        for name, layout in layouts.items():
            with self.subTest(name):
                arguments = [word for flag in [*layout, "supervise.hash_every=1"] for word in ("--set", flag)]
                self.broken(name, *arguments)
                self.assertEqual([e for e in self.events(name) if e["event"] == "corruption"], [])
                self.assertEqual(self.last_step(name), STEPS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
