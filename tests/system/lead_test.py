"""The leading agent is lost and another takes over, with a real etcd and several hosts (netns.py)."""

import re
import unittest

from etcd_server import Etcd
from hosts_test import DISK, DP, SLICE, HostsTest, WHOLE
from netns import Hosts
from nodes_test import free_port
from support import *

LONGER = [*WHOLE, "--set", "steps=150"]  # long enough for a frozen leader to detect its loss
CLOSE = ["--set", "precision=fp32"]


class LeadTest(HostsTest):
    def begin(self, name, *more, nodes=2, spares=0, dead_after="3s"):
        """Hosts for the agents, and a last one for etcd."""
        self.name, self.nodes, self.spares = name, nodes, spares
        self.hosts = Hosts(nodes + spares + 1)
        self.addCleanup(self.hosts.close)
        self.etcd = Etcd(self.hosts, nodes + spares)
        self.addCleanup(self.etcd.close)
        self.arguments = ["--set", f"supervise={{heartbeat: 250ms, dead_after: {dead_after}, coordinator: \"{self.etcd.url}\"}}", *DP[nodes],
                          *(["--set", f"cluster.failures.spares={spares}"] if spares else []), *DISK, *more]
        self.agents = [self.agent(host, host) for host in range(nodes + spares)]

    def agent(self, host, node, *more, patience=60):
        command = self.hosts.command(host, BINARY, "run", self.job(self.name, schedule=CONSTANT), "--nodes", str(self.nodes), "--node",
                                     str(node), "--rendezvous-timeout", str(patience), *self.arguments, *more)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(self._end, process)
        self.hosts.add(host, process)
        return process

    def train_until(self, step, agent=-1):
        self.wait_for_step(self.agents[agent], step, self.name)

    def assert_lead_moved(self, host, why="its agent has ended or its host is out of reach"):
        moved = [m for m in self.events_of("node") if "leads the run now" in m]
        self.assertEqual(len(moved), 1, self.events_of("node"))
        self.assertRegex(moved[0], rf"node 0 .*was lost after step \d+: .*{why}.*; node 0 \({self.hosts.names[host]}\) leads the run now"
                         if self.hosts.apart else "leads the run now")


class Moves(LeadTest):
    def test_a_spare_takes_the_lead(self):
        self.begin("spare", *LONGER, spares=1)
        self.train_until(12)
        self.hosts.signal(0, signal.SIGKILL)
        self.read_until(self.agents[2], "leads the run now")
        output = self.finish_spared(gone=[0], whole=LONGER)[0]
        self.assertRegex(output, r"node 0 .*was lost after step \d+: .*; this agent waits for another that leads")
        self.assertIn(f"{self.hosts.names[0] if self.hosts.apart else ''} has the lead still, until its lease is over", output)
        self.assert_lead_moved(2)

    @unittest.skipUnless(FULL, SLICE)
    def test_etcd_may_be_gone_for_a_moment(self):
        long = [*WHOLE, "--set", "steps=800"]  # long enough to miss etcd
        self.begin("etcd", *long, dead_after="60s")
        self.train_until(12)
        self.etcd.kill()
        self.read_until(self.agents[0], "cannot be renewed")
        self.etcd.start()
        self.read_until(self.agents[0], "answers again")
        self.finish_spared(whole=long)
        self.assertTrue(any("answers again" in m for m in self.events_of("warning")), self.events_of("warning"))

    @unittest.skipUnless(FULL, SLICE)
    def test_the_agent_of_node_0_started_again_leads_again(self):
        self.begin("again", *WHOLE)
        self.train_until(12)
        self.hosts.signal(0, signal.SIGKILL)
        self.read_until(self.agents[1], "start the agent of node 0 again")
        self.agents[0] = self.agent(0, 0, "--fresh")  # restarted by its old command; the run continues anyway
        self.read_until(self.agents[0], "--fresh is passed over")
        self.finish_spared()
        self.assert_lead_moved(0)

    def test_a_frozen_leader_that_goes_on_writes_nothing_and_ends(self):
        self.begin("frozen", *LONGER, spares=1)
        self.train_until(12)
        frozen = time.monotonic()
        self.hosts.signal(0, signal.SIGSTOP)
        self.read_until(self.agents[2], "leads the run now")
        if FULL:  # the lease, its detection by the others, and joining the next leader
            self.assertLess(time.monotonic() - frozen, 25)
        self.train_until(self.last_step(self.name) + 6)
        self.hosts.signal(0, signal.SIGCONT)
        output = self.finish_one(self.agents[0], status=7)
        self.assertRegex(output, r"node 0 .*does not lead the run any more: (etcd says that the lease|the lease of this agent's lead was not)")
        self.assert_gone(0)
        self.finish_spared(gone=[0], whole=LONGER)
        self.assert_lead_moved(2, "it has sent no heartbeat for")
        self.assertEqual([m for m in self.events_of("failure")], [])

    @unittest.skipUnless(FULL, SLICE)
    def test_a_node_of_an_elastic_job_takes_the_lead(self):
        self.begin("elastic", *WHOLE, "--set", "cluster.failures.elastic=true", *CLOSE)
        self.train_until(12)
        self.hosts.signal(0, signal.SIGKILL)
        self.read_until(self.agents[1], "1 of 2 nodes came: the run goes on with 1")
        self.train_until(self.last_step(self.name) + 12)
        self.agents[0] = self.agent(0, 0)
        self.wait_for(self.agents[1], lambda: any("goes on with 2 nodes and dp 2" in m for m in self.events_of("node")), "it grows")
        self.finish(self.agents)
        self.assert_close(*WHOLE, *DP[2])

    def assert_close(self, *args):
        """As in hosts_test.py: another dp has another order of sums."""
        self.assert_samples_once(self.name)
        losses, whole = self.losses(self.name), self.whole(*CLOSE, *args)
        self.assertEqual([step for step, _ in losses], [step for step, _ in whole])
        for (step, a), (_, b) in zip(losses, whole):
            self.assertAlmostEqual(float(a), float(b), delta=1e-3 * float(b), msg=f"step {step}")

    @unittest.skipUnless(FULL, SLICE)
    def test_a_leader_that_is_cut_off_ends_and_the_others_go_on(self):
        self.begin("cut", *WHOLE, spares=1)
        self.apart()
        self.train_until(12)
        self.hosts.cut(0)
        self.read_until(self.agents[2], "leads the run now")
        self.assertRegex(self.finish_one(self.agents[0], status=7), "does not lead the run any more: the lease .* was not renewed for 3.0 s")
        self.assert_gone(0)
        self.finish_spared(gone=[0])

    @unittest.skipUnless(FULL, SLICE)
    def test_the_lead_moves_twice(self):
        self.begin("twice", *WHOLE, "--set", "steps=400", spares=1)
        self.train_until(12)
        self.hosts.signal(0, signal.SIGKILL)
        self.read_until(self.agents[2], "leads the run now")
        self.agents[0] = self.agent(0, 0)  # it is a spare from now on
        self.read_until(self.agents[0], "a spare joins node 0")
        self.train_until(self.last_step(self.name) + 6, 2)
        self.hosts.signal(2, signal.SIGKILL)
        self.read_until(self.agents[0], "leads the run now")
        self.finish_spared(gone=[2], whole=[*WHOLE, "--set", "steps=400"])

    @unittest.skipUnless(FULL, SLICE)
    def test_another_node_is_waited_for_without_a_spare(self):
        self.begin("waited", *WHOLE)
        self.train_until(12)
        self.hosts.signal(1, signal.SIGKILL)
        self.read_until(self.agents[0], "node 1 .* is waited for")
        self.agents[1] = self.agent(1, 1)
        self.finish_spared()

    @unittest.skipUnless(FULL, SLICE)
    def test_the_leader_and_another_node_at_once(self):
        self.begin("two", *WHOLE, nodes=3, spares=2)
        self.train_until(12)
        for host in (0, 1):
            self.hosts.signal(host, signal.SIGKILL)
        self.finish_spared(gone=[0, 1])


class Ends(LeadTest):
    def test_without_etcd_nothing_starts_and_the_error_names_it(self):
        self.hosts = Hosts(1)
        self.addCleanup(self.hosts.close)
        self.name, self.nodes, port = "silent", 2, free_port()
        self.arguments = ["--set", f"supervise.coordinator=\"etcd://127.0.0.1:{port}\"", *DP[2]]
        output = self.finish_one(self.agent(0, 0, patience=1), status=7)
        self.assertRegex(output, rf"no agent that leads was found within 1s \(--rendezvous-timeout\): supervise.coordinator: no member of etcd "
                                 rf"answers \(127.0.0.1:{port}: .*\)")

    def test_a_job_without_restarts_ends_with_its_leader(self):
        self.begin("budget", *WHOLE, "--set", "steps=1000000", "--set", "restarts=0")
        self.train_until(5)
        self.hosts.signal(0, signal.SIGKILL)
        self.assertRegex(self.finish_one(self.agents[1], status=7),
                         r"node 0 .*was lost after step \d+: .*; this agent was started again 0 times within 10 minutes \(restarts: 0\)")

    @unittest.skipUnless(FULL, SLICE)
    def test_without_another_leader_the_others_end(self):
        self.begin("none", *WHOLE, "--set", "steps=1000000", "--set", "checkpoint={every: 5, memory: 2, partner: {wait: 3s}}")
        self.train_until(12)
        self.hosts.signal(0, signal.SIGKILL)
        self.assertRegex(self.finish_one(self.agents[1], status=7),
                         r"node 0 .*was lost after step \d+: .*; no agent that leads was found within 3s \(checkpoint.partner.wait\) of the end of its lease: no agent leads")


if __name__ == "__main__":
    unittest.main(verbosity=2)
