"""Hosts of a job are cut off, stopped, killed and replaced. Each host is a network namespace with an agent of the real binary."""

import errno
import re
import unittest

from netns import Hosts
from nodes_test import free_port
from restart_test import RestartTest
from support import *

SLICE = "a part of these is enough for every change: tests/run.sh full"
DEAD, BEAT = 1.5, 0.25
BEATS = ["--set", "supervise={heartbeat: 250ms, dead_after: 1500ms}"]
MEMORY = ["--set", "checkpoint={every: 0, memory: 2, partner: true}"]
DISK = ["--set", "checkpoint.every=5"]
LONG = ["--set", "steps=1000000", "--set", "evaluate.every=0"]
WHOLE = ["--set", "steps=60", "--set", "evaluate.every=30"]
DP = {2: ["--set", "parallel.dp=2"], 3: ["--set", "parallel.dp=3", "--set", "batch.micro=1", "--set", "batch.global=6"],
      4: ["--set", "parallel={dp: 4, ep: 2}", "--set", "model.experts={count: 4, per_token: 2}", "--set", "batch.micro=1", "--set", "batch.global=8"]}
# Margin for a loaded machine: longer than `DEAD`, shorter than the time limits of the kernel and the run.
SOON = DEAD + (60 if SANITIZED else 12)


class HostsTest(RestartTest):
    environments = {}

    def begin(self, name, *more, nodes=2, spares=0, environments=None):
        """Starts the agents. `environments`: by host."""
        self.name, self.nodes, self.spares, self.environments = name, nodes, spares, environments or {}
        self.hosts = Hosts(nodes + spares)
        self.addCleanup(self.hosts.close)
        self.port = free_port()
        self.arguments = [*BEATS, *DP[nodes], *(["--set", f"cluster.failures.spares={spares}"] if spares else []), *more]
        self.agents = [self.agent(host, host) for host in range(nodes + spares)]

    def agent(self, host, node):
        command = self.hosts.command(host, BINARY, "run", self.job(self.name, schedule=CONSTANT), "--nodes", str(self.nodes), "--node",
                                     str(node), "--rendezvous", f"{self.hosts.address(0)}:{self.port}", "--rendezvous-timeout", "60",
                                     *self.arguments)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environments.get(host))
        self.addCleanup(self._end, process)
        self.hosts.add(host, process)
        return process

    def apart(self):
        if not self.hosts.apart:
            self.skipTest("no CAP_NET_ADMIN: hosts are not apart here")

    def train_until(self, step):
        self.wait_for_step(self.agents[0], step, self.name)

    def events_of(self, kind):
        return [e["message"] for e in self.events(self.name) if e["event"] == kind]

    def assert_gone(self, host):
        """Waits until no process of the host is left."""
        end = time.monotonic() + PATIENCE
        while left := [pid for pid in self.hosts.pids(host) if alive(pid)]:
            self.assertLess(time.monotonic(), end, left)
            time.sleep(0.02)

    def assert_lost(self, output, node=1):
        """The output reports the lost node and how long it was silent."""
        [seconds, *_] = re.findall(rf"node {node} .*was lost after step \d+: it has sent no heartbeat for (\d+\.\d) s", output)
        self.assertGreaterEqual(float(seconds), DEAD)
        self.assertLess(float(seconds), DEAD + SOON)

    def stop_all(self, gone=()):
        """Asks the run to stop: all agents but those of hosts that are gone save and end."""
        self.agents[0].send_signal(signal.SIGTERM)
        for host, agent in enumerate(self.agents):
            if host not in gone:
                self.finish_one(agent, status=143)
        self.assert_samples_once(self.name)

    def tearDown(self):
        """The ledger of each run that is over and trained."""
        over = all(agent.poll() is not None for agent in getattr(self, "agents", []))
        name = getattr(self, "name", None)
        if over and name and (self.root / name / "samples.jsonl").exists():
            self.assert_samples_once(name)
        super().tearDown()

    def finish_spared(self, gone=(), whole=WHOLE):
        """All agents except those of the hosts `gone` succeed, with the losses of the undisturbed run."""
        outputs = self.finish([agent for host, agent in enumerate(self.agents) if host not in gone])
        self.assert_as_whole(self.name, *whole, *DP[self.nodes])
        return outputs


@sliced(4)
class Noticed(HostsTest):
    def test_a_stopped_agent_is_named_and_ends_when_it_goes_on(self):
        self.begin("stopped", *LONG)
        self.train_until(5)
        begin = time.monotonic()
        os.kill(self.agents[1].pid, signal.SIGSTOP)
        output = self.finish_one(self.agents[0], status=7)
        self.assertLess(time.monotonic() - begin, SOON)
        self.assert_lost(output)
        os.kill(self.agents[1].pid, signal.SIGCONT)
        self.assertRegex(self.finish_one(self.agents[1], status=7), "counts as lost|node 0 .* was lost")
        for host in range(2):
            self.assert_gone(host)

    @unittest.skipUnless(FULL, SLICE)
    def test_an_agent_that_is_stopped_for_a_moment_is_not_lost(self):
        self.begin("moment", *WHOLE, "--set", "steps=60", "--set", "supervise.dead_after=30s")
        self.train_until(5)
        os.kill(self.agents[1].pid, signal.SIGSTOP)
        time.sleep(2)  # longer than several beats
        os.kill(self.agents[1].pid, signal.SIGCONT)
        for output in self.finish(self.agents):
            self.assertNotIn("lost", output)

    def test_a_leader_does_not_count_its_own_pause_against_other_nodes(self):
        self.begin("leader", *LONG)
        self.train_until(5)
        self.hosts.signal(0, signal.SIGSTOP)
        self.assertRegex(self.finish_one(self.agents[1], status=7), r"node 0 .*was lost after step \d+: it has sent no heartbeat for \d")
        self.hosts.signal(0, signal.SIGCONT)
        output = self.finish_one(self.agents[0], status=7)
        self.assertIn("was lost", output)
        self.assertNotIn("sent no heartbeat", output)

    def test_both_sides_of_a_cut_link_notice_and_end_their_ranks(self):
        self.begin("cut", *LONG)
        self.apart()
        self.train_until(5)
        begin = time.monotonic()
        self.hosts.cut(1)
        outputs = [self.finish_one(agent, status=7) for agent in self.agents]
        self.assertLess(time.monotonic() - begin, SOON)
        self.assert_lost(outputs[0], 1)
        self.assert_lost(outputs[1], 0)
        for host in range(2):
            self.assert_gone(host)


@sliced(6)
class Replaced(HostsTest):
    @always
    def test_a_spare_takes_the_place_of_a_host_that_is_cut_off_and_no_disk_is_read(self):
        self.begin("spared", *WHOLE, *MEMORY, spares=1)
        address = re.search(r"http://(\S+)/metrics", self.read_until(self.agents[0], "metrics at")).group(1)
        self.train_until(12)
        self.assertRegex(self.hosts.metrics(0, address), r"trainerd_spares 1\n")
        last = self.last_step(self.name)
        if self.hosts.apart:
            self.hosts.cut(1)
        else:
            self.hosts.signal(1, signal.SIGKILL)
        line = self.read_until(self.agents[0], "restarted: ")
        self.assertIn("which the partners of node 1 kept", line)
        self.assertGreater(int(re.search(r"from step (\d+)", line).group(1)), last - 12)
        self.wait_for_step(self.agents[0], last + 12, self.name)
        metrics = self.hosts.metrics(0, address)
        parts = {part: float(seconds) for part, seconds in re.findall(r'trainerd_wall_seconds\{part="(\w+)"\} (\S+)', metrics)}
        for part in ("useful", "detect", "restart", "start"):
            self.assertGreater(parts[part], 0, part)
        # Counted from the last step: the last beat may be older.
        self.assertGreater(parts["detect"], DEAD - BEAT if self.hosts.apart else 0)
        for sample in (r"trainerd_spares 0\n", r"trainerd_nodes_lost_total 1\n", r'trainerd_restores_total\{tier="partner"\} 1\n'):
            self.assertRegex(metrics, sample)
        if self.hosts.apart:
            self.assert_lost(self.read_until(self.agents[1], "this agent tries to join again"), 0)
            self.hosts.signal(1, signal.SIGKILL)
        self.finish_spared(gone=[1])
        self.assertRegex("\n".join(self.events_of("node")), r"node 1 .*was lost after step \d+: node 1 .* takes its place")

    @unittest.skipUnless(FULL, SLICE)
    def test_a_host_that_was_stopped_and_replaced_is_a_spare_when_it_goes_on(self):
        self.begin("frozen", *LONG, *DISK, spares=1)
        self.train_until(12)
        self.hosts.signal(1, signal.SIGSTOP)
        self.assertRegex(self.read_until(self.agents[0], "restarted: "), r"from step \d+ \(checkpoint ")
        self.hosts.signal(1, signal.SIGCONT)
        self.assertRegex(self.read_until(self.agents[1], "this agent tries to join again"), "counts as lost|node 0 .* was lost")
        self.wait_for(self.agents[0], lambda: any("waits as a spare" in m for m in self.events_of("node")), "it is a spare")
        self.stop_all()

    def test_a_host_whose_link_is_restored_comes_back_by_itself_and_takes_over_again(self):
        self.begin("rejoined", *LONG, *MEMORY, spares=1)
        self.apart()
        self.train_until(8)
        self.hosts.cut(1)
        self.read_until(self.agents[0], "restarted: ")
        self.read_until(self.agents[1], "this agent tries to join again")
        self.hosts.restore(1)
        self.wait_for(self.agents[0], lambda: any("waits as a spare" in m for m in self.events_of("node")), "it is a spare")
        self.train_until(self.last_step(self.name) + 6)
        self.hosts.signal(2, signal.SIGKILL)
        self.assertIn("which the partners of node 1 kept", self.read_until(self.agents[0], "restarted: "))
        self.train_until(self.last_step(self.name) + 6)
        self.stop_all(gone=[2])

    def test_two_hosts_at_once_are_replaced_by_two_spares(self):
        self.begin("two", *WHOLE, *DISK, nodes=3, spares=2)
        self.train_until(12)
        for host in (1, 2):
            self.hosts.signal(host, signal.SIGKILL)
        self.read_until(self.agents[0], "restarted: ")
        self.finish_spared(gone=[1, 2])
        self.assertEqual(len([m for m in self.events_of("node") if "takes its place" in m]), 2)

    @unittest.skipUnless(FULL, SLICE)
    def test_the_old_host_comes_back_as_a_spare_and_takes_over_from_its_own_spare(self):
        self.begin("back", *WHOLE, *DISK, "--set", "steps=600", spares=1)
        self.train_until(12)
        self.hosts.signal(1, signal.SIGKILL)
        self.read_until(self.agents[0], "restarted: ")
        self.agents[1] = self.agent(1, 1)
        self.wait_for(self.agents[0], lambda: any("waits as a spare" in m for m in self.events_of("node")), "it is a spare")
        self.train_until(self.last_step(self.name) + 6)
        self.hosts.signal(2, signal.SIGKILL)
        self.read_until(self.agents[0], "restarted: ")
        self.finish_spared(gone=[2], whole=[*WHOLE, "--set", "steps=600"])

    @unittest.skipUnless(FULL, SLICE)
    def test_a_host_that_was_replaced_takes_the_place_of_another_that_is_waited_for(self):
        self.begin("again", *WHOLE, *DISK, "--set", "steps=600", nodes=3, spares=1)
        self.train_until(12)
        self.hosts.signal(1, signal.SIGKILL)
        self.read_until(self.agents[0], "restarted: ")
        self.train_until(self.last_step(self.name) + 6)
        self.hosts.signal(2, signal.SIGKILL)
        self.read_until(self.agents[0], "node 2 .* is waited for")
        self.agents[1] = self.agent(1, 1)
        self.read_until(self.agents[0], "takes the place of node 2")
        self.read_until(self.agents[0], "restarted: ")
        self.finish_spared(gone=[2], whole=[*WHOLE, "--set", "steps=600"])

    def test_an_unused_spare_ends_with_the_run_and_a_lost_spare_is_reported(self):
        self.begin("idle", *WHOLE, spares=2)
        self.train_until(5)
        self.agents[3].send_signal(signal.SIGTERM)
        self.finish_one(self.agents[3], status=143)
        self.finish_spared(gone=[3])
        self.assertIn("has left", "\n".join(self.events_of("node")))

    @unittest.skipUnless(FULL, "a minute of a larger model")
    def test_a_node_with_a_spare_is_replaced_within_10_s_on_the_quickstart(self):
        # By a kill, which is detected at once, and by a cut, which takes supervise.dead_after.
        for way in ("kill", "cut")[:2 if Hosts.possible() else 1]:
            with self.subTest(way):
                self.name, self.nodes, self.port = way, 2, free_port()
                self.hosts = Hosts(3)
                self.addCleanup(self.hosts.close)
                self.arguments = ["--set", f"output={self.root / way}", "--set", "parallel.dp=2", "--set", "threads=1", *MEMORY,
                                  "--set", "evaluate.every=0", "--set", "cluster.failures.spares=1", "--set", "metrics.listen=off",
                                  "--set", "steps=1000"]
                self.job = lambda *_, **__: ROOT / "configs" / "quickstart.yaml"
                self.agents = [self.agent(host, host) for host in range(3)]
                self.wait_for_step(self.agents[0], 8, way, timeout=600)
                begin, step = time.time(), self.last_step(way)
                if way == "cut":
                    self.hosts.cut(1)
                else:
                    self.hosts.signal(1, signal.SIGKILL)
                self.read_until(self.agents[0], "restarted: .*which the partners of node 1 kept")
                restarted = time.time()
                self.wait_for(self.agents[0], lambda: any(s["wall_time"] > restarted for s in self.steps(way)), "a step")
                [first, *_] = [s for s in self.steps(way) if s["wall_time"] > restarted]
                seconds = first["wall_time"] - first["step_seconds"] - begin
                print(f"{way}: {seconds:.1f} s until the next step, detected and regrouped after {restarted - begin:.1f} s", flush=True)
                self.assertLess(seconds, 10)
                [event] = self.wait_for(self.agents[0], lambda: [e for e in self.events(way) if e["event"] == "recovered"], "what it took")
                print(event["message"], flush=True)
                self.assertLess(event["recovery"]["groups_seconds"], 1)
                self.assertFalse((self.root / way / "checkpoints").exists() and self.checkpoints(way))


class Survives(HostsTest):
    """No checkpoint is written before the end: the state can only come from memory."""

    def assert_no_disk(self):
        self.assertFalse((self.root / self.name / "checkpoints").exists() and self.checkpoints(self.name))

    def test_of_a_replica_on_another_node_all_begin_anew(self):
        # ZeRO 0, and no partner: the first replica has saved all of the state.
        self.begin("replica", *WHOLE, "--set", "checkpoint={every: 0, memory: 2}", "--set", "parallel.zero=0", spares=1)
        self.train_until(12)
        last = self.last_step(self.name)
        self.hosts.signal(1, signal.SIGKILL)
        line = self.read_until(self.agents[0], "restarted: ")
        step = int(re.search(r"from step (\d+) \(the snapshots of step \d+ in the memory of node 0\)", line).group(1))
        self.assertGreater(step, last - 12)
        self.assert_no_disk()
        self.finish_spared(gone=[1], whole=[*WHOLE, "--set", "parallel.zero=0"])

    def test_after_that_training_goes_on_while_no_checkpoint_can_be_written(self):
        rules, environment = self.failing_disk()
        self.begin("unwritten", *LONG, "--set", "checkpoint.every=2", "--set", "parallel.zero=0", spares=1, environments={0: environment})
        self.train_until(12)
        rules.write_text(f"write {errno.ENOSPC} shard-\n")
        self.wait_for(self.agents[0], lambda: any("could not be written" in m for m in self.events_of("warning")), "a failed write")
        self.hosts.signal(1, signal.SIGKILL)
        self.read_until(self.agents[0], r"restarted: .*in the memory of node 0\)")
        self.train_until(self.last_step(self.name) + 30)
        rules.unlink()
        self.wait_for(self.agents[0], lambda: any("checkpoints can be written again" in m for m in self.events_of("warning")), "a written one")
        self.stop_all(gone=[1])


@sliced(6)
class Elastic(HostsTest):
    MORE = ["--set", "cluster.failures.elastic=true", "--set", "precision=fp32", *DISK]

    def assert_close(self, *args):
        """Every sample once, and the losses of the undisturbed run up to the order of sums."""
        self.assert_samples_once(self.name)
        losses, whole = self.losses(self.name), self.whole("--set", "precision=fp32", *args)
        self.assertEqual([step for step, _ in losses], [step for step, _ in whole])
        for (step, a), (_, b) in zip(losses, whole):
            # Another order of sums changes a loss by 3e-6 in 200 steps (and by 2e-3 in 300); a wrong sample by several percent.
            self.assertAlmostEqual(float(a), float(b), delta=1e-4 * float(b), msg=f"step {step}")

    @unittest.skipUnless(FULL, SLICE)
    def test_a_job_shrinks_without_a_spare_and_grows_when_the_node_is_back(self):
        steps = ["--set", "steps=200", "--set", "evaluate.every=100"]
        self.begin("elastic", *steps, *self.MORE)
        self.train_until(12)
        self.hosts.signal(1, signal.SIGKILL)
        self.wait_for(self.agents[0], lambda: any("goes on with 1 node and dp 1" in m for m in self.events_of("node")), "it shrinks")
        last = self.last_step(self.name)
        self.train_until(last + 12)
        self.agents[1] = self.agent(1, 1)
        self.wait_for(self.agents[0], lambda: any("goes on with 2 nodes and dp 2" in m for m in self.events_of("node")), "it grows")
        self.finish(self.agents)
        self.assert_close(*steps, *DP[2])
        changes = [detail for e in self.events(self.name) if e["event"] == "change" for detail in e["details"]]
        self.assertTrue(any("parallel.dp" in change for change in changes), changes)
        self.assertIn("a node has come: the run goes on with 2 nodes and dp 2 after this step", self.events_of("node"))
        self.assertRegex("\n".join(self.events_of("stop")), r"stopped after step \d+ to go on with more nodes")

    def test_a_job_shrinks_and_grows_from_memory_and_no_disk_is_read(self):
        # The lost node's part is its partner's copy; with the others' own it is cut for the layout that is left, and for the larger one later.
        steps = ["--set", "steps=200", "--set", "evaluate.every=100"]
        self.begin("resharded", *steps, *self.MORE, *MEMORY, nodes=3)
        self.train_until(12)
        last = self.last_step(self.name)
        self.hosts.signal(2, signal.SIGKILL)
        goes_on = lambda nodes: [e for e in self.events(self.name) if e["event"] == "resume" and f"memory of {nodes}" in e["message"]]
        [event] = self.wait_for(self.agents[0], lambda: goes_on("node 0 and node 1"), "it shrinks")
        step = int(re.search(r"training goes on after step (\d+), from the snapshots of step \1 in", event["message"]).group(1))
        self.assertGreater(step, last - 12)
        self.assertFalse((self.root / self.name / "checkpoints").exists() and self.checkpoints(self.name))
        self.train_until(self.last_step(self.name) + 12)
        self.agents[2] = self.agent(2, 2)
        self.wait_for(self.agents[0], lambda: any("goes on with 3 nodes and dp 3" in m for m in self.events_of("node")), "it grows")
        self.wait_for(self.agents[0], lambda: len(goes_on("node 0 and node 1")) == 2, "from memory too")
        self.finish(self.agents)
        self.assert_close(*steps, *DP[3])

    def test_ranks_that_share_experts_stay_together_in_a_smaller_job(self):
        steps = ["--set", "steps=80", "--set", "evaluate.every=40"]
        self.begin("experts", *steps, *self.MORE, *MEMORY, nodes=4)
        self.train_until(12)
        self.hosts.signal(3, signal.SIGKILL)
        # Three replicas are no whole groups of two.
        self.wait_for(self.agents[0], lambda: any("goes on with 2 nodes and dp 2" in m for m in self.events_of("node")), "it shrinks")
        self.train_until(self.last_step(self.name) + 12)
        self.agents[3] = self.agent(3, 3)
        self.wait_for(self.agents[0], lambda: any("goes on with 4 nodes and dp 4" in m for m in self.events_of("node")), "it grows")
        self.finish(self.agents)
        self.assert_close(*steps, *DP[4])
        changes = [detail for e in self.events(self.name) if e["event"] == "change" for detail in e["details"]]
        self.assertTrue(any("parallel.dp" in change for change in changes), changes)
        self.assertFalse(any("parallel.ep" in change for change in changes), changes)

    def test_the_planner_chooses_another_layout_where_no_whole_replica_is_left(self):
        steps = ["--set", "steps=200", "--set", "evaluate.every=100"]
        self.begin("replanned", *steps, *self.MORE, "--set", "parallel={pp: 2}", "--set", "cluster.failures.elastic={replan: true}")
        self.train_until(12)
        self.hosts.signal(1, signal.SIGKILL)
        size = "goes on with 1 node, tp 1, pp 1 and dp 1"
        self.wait_for(self.agents[0], lambda: any(size in m for m in self.events_of("node")), size)
        self.train_until(self.last_step(self.name) + 12)
        self.agents[1] = self.agent(1, 1)
        self.wait_for(self.agents[0], lambda: any("goes on with 2 nodes and dp 1" in m for m in self.events_of("node")), "it grows")
        self.finish(self.agents)
        self.assert_close(*steps)
        changes = [detail for e in self.events(self.name) if e["event"] == "change" for detail in e["details"]]
        self.assertTrue(any("parallel.pp" in change for change in changes), changes)

    def test_a_job_does_not_stop_to_grow_while_its_checkpoints_cannot_be_written(self):
        rules, environment = self.failing_disk()
        steps = ["--set", "steps=300", "--set", "evaluate.every=150"]
        self.begin("unwritten", *steps, *self.MORE, environments={0: environment})
        self.train_until(12)
        self.hosts.signal(1, signal.SIGKILL)
        self.wait_for(self.agents[0], lambda: any("goes on with 1 node and dp 1" in m for m in self.events_of("node")), "it shrinks")
        self.train_until(self.last_step(self.name) + 12)
        rules.write_text(f"write {errno.ENOSPC} shard-\n")
        self.wait_for(self.agents[0], lambda: any("could not be written" in m for m in self.events_of("warning")), "a failed write")
        self.agents[1] = self.agent(1, 1)
        self.read_until(self.agents[1], "joins node 0")
        self.train_until(self.last_step(self.name) + 20)
        self.assertFalse(any("a node has come: the run goes on" in m for m in self.events_of("node")))
        rules.unlink()
        self.wait_for(self.agents[0], lambda: any("goes on with 2 nodes and dp 2" in m for m in self.events_of("node")), "it grows")
        self.finish(self.agents)
        self.assert_close(*steps, *DP[2])

    @unittest.skipUnless(FULL, SLICE)
    def test_a_signal_that_comes_while_a_run_is_about_to_grow_ends_it(self):
        hold, environment = self.slow_disk()
        self.begin("signalled", *LONG, *self.MORE, environments={0: environment})
        self.train_until(12)
        self.hosts.signal(1, signal.SIGKILL)
        self.wait_for(self.agents[0], lambda: any("goes on with 1 node and dp 1" in m for m in self.events_of("node")), "it shrinks")
        self.train_until(self.last_step(self.name) + 12)
        hold.write_text("step-")  # the job grows when its last checkpoint is on the disk
        self.agents[1] = self.agent(1, 1)
        self.wait_for(self.agents[0], lambda: any("a node has come: the run goes on with 2 nodes" in m for m in self.events_of("node")), "it is to grow")
        self.agents[0].send_signal(signal.SIGTERM)
        self.read_until(self.agents[0], "SIGTERM: stopping, and not growing")
        hold.unlink()
        self.assertNotIn("goes on with 2 nodes and dp 2 from", self.finish_one(self.agents[0], status=143))
        self.finish_one(self.agents[1], status=143)

    @unittest.skipUnless(FULL, SLICE)
    def test_of_three_nodes_two_are_cut_off_one_after_the_other(self):
        steps = ["--set", "steps=120", "--set", "evaluate.every=60"]
        self.begin("three", *steps, *self.MORE, nodes=3)
        for host, size in ((2, "2 nodes and dp 2"), (1, "1 node and dp 1")):
            self.train_until(self.last_step(self.name) + 12)
            if self.hosts.apart:
                self.hosts.cut(host)
            else:
                self.hosts.signal(host, signal.SIGKILL)
            self.wait_for(self.agents[0], lambda: any(size in m for m in self.events_of("node")), size)
        self.finish(self.agents[:1])
        self.assert_close(*steps, *DP[3])

    @unittest.skipUnless(FULL, SLICE)
    def test_of_three_hosts_two_are_lost_at_once_without_a_spare(self):
        steps = ["--set", "steps=120", "--set", "evaluate.every=60"]
        self.begin("both", *steps, *self.MORE, nodes=3)
        self.train_until(12)
        for host in (1, 2):
            self.hosts.signal(host, signal.SIGKILL)
        self.wait_for(self.agents[0], lambda: any("goes on with 1 node and dp 1" in m for m in self.events_of("node")), "it shrinks")
        self.finish(self.agents[:1])
        self.assert_close(*steps, *DP[3])

    def test_a_host_that_is_stopped_without_a_spare_is_done_without(self):
        steps = ["--set", "steps=120", "--set", "evaluate.every=60"]
        self.begin("frozen", *steps, *self.MORE)
        self.train_until(12)
        self.hosts.signal(1, signal.SIGSTOP)
        self.wait_for(self.agents[0], lambda: any("goes on with 1 node and dp 1" in m for m in self.events_of("node")), "it shrinks")
        [output] = self.finish(self.agents[:1])
        self.assert_lost(output)
        self.assert_close(*steps, *DP[2])
        # The host continues after the end of the run: its agent ends and writes nothing.
        folders = sorted(p.name for p in (self.root / self.name / "checkpoints").iterdir())
        self.hosts.signal(1, signal.SIGCONT)
        self.finish_one(self.agents[1], status=7)
        self.assert_gone(1)
        self.assertEqual(sorted(p.name for p in (self.root / self.name / "checkpoints").iterdir()), folders)

    @unittest.skipUnless(FULL, SLICE)
    def test_a_node_that_is_lost_while_the_size_changes(self):
        steps = ["--set", "steps=120", "--set", "evaluate.every=60"]
        self.begin("twice", *steps, *self.MORE, nodes=3)
        self.train_until(12)
        self.hosts.signal(2, signal.SIGKILL)
        self.read_until(self.agents[0], "the run goes on with 2 nodes and dp 2")
        self.hosts.signal(1, signal.SIGKILL)
        self.read_until(self.agents[0], "the run goes on with 1 node and dp 1")
        self.finish(self.agents[:1])
        self.assert_close(*steps, *DP[3])

    @unittest.skipUnless(FULL, SLICE)
    def test_a_job_that_has_started_again_from_memory_shrinks_to_one_node(self):
        steps = ["--set", "steps=200", "--set", "evaluate.every=100"]
        self.begin("memory", *steps, *self.MORE, "--set", "checkpoint.memory=2")
        self.train_until(12)
        self.kill_worker(self.agents[0])
        self.assertIn("snapshot in memory", self.read_until(self.agents[0], "restarted: "))
        self.train_until(self.last_step(self.name) + 6)
        self.hosts.signal(1, signal.SIGKILL)
        self.read_until(self.agents[0], "the run goes on with 1 node and dp 1")
        self.finish(self.agents[:1])
        self.assert_close(*steps, *DP[2])

    def test_a_job_without_a_smaller_size_is_refused(self):
        self.begin("rigid", *self.MORE, "--set", "cluster.failures.min_replicas=2")
        self.assertIn("the job has no smaller size", self.finish_one(self.agents[0], status=3))
        self.finish_one(self.agents[1], status=3)

    def test_a_job_whose_smallest_size_does_not_fit_is_refused(self):
        # A state that fits two nodes in halves (zero 3) but not one node: training does not begin.
        layers = lambda count: ["--set", "model.hidden=2048", "--set", "model.ffn=8192", "--set", f"model.layers={count}"]
        fits = lambda count: subprocess.run([BINARY, "plan", self.job("large"), "--set", "precision=fp32", *DISK, *layers(count)],
                                            capture_output=True, text=True, timeout=PATIENCE).returncode == 0
        count = 4
        while fits(count):
            count += -(-count // 4)
        self.begin("large", *self.MORE, *layers(count), "--set", "parallel.zero=3")
        output = self.finish_one(self.agents[0], status=3)
        self.assertIn("cluster.failures.elastic: on 1 node and dp 1, which cluster.failures.min_replicas allows, the job does not", output)
        self.finish_one(self.agents[1], status=3)
        self.assertEqual(self.steps(self.name), [])

    @unittest.skipUnless(FULL, SLICE)
    def test_below_min_replicas_the_others_wait(self):
        self.begin("least", "--set", "cluster.failures.min_replicas=2", *self.MORE, *LONG, "--set", "checkpoint.partner={wait: 1s}",
                   nodes=3)
        self.train_until(8)
        self.hosts.signal(2, signal.SIGKILL)
        self.wait_for(self.agents[0], lambda: any("2 nodes and dp 2" in m for m in self.events_of("node")), "it shrinks")
        self.train_until(self.last_step(self.name) + 8)
        self.hosts.signal(1, signal.SIGKILL)
        self.assertIn("did not come back within 1s", self.finish_one(self.agents[0], status=7))


@sliced(4)
class Links(HostsTest):
    def test_a_link_that_is_cut_for_a_moment_delays_a_step_and_changes_nothing(self):
        self.begin("moment-cut", *WHOLE, "--set", "supervise={heartbeat: 250ms, dead_after: 60s, hang_minimum: 60s}")
        self.apart()
        self.train_until(12)
        self.hosts.cut(1)
        last = self.settled(self.name)
        self.assertLess(last, 200, "the run was over before the cut")
        self.hosts.restore(1)
        self.finish_spared()
        self.assertEqual((self.events_of("node"), self.events_of("restart"), self.events_of("hang")), ([], [], []))

    @unittest.skipUnless(FULL, SLICE)
    def test_a_host_that_is_cut_off_too_often_does_not_join_again(self):
        self.begin("often", *LONG, *MEMORY, "--set", "restarts=1")
        self.apart()
        self.train_until(8)
        self.hosts.cut(1)
        self.read_until(self.agents[1], "this agent tries to join again")
        self.hosts.restore(1)
        self.read_until(self.agents[0], "restarted: ")
        self.train_until(self.last_step(self.name) + 6)
        self.hosts.cut(1)
        self.assertRegex(self.finish_one(self.agents[1], status=7),
                         r"node 0 .*was lost .*; it does not join again: restarts \(1\) within 10 minutes are used up")
        self.finish_one(self.agents[0], status=7)

    @unittest.skipUnless(FULL, SLICE)
    def test_a_host_that_was_cut_off_comes_back_when_the_link_is_restored(self):
        self.begin("back", *WHOLE, *MEMORY)
        self.apart()
        self.train_until(12)
        self.hosts.cut(1)
        self.assert_lost(self.read_until(self.agents[1], "this agent tries to join again"), 0)
        self.hosts.restore(1)
        self.assertIn("which the partners of node 1 kept", self.read_until(self.agents[0], "restarted: "))
        self.finish_spared()


if __name__ == "__main__":
    unittest.main(verbosity=2)
