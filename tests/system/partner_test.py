"""A lost agent comes back: another node has its snapshots in memory, and all nodes continue from them."""

import re
import unittest

from nodes_test import free_port
from restart_test import RestartTest
from support import *

STEPS = 72
LOST = ["--set", f"steps={STEPS}", "--set", "evaluate.every=36", "--set", "checkpoint.every=0"]
MEMORY = ["--set", "checkpoint.memory=2", "--set", "checkpoint.partner=true"]
TWO = ["--set", "parallel.tp=2", "--set", "parallel.dp=2", "--set", "batch.micro=1"]
THREE = ["--set", "parallel.dp=3", "--set", "batch.micro=1", "--set", "batch.global=6"]


# While the file named by the environment exists, an agent's connections to all ports but one are refused.
REFUSED = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
int connect(int fd, const struct sockaddr* to, socklen_t size) {
  char name[16] = {0};
  prctl(PR_GET_NAME, name);
  if (to->sa_family == AF_INET && !strcmp(name, "trainerd") && access(getenv("REFUSED"), F_OK) == 0 &&
      ntohs(((const struct sockaddr_in*)to)->sin_port) != atoi(getenv("REFUSED_BUT")))
    return errno = ECONNREFUSED, -1;
  return ((int (*)(int, const struct sockaddr*, socklen_t))dlsym(RTLD_NEXT, "connect"))(fd, to, size);
}
"""


@sliced(6)
class PartnerTest(RestartTest):
    def begin(self, name, layout, *more, nodes=2, port=None, environments=None):
        """Starts the agents. `environments`: by node."""
        self.name, self.port, self.nodes, self.environments = name, port or free_port(), nodes, environments or {}
        self.arguments = [*LOST, *layout, *MEMORY, *more]
        self.agents = [self.again(node) for node in range(nodes)]

    def again(self, node, *more):
        job = self.job(self.name, schedule=CONSTANT)
        return self.start_node(job, node, self.port, *self.arguments, *more, nodes=self.nodes, env=self.environments.get(node))

    def lose(self, node):
        """Kills the agent with SIGKILL: its workers die with it."""
        self.agents[node].kill()
        self.agents[node].communicate(timeout=PATIENCE)

    def wait_for_copies(self, step):
        """Waits until every node's partner has a step after this one."""
        pattern = r'trainerd_partner_copies_total\{result="kept"\} (\d+)\n'
        self.wait_for_step(self.agents[0], step, self.name)
        self.wait_for(self.agents[0], lambda: int((re.search(pattern, scrape(self.address)) or [0, 0])[1]) > 2, "copies")

    def finish_all(self, layout):
        outputs = self.finish(self.agents)
        self.assert_as_whole(self.name, *LOST, *layout)
        return outputs

    @always
    def test_an_agent_of_two_comes_back_and_no_disk_is_read(self):
        self.comes_back(TWO)

    @always
    def test_with_the_state_of_loss_scaling_too(self):
        # The first steps overflow, and the scale rises again before the loss.
        layout = [*TWO, "--set", "precision={compute: fp16, initial_loss_scale: 1073741824, loss_scale_window: 8}"]
        self.comes_back(layout)
        scales = [[s["loss_scale"] for s in self.steps(n)] for n in ("two", "whole")]
        self.assertEqual(*scales)
        self.assertGreater(sum(s.get("overflow", False) for s in self.steps("two")), 1)

    def comes_back(self, layout):
        self.begin("two", layout)
        self.address = re.search(r"http://(\S+)/metrics", self.read_until(self.agents[0], "metrics at")).group(1)
        self.wait_for_copies(12)
        last = self.last_step("two")
        self.lose(1)
        self.agents[1] = self.again(1)
        line = self.read_until(self.agents[0], "restarted: ")
        step = int(re.search(r"node 1 .*was lost .*from step (\d+) \(snapshot in memory, which the partners of node 1 kept\)", line).group(1))
        self.assertGreater(step, last - 12)
        self.assertFalse((self.root / "two" / "checkpoints").exists() and self.checkpoints("two"))
        self.wait_for_step(self.agents[0], last + 5, "two")
        metrics = scrape(self.address)
        self.assertRegex(metrics, r'trainerd_restores_total\{tier="partner"\} 1\n')
        self.assertGreater(float(re.search(r"trainerd_partner_sent_bytes_total (\d\S*)", metrics).group(1)), 0)
        self.assertLess(float(re.search(r"trainerd_partner_copy_age_seconds (\d\S*)", metrics).group(1)), PATIENCE)
        outputs = self.finish_all(layout)
        self.assertIn("the partner gave back the snapshots of step", outputs[1])
        [event] = self.restarts("two")
        self.assertIn("partners of node 1", event["message"])

    def test_a_partner_that_cannot_be_reached_is_named(self):
        port, refuse = free_port(), self.root / "refuse"
        environment = {**self.preloaded("refused", REFUSED), "REFUSED": str(refuse), "REFUSED_BUT": str(port)}
        self.begin("unreached", TWO, port=port, environments={1: environment})
        self.wait_for_step(self.agents[0], 6, self.name)
        refuse.touch()
        self.assertRegex(self.read_until(self.agents[1], "did not reach"),
                         r"the snapshot of step \d+ did not reach this node's partner: node 0 at [\d.]+:\d+: .*Connection refused.*; the next one is tried")
        refuse.unlink()
        self.read_until(self.agents[1], "snapshots reach this node's partner again")
        self.lose(1)
        refuse.touch()
        self.agents[1] = self.again(1)
        self.assertIn("which the partners of node 1 kept", self.read_until(self.agents[0], "restarted: "))
        self.assertRegex(self.read_until(self.agents[0], "restarted: "),
                         r"restarted: node 1 .*: its snapshot of step \d+ did not come back from its partner: node 0 at [\d.]+:\d+: .*; "
                         r"see the log of the partner's agent and the network between the two; the workers start again from step 0 \(the start\)")
        refuse.unlink()
        self.finish(self.agents)
        self.assert_as_whole(self.name, *LOST, *TWO)

    def test_an_agent_whose_state_cannot_be_gathered_is_named(self):
        # ZeRO 0, and no partner: node 0 has saved the state for both.
        replicas = ["--set", "parallel.dp=2", "--set", "parallel.zero=0"]
        port, refuse = free_port(), self.root / "refuse"
        environment = {**self.preloaded("refused", REFUSED), "REFUSED": str(refuse), "REFUSED_BUT": str(port)}
        self.begin("ungathered", replicas, "--set", "checkpoint={every: 0, memory: 2}", "--set", "cluster.failures.spares=1", port=port,
                   environments={1: environment})
        self.wait_for_step(self.agents[0], 6, self.name)
        self.lose(1)
        refuse.touch()
        self.agents[1] = self.again(1)
        self.assertIn("the snapshots of step", self.read_until(self.agents[0], "restarted: "))
        self.assertRegex(self.read_until(self.agents[0], "restarted: "),
                         r"restarted: node 1 .*: its ranks' state of step \d+ cannot be gathered from the agents that had it: node 0 at [\d.]+:\d+: .*; "
                         r"the workers start again from step 0 \(the start\)")
        refuse.unlink()
        self.finish(self.agents)
        self.assert_as_whole(self.name, *LOST, *replicas)

    def test_agents_of_three_come_back_one_after_the_other(self):
        self.begin("three", THREE, nodes=3)
        for node, at in ((2, 12), (1, 40)):
            self.wait_for_step(self.agents[0], at, "three")
            self.lose(node)
            self.agents[node] = self.again(node)
            self.assertIn(f"which the partners of node {node} kept", self.read_until(self.agents[0], "restarted: "))
        self.finish_all(THREE)

    def test_one_that_is_lost_again_on_its_way_back_comes_back_later(self):
        self.begin("twice", TWO)
        self.wait_for_step(self.agents[0], 12, "twice")
        self.lose(1)
        self.agents[1] = self.again(1)
        self.read_until(self.agents[1], "node 1 of 2 joins")
        self.lose(1)
        self.agents[1] = self.again(1)
        self.read_until(self.agents[0], "restarted: ")
        self.lose(1)  # its workers have not started, or only just
        self.agents[1] = self.again(1)
        self.assertIn("which the partners of node 1 kept", self.read_until(self.agents[0], "restarted: "))
        self.finish_all(TWO)

    def begin_with_a_disk_that_stands_still(self, name, *more, layout=TWO, nodes=2):
        """Node 1 is lost and comes back, and node 0 waits for its hanging disk with its part of a checkpoint before the ranks
        restart."""
        hold, environment = self.slow_disk()
        hold.write_text("step-00000030")
        self.begin(name, layout, "--set", "checkpoint.every=30", *more, nodes=nodes, environments={0: environment})
        self.wait_for_step(self.agents[0], 33, name)
        self.lose(1)
        self.agents[1] = self.again(1)
        self.read_until(self.agents[0], r"node 1 .*is there again")
        return hold

    def test_one_that_is_lost_again_before_the_ranks_begin_is_waited_for_once_more(self):
        hold = self.begin_with_a_disk_that_stands_still("before")
        self.lose(1)
        self.read_until(self.agents[0], r"node 1 .*was lost after step")
        hold.unlink()
        self.read_until(self.agents[0], "restarted: ")
        self.read_until(self.agents[0], "start its agent again")
        self.agents[1] = self.again(1)
        self.assertRegex(self.read_until(self.agents[0], "restarted: "), r"node 1 .*was lost after step \d+: it was not there when the ranks began")
        self.finish_all(TWO)

    def test_one_that_joins_after_the_state_was_chosen_has_no_snapshot_of_it_and_the_ranks_begin_again(self):
        hold = self.begin_with_a_disk_that_stands_still("chosen", layout=THREE, nodes=3)
        self.lose(2)
        self.agents[2] = self.again(2)
        self.read_until(self.agents[2], "node 2 of 3 joins")
        self.read_until(self.agents[0], r"node 2 .*takes its place|node 2 .*was lost after step")
        time.sleep(0.5)  # it meets the others
        hold.unlink()
        self.read_until(self.agents[0], "restarted: .*snapshot in memory")
        again = self.read_until(self.agents[0], "restarted: ")
        self.assertRegex(again, r"its snapshot of step \d+ did not come back from its partner: this agent does not hold it|it was not there when the ranks began")
        self.finish_all(THREE)

    def test_a_checkpoint_that_stays_under_way_keeps_the_ranks_from_beginning_again(self):
        hold = self.begin_with_a_disk_that_stands_still("unfinished", "--set", "checkpoint.give_up=2s")
        why = r"node 1 .*was lost after step \d+: .*; the workers cannot start again: an unfinished checkpoint cannot be written"
        self.assertRegex(self.finish_one(self.agents[1], status=7), why)
        hold.unlink()
        self.assertRegex(self.finish_one(self.agents[0], status=7), why)

    def test_one_that_is_lost_before_the_first_copy_begins_at_the_start(self):
        self.begin("early", TWO, "--set", "checkpoint.memory=1h")
        self.wait_for_step(self.agents[0], 3, "early")
        self.lose(1)
        self.agents[1] = self.again(1)
        self.assertIn("from step 0 (the start)", self.read_until(self.agents[0], "restarted: "))
        self.finish_all(TWO)

    def test_one_that_is_lost_while_checkpoints_are_written(self):
        self.begin("saving", TWO, "--set", "checkpoint.every=3")
        for at in (12, 40):
            self.wait_for_step(self.agents[0], at, "saving")
            self.lose(1)
            self.agents[1] = self.again(1)
            self.assertIn("which the partners of node 1 kept", self.read_until(self.agents[0], "restarted: "))
        self.finish_all(TWO)
        self.assertEqual(self.checkpoints("saving")[-1].name, f"step-{STEPS:08}")

    def test_one_that_does_not_come_back_ends_the_run(self):
        self.begin("gone", TWO, "--set", "checkpoint.partner={wait: 1s}", "--set", "steps=100000")
        self.wait_for_step(self.agents[0], 12, "gone")
        self.lose(1)
        output = self.finish_one(self.agents[0], status=7)
        self.assertRegex(output, r"node 1 .*was lost after step \d+: .*; it did not come back within 1s \(checkpoint.partner.wait\)")
        self.assertEqual(self.restarts("gone"), [])

    def test_two_that_are_lost_at_once_both_come_back(self):
        # Node 2's copy of node 1 is lost with node 2: they start from the beginning or from a checkpoint.
        self.begin("both", THREE, nodes=3)
        self.wait_for_step(self.agents[0], 12, "both")
        for node in (1, 2):
            self.lose(node)
        for node in (1, 2):
            self.agents[node] = self.again(node)
        self.assertIn("from step 0 (the start)", self.read_until(self.agents[0], "restarted: "))
        self.finish_all(THREE)

    def test_one_that_is_there_again_before_its_loss_is_noticed_waits(self):
        self.begin("quick", TWO, "--set", "supervise={heartbeat: 250ms, dead_after: 1500ms}")
        self.wait_for_step(self.agents[0], 12, "quick")
        old = self.agents[1]
        node = [*self.children(old.pid), old.pid]
        for pid in node:
            os.kill(pid, signal.SIGSTOP)  # its connections stay open
        self.agents[1] = self.again(1)
        self.assertIn("which the partners of node 1 kept", self.read_until(self.agents[0], "restarted: "))
        for pid in node:
            os.kill(pid, signal.SIGCONT)
        # It tries to join again. If it succeeds before the run ends, it is told that all steps are done.
        output, _ = old.communicate(timeout=PATIENCE)
        self.assertIn(old.returncode, (0, 7), output)
        self.assertRegex(output, "counts as lost|node 0 .* was lost")
        self.finish_all(TWO)

    def test_an_agent_with_another_job_does_not_come_back(self):
        self.begin("other", TWO)
        self.wait_for_step(self.agents[0], 12, "other")
        self.lose(1)
        self.assertRegex(self.read_until(self.agents[0], "start its agent again"),
                         r"node 1 \(.+\) is waited for up to 1m \(checkpoint\.partner\.wait\): start its agent again$")
        self.assertIn("has another job than node 0", self.finish_one(self.again(1, "--set", "seed=8"), status=7))
        self.agents[1] = self.again(1)
        self.read_until(self.agents[0], "restarted: ")
        self.finish_all(TWO)

    def test_node_0_that_is_lost_ends_the_run(self):
        self.begin("leader", TWO, "--set", "steps=100000")
        self.wait_for_step(self.agents[0], 12, "leader")
        self.lose(0)
        self.assertIn("node 0", self.finish_one(self.agents[1], status=7))


if __name__ == "__main__":
    unittest.main(verbosity=2)
