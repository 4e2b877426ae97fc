"""Runs that inject the faults of their jobs: each kind has its effect, is recorded, and happens once."""

import errno
import re
import statistics
import unittest

from partner_test import TWO
from restart_test import KILLED, RestartTest, STEPS
from nodes_test import free_port
from support import *

PAIR = ["--set", "parallel.dp=2"]
DP2 = ["--set", "parallel.dp=2", "--set", "parallel.zero=0", "--set", "precision=fp32"]


def faults(*entries, **more):
    """The arguments for a job with these faults."""
    return ["--set", "faults=" + json.dumps({"allow": True, "inject": entries, **more})]


class FaultsTest(RestartTest):
    def injected(self, name):
        return [e["message"] for e in self.events(name) if e["event"] == "injected"]

    def done(self, name):
        return (self.root / name / "faults-done").read_text().splitlines()

    def broken(self, name, *arguments, status=0, **kwargs):
        return self.run_job(self.job(name, schedule=CONSTANT), *KILLED, *arguments, status=status, **kwargs)


@sliced(6)
class Faults(FaultsTest):
    def test_without_leave_a_job_with_faults_is_refused(self):
        output = self.broken("refused", "--set", "faults.inject=[{kind: kill, step: 3}]", status=2)
        self.assertIn("faults.allow: is false, and faults are given: set it to true to let the run break itself", output)
        output = self.broken("absent", *faults({"kind": "flip_parameter", "step": 3, "tensor": "nothing"}), status=2)
        self.assertIn("rank 0 updates nothing of a tensor 'nothing'", output)

    @always
    def test_a_killed_worker_is_killed_once_and_the_run_is_as_undisturbed(self):
        output = self.broken("killed", *TWO, *faults({"kind": "kill", "step": 12, "rank": 2}, {"kind": "kill", "step": 12, "rank": 3},
                                                     {"kind": "kill", "step": 23, "rank": 0}))
        self.assertRegex(output, r"restarted: rank [23] \(pid \d+\) ended by signal 9 .* after step 11")
        self.assertRegex(output, r"restarted: rank 0 \(pid \d+\) ended by signal 9 .* after step 22")
        self.assert_as_whole("killed", *TWO)
        # The two faults of one step happen together: the last message of a rank that the agent ended counts, too.
        self.assertEqual(len(self.injected("killed")), len(set(self.injected("killed"))))
        self.assertIn("injected in step 23: rank 0 is killed", self.injected("killed"))
        self.assertEqual(sorted(self.done("killed")), ["kill step 12 rank 2", "kill step 12 rank 3", "kill step 23 rank 0"])
        self.assertIn("injected in step 23: rank 0 is killed", (self.root / "killed" / "report.html").read_text())
        recovered = [e for e in self.events("killed") if e["event"] == "recovered"]
        restarts = [e["step"] for e in self.restarts("killed")]
        self.assertEqual(recovered[-1]["step"], restarts[-1] + 1)
        for event in recovered:
            self.assertIn(event["step"] - 1, restarts)
            self.assertRegex(event["message"], rf"^recovered: step {event['step']} began \d+\.\d\d s after the failure was noticed: \d+\.\d\d s until the "
                                               r"ranks had ended and their state was chosen, \d+\.\d\d s until all ranks were ready, \d+\.\d\d s of it for their groups$")
            took = event["recovery"]
            self.assertLessEqual(took["decide_seconds"] + took["ready_seconds"], took["total_seconds"] + 0.01)
            self.assertLessEqual(took["groups_seconds"], took["ready_seconds"])

    def test_a_crash_that_comes_again_at_the_same_place_ends_the_run(self):
        crash, elsewhere = {"kind": "crash", "step": 12, "rank": 1}, {"kind": "crash", "step": 17, "rank": 1}
        output = self.broken("crash", *PAIR, *faults(crash, crash, elsewhere), "--set", "restarts=100", status=8)
        self.assertRegex(output, r"rank 1 by signal 11 \(Segmentation fault\) in step 12 is what ended the attempt before too, so the workers do not start again: "
                                 "it is a bug, or hardware that computes wrongly; try the step on other hardware")
        # A crash at another step is a different failure.
        kill = {"kind": "kill", "step": 12, "rank": 1}
        self.broken("elsewhere", *PAIR, *faults(crash, kill, kill, elsewhere), "--set", "restarts=100")
        self.assert_as_whole("elsewhere", *PAIR)
        # A third death from outside at the same place also ends the run.
        output = self.broken("outside", *PAIR, *faults(kill, kill, kill), "--set", "restarts=100", status=8)
        self.assertRegex(output, r"rank 1 by signal 9 \(Killed\) in step 12 has ended 3 attempts without a new step in between, so the workers do not start again")
        self.assertEqual([e["details"] for e in self.restarts("outside")],
                         [[f"rank 1 by signal 9 (Killed) in step 12: {times} of 3 times there without a new step in between"] for times in (1, 2)])
        [failure] = [e for e in self.events("outside") if e["event"] == "failure"]
        self.assertIn("has ended 3 attempts without a new step in between", failure["message"])

    def test_a_hang_that_comes_again_at_the_same_place_ends_the_run(self):
        hang, elsewhere = {"kind": "hang", "step": 12, "rank": 1}, {"kind": "hang", "step": 17, "rank": 1}
        quick = ["--set", "parallel.dp=2", "--set", "supervise.hang_minimum=1s", "--set", "restarts=100"]
        output = self.broken("hang", *quick, *faults(hang, hang, elsewhere), status=8)
        self.assertRegex(output, r"rank 1 by a hang \(spinning\) in step 12 is what ended the attempt before too, so the workers do not start again")
        self.assertEqual([e["step"] for e in self.events("hang") if e["event"] == "hang"], [11, 11])
        self.assertEqual(self.injected("hang"), 2 * ["injected in step 12: rank 1 computes for ever"])
        if FULL:
            # A hang at another step is a different failure; a process that is stopped twice from outside is not its own failure.
            stop = {"kind": "stop", "step": 22, "rank": 1}
            self.broken("elsewhere", *quick, *faults(hang, elsewhere, stop, stop))
            self.assert_as_whole("elsewhere", "--set", "parallel.dp=2")

    def test_a_rank_that_spins_in_the_first_step_of_its_process_is_named(self):
        memory = ["--set", "checkpoint.memory=2"]
        later = [{"kind": "kill", "step": 13}, {"kind": "hang", "step": 13}] if FULL else []
        self.broken("first", *memory, "--set", "supervise.hang_minimum=400ms", *faults({"kind": "hang", "step": 1, "rank": 0}, *later))
        hangs = [e for e in self.events("first") if e["event"] == "hang"]
        self.assertEqual([re.search(r"of (step \d+), .*computes without progress", e["message"])[1] for e in hangs],
                         ["step 1", "step 13"] if FULL else ["step 1"])
        for event in hangs:  # 12 times the minimum
            self.assertIn("its deadline was 4.8 s", event["details"])
        self.assertEqual([e["step"] for e in self.restarts("first")], [0, 12, 12] if FULL else [0])
        self.assert_as_whole("first", *memory)

    def test_connections_that_close_start_the_workers_again_on_one_node_and_on_two(self):
        reset = {"kind": "reset_link", "step": 13, "rank": 1}
        memory = [*PAIR, "--set", "checkpoint.memory=2"]
        output = self.broken("reset", *memory, *faults(reset))
        self.assertEqual(self.injected("reset"), ["injected in step 13: the connections of rank 1 to the other ranks close"])
        self.assertRegex(output, r"restarted: .*its connections were closed \(injected\).*; the workers start again from step 1[02] \(snapshot in memory\)")
        self.assert_as_whole("reset", *PAIR)
        for output in self.finish(self.start_nodes(self.job("reset-two", schedule=CONSTANT), *KILLED, *memory, *faults(reset))):
            self.assertRegex(output, r"restarted: .*; the workers start again from step 1[02] \(snapshot in memory\)")
        self.assert_as_whole("reset-two", *PAIR)

    def test_a_communication_that_fails_again_in_the_same_step_ends_the_run(self):
        reset = {"kind": "reset_link", "step": 12, "rank": 1}
        output = self.broken("twice", *PAIR, *faults(reset, reset, reset), "--set", "restarts=100", status=7)
        self.assertRegex(output, r"a failed communication in step 12 is what ended the attempt before too, so the workers do not start again: it is the network, or cluster\.timeout is "
                                 r"shorter than the step's longest communication")
        self.assertEqual(len(self.restarts("twice")), 1)
        self.assertNotIn("earlier runs", output)
        # A requeued job continues the count, so that no scheduler starts it a third time.
        output = self.broken("twice", *PAIR, *faults(reset, reset, reset), "--set", "restarts=100", status=8)
        self.assertRegex(output, r"a failed communication in step 12 is what ended the attempt before too, .*; 2 of these failures were in earlier runs of the job, "
                                 r"as \S+/twice/failures\.json says: remove this file when the cause is gone")
        self.assertEqual(len(self.restarts("twice")), 1)
        (self.root / "twice" / "failures.json").unlink()
        self.broken("twice", *PAIR, *faults(reset, reset, reset), "--set", "restarts=100")
        self.assert_samples_once("twice")
        output = self.broken("more", *PAIR, *faults(reset, {**reset, "step": 17}), "--set", "restarts=1", status=7)
        self.assertRegex(output, r"the workers were started again 1 time within 10 minutes \(restarts: 1\)")

    def test_a_communication_that_takes_longer_than_the_timeout_starts_the_workers_again(self):
        slow = {"kind": "stop", "step": 12, "rank": 1}
        output = self.broken("late", *PAIR, *faults(slow), "--set", "cluster.timeout=2s", "--set", "supervise.hang_factor=0")
        # Two threads of the waiting rank have the same deadline: either may be the first to report it.
        self.assertRegex(output, r"restarted: .* (waited 2\.\d+ s in vain for|was not done in 2\.\d+ s, waiting for) rank 1.*; "
                                 r"the workers start again from step 10 \(")
        self.assert_as_whole("late", *PAIR)

    def test_a_killed_agent_does_not_kill_itself_again_after_a_resume(self):
        kill = faults({"kind": "kill_agent", "step": 13})
        self.broken("agent", *kill, status=-9)
        self.assertEqual(self.done("agent"), ["kill_agent step 13 rank 0"])
        self.broken("agent", *kill)
        self.assert_as_whole("agent")

    def test_an_agent_of_two_nodes_is_killed_and_comes_back(self):
        name, port = "node", free_port()
        arguments = [*KILLED, *PAIR, "--set", "checkpoint.memory=2", "--set", "checkpoint.partner=true",
                     *faults({"kind": "kill_agent", "step": 13, "rank": 1})]

        def begin(node):
            return self.start_node(self.job(name, schedule=CONSTANT), node, port, *arguments)

        agents = [begin(0), begin(1)]
        agents[1].communicate(timeout=PATIENCE)
        self.assertEqual(agents[1].returncode, -9)
        agents[1] = begin(1)
        outputs = self.finish(agents)
        self.assertIn("injected in step 13: the agent of rank 1 is killed", outputs[0])
        self.assertRegex(outputs[0], r"restarted: .*node 1 .*was lost")
        self.assert_as_whole(name, *PAIR)

    def test_the_last_action_of_a_stopped_and_of_a_hanging_rank_is_reported(self):
        for kind, state in (("stop", "is stopped"), ("hang", "computes for ever"))[:2 if FULL else 1]:  # the second: next test
            if kind == "stop":  # a folder that cannot be created
                (self.root / kind).mkdir()
                (self.root / kind / "hangs").touch()
                (self.root / kind / "report.html").mkdir()
            output = self.broken(kind, "--set", "parallel.dp=2", "--set", "supervise.hang_minimum=1s", "--set", "restarts=0",
                                 *faults({"kind": kind, "step": 12, "rank": 1}), status=7)
            self.assertEqual(self.injected(kind), [f"injected in step 12: rank 1 {state}"])
            self.assertRegex(output, r"rank 1 \(dp 1\) (never entered \w+|makes no progress).*; last seen in .* of step 12")
            self.assertEqual(self.last_step(kind), 11)
            self.assertEqual(bool(re.search(r"/stop/hangs/hang-\d{8}\.json cannot be written: Not a directory", output)), kind == "stop")
            self.assertEqual(bool(re.search(r"at the end of the run: .*/stop/report\.html.*directory", output)), kind == "stop")

    def test_a_slow_rank_holds_up_its_steps_and_changes_no_number(self):
        self.broken("slow", "--set", "parallel.dp=2", *faults({"kind": "slow", "step": 20, "steps": 5, "rank": 1, "factor": 200}))
        self.assertEqual(self.injected("slow"), ["injected in step 20: rank 1 takes 200 times as long, for 5 steps"])
        # Most of such a small step is communication, which the fault does not slow.
        seconds = {s["step"]: s["step_seconds"] for s in self.steps("slow")}
        usual = statistics.median(s for step, s in seconds.items() if not 20 <= step < 25)
        self.assertGreater(min(seconds[step] for step in range(20, 25)), 4 * usual)
        self.assert_as_whole("slow", "--set", "parallel.dp=2")

    def test_a_flipped_bit_changes_later_losses_and_its_place_is_reported(self):
        whole = self.whole(*DP2)
        tensor = {"tensor": "layers.1.down.weight"}
        for kind, first, more, what in (("flip_parameter", 12, tensor, "of layers.1.down.weight at rank 1"),
                                        ("flip_gradient", 13, tensor, "of the gradient of layers.1.down.weight at rank 1"),
                                        ("flip_message", 13, {}, r"of what rank 1 sends in \w+ 'gradients' of group dp")):
            self.broken(kind, *DP2, *faults({"kind": kind, "step": 12, "rank": 1, "bit": 26, **more}))
            [message] = self.injected(kind)
            self.assertRegex(message, rf"^injected in step 12: bit 26 of element \d+ {what}: \S+ becomes \S+$")
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

    def test_a_full_disk_and_a_store_that_fails_hold_up_no_step_and_lose_no_checkpoint(self):
        tier = self.root / "tier"
        self.broken("full", "--set", f"checkpoint.durable={{to: {tier}, every: 5}}",
                    *faults({"kind": "fill_disk", "step": 8, "seconds": 0.5}, {"kind": "fail_store", "step": 3, "seconds": 1}), timeout=PATIENCE)
        self.assertEqual(self.injected("full"), ["injected in step 3: for 1 s all fails that the agent of rank 0 does in the durable tier",
                                                 "injected in step 8: for 0.5 s the agent of rank 0 has no space for checkpoints"])
        warnings = [e["message"] for e in self.events("full") if e["event"] == "warning"]
        self.assertTrue(any(re.search(r"step \d+ could not be written.*No space left on device; the disk is full: free some space \(injected\)", w)
                            for w in warnings), warnings)
        self.assertTrue(any(re.search(r"step \d+ could not be copied to the durable tier.*Input/output error.*\(injected\)", w) for w in warnings), warnings)
        self.assert_as_whole("full")
        self.assertTrue((tier / f"step-{STEPS:08}" / "COMPLETE").exists())

    def test_a_store_that_fails_for_longer_than_give_up_is_given_up_for_that_checkpoint(self):
        output = self.broken("given-up", "--set", f"checkpoint={{durable: {{to: {self.root / 'tier'}, every: 5}}, give_up: 500ms}}", *KILLED,
                             *faults({"kind": "fail_store", "step": 3, "seconds": 600}))
        self.assertRegex(output, r"the durable copy of step \d+ is given up after \d\S* ?\w* \(checkpoint\.give_up\); the next checkpoint is tried again")
        self.assertRegex(output, r"the durable copy of step \d+ is dropped: it is given up")
        self.assertEqual(self.last_step("given-up"), STEPS)

    @unittest.skipUnless(FULL, "20 s, for which the copies of a stopped run are tried")
    def test_a_store_that_fails_until_the_end_is_reported(self):
        tier = self.root / "tier"
        process = self.start(self.job("unsaved", schedule=CONSTANT), "--set", f"checkpoint={{every: 5, durable: {{to: {tier}, every: 5}}}}", "--set", "steps=100000",
                             *faults({"kind": "fail_store", "step": 3, "seconds": 600}))
        self.wait_for_step(process, 12, "unsaved")
        process.send_signal(signal.SIGTERM)
        output = self.finish_one(process, status=143)
        self.assertRegex(output, rf"the checkpoint of the last step is not in the durable tier {tier} yet: the next run of this job copies it, and sends only what is missing")

    def test_a_node_with_a_dropped_link_is_lost_to_both_sides_and_returns(self):
        name, port = "link", free_port()
        arguments = [*KILLED, *PAIR, "--set", "checkpoint.memory=2", "--set", "checkpoint.partner=true",
                     "--set", "supervise={heartbeat: 250ms, dead_after: 1500ms}", *faults({"kind": "drop_link", "step": 13, "rank": 1, "seconds": 600},
                             # The ranks' own connections stay: without this the run would end before the loss is detected.
                             {"kind": "slow", "step": 14, "steps": 27, "rank": 0, "factor": 100})]

        def begin(node):
            return self.start_node(self.job(name, schedule=CONSTANT), node, port, *arguments)

        agents = [begin(0), begin(1)]
        self.read_until(agents[1], r"node 0 .*was lost after step \d+: it has sent no heartbeat for \d.*; this agent tries to join again")
        outputs = self.finish(agents)
        self.assertIn("injected in step 13: for 600 s the agent of rank 1 and those of other nodes do not reach each other", outputs[0])
        self.assertRegex(outputs[0], r"restarted: node 1 .*was lost after step \d+: (it has sent no heartbeat for|its agent has ended) .*\(snapshot in memory, which the partners of node 1 kept\)")
        self.assert_as_whole(name, *PAIR)

    def test_an_error_of_a_gpu_is_an_event_and_stops_the_run_as_the_job_says(self):
        error = {"kind": "device_error", "step": 12, "rank": 1, "xid": 79}
        text = "GPU of rank 1 (dp 1): XID 79: the GPU has fallen off the bus"

        def findings(name):
            return [(e["message"], e.get("details", [])) for e in self.events(name) if e["event"] == "device"]

        # Nothing follows from it, nor from an error of the program.
        self.broken("told", *PAIR, *faults(error, {"kind": "device_error", "step": 13, "xid": 13}))
        program = "GPU of rank 0 (dp 0): XID 13: graphics engine exception; of the program that ran on it, not of the device"
        self.assertEqual(findings("told"), [(text, []), (program, [])])
        self.assertEqual(self.injected("told")[0], "injected in step 12: the driver reports XID 79 of the GPU of rank 1")
        self.assert_as_whole("told", *PAIR)

        drain = ["--set", "supervise.devices=drain"]
        output = self.broken("drained", *PAIR, *drain, "--set", "checkpoint.every=5", *faults(error), status=143)
        self.assertEqual(findings("drained"), [(text, ["the run stops with its next checkpoint (supervise.devices: drain)"])])
        [stop] = [e for e in self.events("drained") if e["event"] == "stop"]
        self.assertEqual(self.last_step("drained"), 15)
        self.assertRegex(stop["message"], rf"stopped by {re.escape(text)} \(supervise\.devices: drain\) after step 15; the last checkpoint is .*step-00000015")
        self.broken("drained", *PAIR, *drain, "--set", "checkpoint.every=5")
        self.assert_as_whole("drained", *PAIR)

        # The workers do not start again on that device; what they hold in memory is saved.
        self.broken("died", *PAIR, *drain, "--set", "checkpoint={every: 20, memory: 1}", *faults(error, {"kind": "kill", "step": 14, "rank": 1}), status=143)
        self.assertIn(self.last_step("died"), (12, 13))

        output = self.broken("ended", *PAIR, "--set", "supervise.devices=stop", "--set", "checkpoint.every=5", *faults(error), status=8)
        self.assertRegex(output, rf"{re.escape(text)}; supervise\.devices: stop ends the run: take the device out of use")
        self.assertIn("checkpoint at step 10", output)
        self.assertEqual(findings("ended"), [(text, ["the run ends now (supervise.devices: stop)"])])
        self.assertEqual([e["event"] for e in self.events("ended")][-1], "failure")
        self.broken("ended", *PAIR)
        self.assert_as_whole("ended", *PAIR)

    def test_an_error_of_a_gpu_of_another_node_is_known_to_the_first(self):
        error = {"kind": "device_error", "step": 12, "rank": 1, "xid": 95}
        nodes = self.start_nodes(self.job("far", schedule=CONSTANT), *KILLED, *PAIR, "--set", "supervise.devices=drain", *faults(error))
        self.finish(nodes, status=143)
        [event] = [e for e in self.events("far") if e["event"] == "device"]
        self.assertEqual(event["message"], "GPU of rank 1 (node 1, dp 1): XID 95: uncontained ECC error")

    def test_random_faults_happen_once_each_and_the_run_is_as_undisturbed(self):
        steps = 400 if FULL else STEPS
        length = ["--set", f"steps={steps}", "--set", "parallel.dp=2", "--set", "checkpoint.memory=2"]
        self.broken("random", *length, "--set", "restarts=1000", *faults(random={"seed": 3, "rate": 0.15, "kinds": ["kill", "slow"]}), timeout=600)
        done = self.done("random")
        self.assertEqual(len(done), len(set(done)))
        self.assertGreater(len(done), 2)
        self.assertTrue(any("is killed" in message for message in self.injected("random")), self.injected("random"))
        self.assert_as_whole("random", *length)


@sliced(4)
class Corruption(FaultsTest):
    THREE = ["--set", "parallel.dp=3", "--set", "parallel.zero=0", "--set", "batch={global: 6, micro: 1}"]

    def test_a_replica_whose_bit_flips_is_named_by_rank_and_tensor_at_the_next_check(self):
        three = [*self.THREE, "--set", "supervise.hash_every=20"]
        output = self.broken("corrupt", *three, *faults({"kind": "flip_gradient", "step": 14, "rank": 2, "tensor": "layers.1.down.weight"}), status=8)
        self.assertRegex(output, r"silent corruption in the state after step 15: rank 2 differs from its replicas")
        self.assertRegex(output, r"layers\.1\.down\.weight \[0:64, 0:176\]: rank 2 against ranks 0, 1")
        event, *withdrawn = [e for e in self.events("corrupt") if e["event"] == "corruption"]
        self.assertIn("rank 2 differs from its replicas", event["message"])
        self.assertTrue(any(detail.startswith("layers.1.down.weight") for detail in event["details"]), event)
        # Earlier checkpoints do not contain the flipped bit: the run resumes from one and matches the undisturbed run. The step
        # after step 15 compared its snapshot, so a complete checkpoint of step 15 does not count either.
        kept = [c.name for c in self.checkpoints("corrupt")]  # the first may not have been written in time
        self.assertIn(kept, (["step-00000005", "step-00000010"], ["step-00000010"]))
        for e in withdrawn:
            self.assertRegex(e["message"], "step-00000015 does not count any more")
        self.broken("corrupt", *three)
        self.assert_as_whole("corrupt", *three)

    def test_a_sound_checkpoint_stays_beyond_keep_until_a_later_one_is_found_sound(self):
        three = [*self.THREE, "--set", "supervise.hash_every=1",
                 "--set", "checkpoint.every=1", "--set", "checkpoint.keep=1"]
        # The checkpoint of step 14 is complete before the slow step's report tells of its state.
        self.broken("sound", *three, *faults({"kind": "flip_gradient", "step": 14, "rank": 2}, {"kind": "slow", "step": 15, "rank": 0, "factor": 200}), status=8)
        self.assertIn("withdrawn", [e["event"] for e in self.events("sound")])
        kept = [c.name for c in self.checkpoints("sound")]
        self.assertTrue(kept)
        self.assertLessEqual(kept[-1], "step-00000013")
        self.broken("sound", *three)
        self.assert_as_whole("sound", *three)
        # Beyond the newest these are two that were compared, and those that waited for it when the last one was complete.
        self.assertLess(len(self.checkpoints("sound")), 8)

    def test_a_corrupt_state_is_not_resumed_from_where_the_agent_is_killed_right_after_its_report(self):
        three = [*self.THREE, "--set", "supervise.hash_every=1",
                 "--set", "checkpoint.every=1", "--set", "checkpoint.keep=24"]
        arguments = [*KILLED, *three, *faults({"kind": "flip_gradient", "step": 14, "rank": 2}, {"kind": "slow", "step": 15, "rank": 0, "steps": 9, "factor": 100})]
        agent = self.start(self.job("killed", schedule=CONSTANT), *arguments)
        self.wait_for(agent, lambda: [e for e in self.events("killed") if e["event"] == "withdrawn"], "the withdrawal")
        self.assertTrue(self.children(agent.pid))  # its ranks have not ended
        agent.kill()
        agent.communicate()
        self.assertLessEqual(self.checkpoints("killed")[-1].name, "step-00000013")
        self.broken("killed", *three)
        self.assert_as_whole("killed", *three)

    def test_a_checkpoint_that_becomes_complete_after_its_state_was_found_corrupt_is_withdrawn(self):
        compare = [*DP2, "--set", "supervise.hash_every=1", "--set", "checkpoint.every=7"]
        hold, environment = self.slow_disk()
        hold.write_text("step-00000014/COMPLETE")
        # All shards are written before the slow step ends, whose report tells of the state before it.
        arguments = [*KILLED, *compare, *faults({"kind": "flip_gradient", "step": 14, "rank": 1}, {"kind": "slow", "step": 15, "rank": 0, "factor": 200})]
        for nodes in (1, 2):
            name = f"after-{nodes}"
            hold.write_text("step-00000014/COMPLETE")
            agents = self.start_nodes(self.job(name, schedule=CONSTANT), *arguments, nodes=nodes, env=environment) if nodes > 1 else \
                [self.start(self.job(name, schedule=CONSTANT), *arguments, env=environment)]
            self.wait_for(agents[0], lambda: [e for e in self.events(name) if e["event"] == "corruption"], "the corruption")
            self.assertTrue((self.root / name / "checkpoints" / "step-00000014").exists())
            hold.unlink()
            self.finish(agents, status=8)
            self.assertEqual([c.name for c in self.checkpoints(name)], ["step-00000007"])
            self.assertEqual(["step-00000014" in e["message"] for e in self.events(name) if e["event"] == "withdrawn"], [True])
            self.broken(name, *compare)
            self.assert_as_whole(name, *compare)

    def test_a_state_that_no_rank_could_compare_before_one_died_is_not_begun_from(self):
        compare = [*DP2, "--set", "supervise.hash_every=1", "--set", "checkpoint.every=7"]
        died = faults({"kind": "flip_gradient", "step": 14, "rank": 0}, {"kind": "kill", "step": 15, "rank": 1})
        for name, memory in (("memory", ["--set", "checkpoint.memory=2"]), ("disk", ["--set", "checkpoint.async=false"])):
            output = self.broken(f"uncompared-{name}", *compare, *memory, *died)
            [step] = re.findall(r"restarted: .*rank 1 .* ended by signal 9.*; the workers start again from step (\d+) \(", output)
            self.assertLess(int(step), 14)
            self.assert_as_whole(f"uncompared-{name}", *compare)
            self.assertNotIn("corruption", [e["event"] for e in self.events(f"uncompared-{name}")])

    def test_no_copy_of_a_state_that_was_not_compared_stays_in_the_durable_tier(self):
        compare = [*DP2, "--set", "supervise.hash_every=1", "--set", "checkpoint={every: 7, durable: {to: " + str(self.root / "tier") + ", every: 7}}"]
        # The copy of step 14 is made, or under way, as the slow step ends.
        died = faults({"kind": "flip_gradient", "step": 14, "rank": 0}, {"kind": "slow", "step": 15, "rank": 1, "factor": 60}, {"kind": "kill", "step": 15, "rank": 1})
        self.broken("tier-run", *compare, *died, "--set", "restarts=0", status=7)
        for folder in (self.root / "tier-run" / "checkpoints", self.root / "tier"):
            complete = sorted(path.parent.name for path in folder.glob("step-*/COMPLETE"))
            self.assertEqual([name for name in complete if name > "step-00000013"], [], folder)
        self.assertNotIn("corruption", [e["event"] for e in self.events("tier-run")])  # none was found
        self.broken("tier-run", *compare)
        self.assert_as_whole("tier-run", *compare[:-2], "--set", "checkpoint.every=7")

    def test_a_run_whose_only_checkpoints_are_withdrawn_begins_again(self):
        arguments = [*DP2, "--set", "supervise.hash_every=20"]
        # The checkpoint of step 5 is complete before step 6 compares it.
        flip = [*arguments, "--set", "checkpoint.async=false", *faults({"kind": "flip_gradient", "step": 3, "rank": 1})]
        self.broken("only", *flip, status=8)
        self.assertEqual(self.checkpoints("only"), [])
        [event] = [e for e in self.events("only") if e["event"] == "withdrawn"]
        self.assertRegex(event["message"], r"^checkpoint .*/step-00000005 does not count any more: the copies that ranks held of its state were not found equal, "
                                          r"or it may hold what changed in a rank's memory$")
        rules, environment = self.failing_disk()
        rules.write_text(f"remove {errno.EROFS} COMPLETE\n")
        self.broken("kept", *flip, status=8, env=environment)
        self.assertRegex(self.events("kept")[-2]["message"], r"^checkpoints after step 0 may hold the corruption and could not be withdrawn, remove them: "
                                                             r".*step-00000005.*Read-only file system")
        output = self.broken("only", *arguments)
        self.assertIn("before its first checkpoint: it begins at step 1 again", output)
        self.assert_as_whole("only", *DP2)

    def test_a_rank_whose_state_changes_between_two_updates_is_named_at_any_level_of_zero(self):
        for zero in range(4) if FULL else (1, 3):
            name = f"changed-{zero}"
            arguments = ["--set", "parallel.dp=2", "--set", f"parallel.zero={zero}", "--set", "supervise.hash_every=5", "--set", "checkpoint.every=4"]
            tensor = "layers.1.down.weight"
            output = self.broken(name, *arguments, *faults({"kind": "flip_parameter", "step": 12, "rank": 1, "tensor": tensor}), status=8)
            self.assertRegex(output, r"silent corruption in the state after step 11: at rank 1 it has changed before the update of step 12\n +" + re.escape(tensor))
            [event, *_] = [e for e in self.events(name) if e["event"] == "corruption"]
            self.assertEqual(event["details"], [tensor])
            if zero == 1:
                self.broken(name, *arguments)
                self.assert_as_whole(name, *arguments)

    def test_with_zero_3_a_part_of_16_bit_parameters_that_changes_is_named(self):
        """It is in one rank's memory alone, and computing a step again reads it again."""
        arguments = ["--set", "parallel.dp=2", "--set", "parallel.zero=3", "--set", "precision=bf16", "--set", "supervise.hash_every=5"]
        output = self.broken("sent", *arguments, *faults({"kind": "flip_message", "step": 12, "rank": 1, "bit": 6}), status=8)
        self.assertRegex(self.injected("sent")[0], "of what rank 1 sends in all_gather 'parameters' of group dp")
        self.assertRegex(output, r"silent corruption in the state after step 11: at rank 1 it has changed before the update of step 12\n +copy of \S+")

    def test_of_two_replicas_both_are_named(self):
        output = self.broken("two", *DP2, "--set", "supervise.hash_every=1", *faults({"kind": "flip_gradient", "step": 14, "rank": 1}), status=8)
        self.assertIn("silent corruption in the state after step 14: ranks 0, 1 differ, and there is no majority that tells which is right", output)

    def test_clean_runs_of_any_layout_raise_no_alarm(self):
        layouts = {"tp2": ["parallel.tp=2"], "pp2": ["parallel.pp=2"]}
        layouts.update({f"dp2-zero{zero}": ["parallel.dp=2", f"parallel.zero={zero}"] for zero in range(4)})
        for name, layout in list(layouts.items())[::1 if FULL else 3]:
            with self.subTest(name):
                arguments = [word for flag in [*layout, "supervise.hash_every=1"] for word in ("--set", flag)]
                self.broken(name, *arguments)
                self.assertEqual([e for e in self.events(name) if e["event"] == "corruption"], [])
                self.assertEqual(self.last_step(name), STEPS)

    def test_clean_steps_raise_no_alarm(self):
        tiny = "{layers: 1, hidden: 16, heads: 2, kv_heads: 2, ffn: 32, vocab: 256, seq_len: 8}"
        steps = 100_000 if FULL else 2000
        # Without the pre-flight check: beside other tests, a rank may have no core while its rate is measured.
        self.run_job(self.job("clean", schedule=CONSTANT), "--set", f"model={tiny}", "--set", "batch={global: 2, micro: 1}", "--set", f"steps={steps}",
                     "--set", "parallel.dp=2", "--set", "parallel.zero=0", "--set", "checkpoint={every: 0, memory: 1000}", "--set", "evaluate.every=0",
                     "--set", "supervise.hash_every=10", "--set", "supervise.preflight=false", timeout=3000 if FULL else 120)
        self.assertEqual(self.last_step("clean"), steps)
        alarms = [e for e in self.events("clean") if e["event"] in ("hang", "straggler", "corruption", "restart", "failure", "warning", "recovered")]
        self.assertEqual(alarms, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
