"""Several agents on one host as the nodes of a job: they train like one node, join or name missing nodes, and end together."""

import errno
import re
import socket
import unittest

from support import *


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


LAYOUTS = {
    "tp2-dp2": ["parallel.tp=2", "parallel.dp=2", "batch.micro=1"],
    "tp2-dp2-zero3": ["parallel.tp=2", "parallel.dp=2", "batch.micro=1", "parallel.zero=3"],
    "tp2-pp2": ["parallel.tp=2", "parallel.pp=2", "batch.micro=1"],
    "dp2-pp2": ["parallel.dp=2", "parallel.pp=2", "batch.micro=1", "parallel.zero=0"],
    "hybrid": ["parallel.dp=4", "batch.micro=1", "parallel.zero_group=2", "parallel.zero=2"],
    # Gradients are sent in bf16, over TCP as in memory.
    "tp2-dp2-rounded": ["parallel.tp=2", "parallel.dp=2", "batch.micro=1", "parallel.zero=2", "precision={compute: bf16, reduce: bf16}"],
    "hybrid-rounded": ["parallel.dp=4", "batch.micro=1", "parallel.zero_group=2", "parallel.zero=3", "precision={reduce: bf16}"],
    # With several nodes gradients are first summed inside a node.
    "dp4": ["parallel.dp=4", "batch.micro=1"],
    "dp4-zero3": ["parallel.dp=4", "batch.micro=1", "parallel.zero=3"],
    "cp4": ["parallel.cp=4", "batch.micro=1", "parallel.zero=2"],
    # Tokens for experts cross the network.
    "ep4": ["parallel.dp=4", "parallel.ep=4", "batch.micro=1", "model.experts.count=4", "model.experts.per_token=2"],
}
TWO_LEVELS = ("dp4", "dp4-zero3", "cp4", "ep4")


class NodesTest(RunTest):
    def arguments(self, layout, *more):
        out = []
        for flag in [*LAYOUTS[layout], *more]:
            out += ["--set", flag]
        return out

    def start_node(self, job, node, port, *args, nodes=2, timeout=60, **kwargs):
        return self.start(job, "--nodes", str(nodes), "--node", str(node), "--rendezvous", f"127.0.0.1:{port}",
                          "--rendezvous-timeout", str(timeout), *args, **kwargs)

    def start_nodes(self, job, *args, nodes=2, env=None):
        port = free_port()
        return [self.start_node(job, node, port, *args, nodes=nodes, env=env) for node in range(nodes)]

    def finish(self, processes, status=0, timeout=PATIENCE):
        """Waits for all agents and checks their statuses. Returns their outputs."""
        outputs = [p.communicate(timeout=timeout)[0] for p in processes]
        for process, output in zip(processes, outputs):
            self.assertEqual(process.returncode, status, "\n----\n".join(outputs))
        return outputs


# A clock that is 35 s ahead.
AHEAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*next)(clockid_t, struct timespec*);
  if (!next) next = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int result = next(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += 35;
  return result;
}
"""


# While the file named by the environment exists, the main thread of an agent blocks where it looks at its ranks, after its timer.
BUSY = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
ssize_t read(int fd, void* to, size_t n) {
  const ssize_t got = syscall(SYS_read, fd, to, n);
  char name[64], target[64] = {0}, who[16] = {0};
  if (got != 8 || syscall(SYS_gettid) != getpid()) return got;
  prctl(PR_GET_NAME, who);
  snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
  if (!strcmp(who, "trainerd") && readlink(name, target, sizeof(target) - 1) > 0 && !strcmp(target, "anon_inode:[timerfd]"))
    while (access(getenv("BUSY"), F_OK) == 0) usleep(1000);
  return got;
}
"""


class Busy(NodesTest):
    def test_a_stalled_agent_that_still_beats_is_reported_and_not_lost(self):
        busy, port = self.root / "busy", free_port()
        environment = {**self.preloaded("busy-agent", BUSY), "BUSY": str(busy)}
        arguments = ["--set", "steps=1000000", "--set", "parallel.dp=2", "--set", "evaluate.every=0", "--set", "supervise={heartbeat: 250ms, dead_after: 1s}"]
        agents = [self.start_node(self.job(), node, port, *arguments, env=environment if node else None) for node in (0, 1)]
        self.wait_for_step(agents[0], 5)
        busy.touch()
        line = self.read_until(agents[0], "is alive")
        self.assertRegex(line, r"node 1 \(\S+\) is alive, but its agent has been busy for 1\.\d+ s: it may wait for a disk")
        busy.unlink()
        self.wait_for_step(agents[0], self.last_step() + 5)
        [event] = [e for e in self.events() if e["event"] == "warning" and "pre-flight" not in e["message"]]
        self.assertIn("node 1", event["message"])
        agents[0].send_signal(signal.SIGTERM)
        self.finish(agents, status=143)


class Preflight(NodesTest):
    def test_failing_storage_and_a_fast_clock_of_a_node_are_reported(self):
        rules, environment = self.failing_disk()
        rules.write_text(f"write {errno.EIO} .preflight-node-1\n")
        environment["LD_PRELOAD"] += ":" + self.preloaded("ahead", AHEAD)["LD_PRELOAD"]
        job, port = self.job(), free_port()
        arguments = self.arguments("tp2-dp2", "steps=6")
        self.finish([self.start_node(job, 0, port, *arguments), self.start_node(job, 1, port, *arguments, env=environment)])
        found = [e["message"] for e in self.events() if "pre-flight" in e.get("message", "")]
        # On a busy host a rank may also compute slowly.
        storage, clock = [message for message in found if "computes at" not in message]
        self.assertRegex(storage, r"^pre-flight: node 1 \(.+\): storage: .*/\.preflight-node-1-\w+: .*Input/output error")
        self.assertRegex(clock, r"^pre-flight: node 1 \(.+\): its clock is at least (\d+\.\d) s ahead of node 0's$")

    def test_without_it_nothing_is_looked_at(self):
        rules, environment = self.failing_disk()
        rules.write_text(f"write {errno.EIO} .preflight\n")
        self.run_job(self.job(), "--set", "steps=6", "--set", "supervise.preflight=false", env=environment)
        self.assertEqual([e for e in self.events() if "pre-flight" in e.get("message", "")], [])


@sliced(6)
class Training(NodesTest):
    @always
    def test_two_nodes_give_the_losses_of_one(self):
        for layout in list(LAYOUTS)[::1 if FULL else 2]:
            with self.subTest(layout):
                arguments = self.arguments(layout, "steps=10", *(["precision=fp32"] if layout in TWO_LEVELS else []))
                self.run_job(self.job(f"one-{layout}"), *arguments)
                outputs = self.finish(self.start_nodes(self.job(f"two-{layout}"), *arguments))
                one, two = self.losses(f"one-{layout}"), self.losses(f"two-{layout}")
                self.assertEqual([step for step, _ in two], list(range(1, 11)))
                if layout in TWO_LEVELS:  # another order of sums: the bound of layouts_test.py
                    for (step, a), (_, b) in zip(one, two):
                        self.assertAlmostEqual(float(a), float(b), delta=2e-5 * float(a), msg=f"step {step}")
                else:
                    self.assertEqual(two, one)
                self.assertEqual([p.name for p in self.checkpoints(f"two-{layout}")], ["step-00000005", "step-00000010"])
                self.assertIn("node 1 of 2 trains ranks 2 to 3", outputs[1])
                self.assertNotIn("step ", outputs[1].replace("time step", ""))

    def test_a_node_may_have_one_rank_and_there_may_be_three(self):
        layout = ["--set", "parallel.dp=3", "--set", "batch.micro=1", "--set", "batch.global=6", "--set", "steps=6"]
        self.run_job(self.job("one"), *layout)
        self.finish(self.start_nodes(self.job("three"), *layout, nodes=3))
        self.assertEqual(self.losses("three"), self.losses("one"))

    def test_what_two_nodes_saved_one_resumes_and_back(self):
        job = self.job("moved", schedule=CONSTANT)
        self.finish(self.start_nodes(job, *self.arguments("tp2-dp2", "steps=8")))
        verified = subprocess.run([BINARY, "checkpoint", "verify", self.checkpoints("moved")[-1]], capture_output=True, text=True)
        self.assertIn("4 shards", verified.stdout)
        self.assertIn("resuming from", self.run_job(job, *self.arguments("tp2-dp2", "steps=16")))
        self.assertIn("resuming from", self.finish(self.start_nodes(job, *self.arguments("tp2-dp2")))[0])
        self.run_job(self.job("whole", schedule=CONSTANT), *self.arguments("tp2-dp2"))
        self.assertEqual(self.losses("moved"), self.losses("whole"))
        done = self.finish(self.start_nodes(job, *self.arguments("tp2-dp2")))
        for output in done:
            self.assertIn("all 24 steps are done already", output)

    def test_a_missing_interface_is_reported(self):
        # Before the node waits for others, of which none comes.
        agent = self.start_node(self.job("card"), 0, free_port(), *self.arguments("tp2-dp2"), "--interface", "no-such-card0")
        [output] = self.finish([agent], status=7)
        self.assertIn("host no-such-card0 is not known here", output)
        self.assertNotIn("waits for the others", output)

    def test_a_stop_of_any_agent_stops_all_after_saving(self):
        # One agent, or all as a scheduler does. The batch is large, so that both signals come within a step.
        for signalled in ([0], [1], [1, 0], [0, 1]):
            name = "stopped" + "".join(map(str, signalled))
            agents = self.start_nodes(self.job(name), *self.arguments("dp4", "steps=100000", "checkpoint.every=0", "batch.global=128"))
            self.wait_for_step(agents[0], 2, name)
            for node in signalled:
                agents[node].send_signal(signal.SIGTERM)
                time.sleep(0.01)
            outputs = self.finish(agents, status=143)
            if len(signalled) == 2:
                self.assertRegex(outputs[0], r"SIGTERM(: the run is stopping already, by SIGTERM at node 1| at node 1 \(.+\): the run is stopping already, by SIGTERM)")
            last = self.steps(name)[-1]["step"]
            self.assertEqual([p.name for p in self.checkpoints(name)], [f"step-{last:08d}"])

    def test_the_time_limit_of_any_node_stops_all_after_saving(self):
        for limited in (0, 1):
            def attempt(name, seconds):
                job, port = self.job(name), free_port()
                args = self.arguments("dp4", "steps=1000000", "checkpoint.every=0")
                return self.finish([self.start_node(job, node, port, *args, *(["--max-time", f"{seconds}s"] if node == limited else []))
                                    for node in range(2)], status=143)

            name, outputs = self.within_a_limit(attempt)
            self.assertIn("stopped by the time limit", outputs[0])
            self.assertEqual([p.name for p in self.checkpoints(name)], [f"step-{self.last_step(name):08d}"])
            shutil.rmtree(self.root / name)

    def test_checkpoints_come_from_all_nodes_while_training_goes_on(self):
        for waits in ("true", "false"):
            name = f"async-{waits}"
            self.finish(self.start_nodes(self.job(name), *self.arguments("dp4", "checkpoint.every=1", f"checkpoint.async={waits}")))
            self.assertEqual([p.name for p in self.checkpoints(name)], [f"step-{n:08d}" for n in (22, 23, 24)])
            left = sorted(p.name for p in (self.root / name / "checkpoints").iterdir())
            self.assertEqual(left, [f"step-{n:08d}" for n in (22, 23, 24)])
            events = [json.loads(line) for line in (self.root / name / "events.jsonl").read_text().splitlines()]
            self.assertEqual([e["step"] for e in events if e["event"] == "checkpoint"], list(range(1, 25)))

    def test_a_node_with_a_failing_disk_is_named_and_delays_no_other(self):
        for waits in ("true", "false"):
            with self.subTest(f"async={waits}"):
                name = f"fails-{waits}"
                rules, environment = self.failing_disk()
                rules.unlink(missing_ok=True)
                port, job = free_port(), self.job(name)
                args = self.arguments("dp4", "steps=1000000", "checkpoint.every=2", f"checkpoint.async={waits}")
                agents = [self.start_node(job, node, port, *args, **({"env": environment} if node == 1 else {})) for node in (0, 1)]
                self.wait_for_checkpoint(agents[0], name)
                rules.write_text(f"write {errno.ENOSPC} shard-00003\n")  # the shard of node 1's second rank
                failed = self.wait_for(agents[0], lambda: [e for e in self.events(name) if "could not be written by node 1" in e.get("message", "")],
                                       "the failure is an event")
                self.assertIn("No space left", failed[0]["message"])
                self.wait_for_step(agents[0], self.steps(name)[-1]["step"] + 20, name)
                saved = self.checkpoints(name)[-1]
                rules.unlink()
                self.wait_for(agents[0], lambda: self.checkpoints(name)[-1] != saved, "a newer checkpoint")
                agents[0].send_signal(signal.SIGTERM)
                self.finish(agents, status=143)
                self.assertEqual(self.checkpoints(name)[-1].name, f"step-{self.steps(name)[-1]['step']:08d}")
                left = sorted(p.name for p in (self.root / name / "checkpoints").iterdir())
                self.assertEqual(left, [p.name for p in self.checkpoints(name)])

    @always
    def test_a_checkpoint_that_is_given_up_before_a_busy_agent_has_its_snapshot_blocks_no_rank(self):
        for slow in (0, 2):  # the leader, and a follower that hears of it from the leader
            with self.subTest(f"node {slow} is busy"):
                name, port, busy = f"busy-{slow}", free_port(), self.root / "busy"
                rules, failing = self.failing_disk()
                rules.unlink(missing_ok=True)
                environments = {slow: {**self.preloaded("busy-agent", BUSY), "BUSY": str(busy)}, 1: failing}
                args = ["--set", "steps=1000000", "--set", "parallel.dp=3", "--set", "batch.global=6", "--set", "batch.micro=1",
                        "--set", "checkpoint.every=2", "--set", "evaluate.every=0"]
                agents = [self.start_node(self.job(name), node, port, *args, nodes=3, env=environments.get(node)) for node in range(3)]
                self.wait_for_checkpoint(agents[0], name)
                rules.write_text(f"write {errno.ENOSPC} shard-00001\n")
                for _ in range(4):  # all ranks wait for segments, and node 1 gives snapshots up meanwhile
                    busy.touch()
                    time.sleep(0.4)
                    busy.unlink()
                    self.wait_for_step(agents[0], self.last_step(name) + 10, name)
                saved = self.checkpoints(name)[-1]
                rules.unlink()
                self.wait_for(agents[0], lambda: self.checkpoints(name)[-1] != saved, "a newer checkpoint")
                agents[0].send_signal(signal.SIGTERM)
                self.finish(agents, status=143)
                left = sorted(p.name for p in (self.root / name / "checkpoints").iterdir())
                self.assertEqual(left, [p.name for p in self.checkpoints(name)])

    def test_a_node_that_cannot_save_ends_the_job_after_its_time_to_give_up(self):
        rules, environment = self.failing_disk()
        port, job, args = free_port(), self.job("gives-up"), self.arguments("dp4", "steps=1000000", "checkpoint.give_up=500ms")
        agents = [self.start_node(job, node, port, *args, **({"env": environment} if node == 1 else {})) for node in (0, 1)]
        self.wait_for_checkpoint(agents[0], "gives-up")
        rules.write_text(f"write {errno.ENOSPC} shard-00002\n")
        for output in self.finish(agents, status=5):
            self.assertRegex(output, "could not be written in .*No space left")

    def test_a_node_serves_metrics_when_it_is_asked_to(self):
        port = free_port()
        discovery = self.root / "discovery"
        job, args = self.job("metrics"), self.arguments("dp4", "steps=100000", f"metrics.discovery={discovery}")
        first = self.start_node(job, 0, port, *args, "--interface", "lo")
        second = self.start_node(job, 1, port, *args, "--interface", "localhost", "--metrics-listen", "127.0.0.1:0")
        address = None
        for line in second.stdout:
            if found := re.search(r"http://([0-9.]+:[0-9]+)/metrics", line):
                address = found.group(1)
                break
        self.assertIsNotNone(address)
        self.wait_for_step(first, 3, "metrics")
        self.wait_for(second, lambda: re.search(r"^trainerd_step [1-9]", scrape(address), re.M), "node 1 has a step")
        found = [json.loads(p.read_text())[0] for p in discovery.glob("*.json")]
        self.assertEqual(sorted((t["labels"]["run"], t["labels"]["node"]) for t in found), [("system", "0"), ("system", "1")])
        [target] = [t for t in found if t["labels"]["node"] == "1"]
        self.assertEqual(target["targets"], [address])
        first.send_signal(signal.SIGTERM)
        self.finish([first, second], status=143)
        self.assertEqual(list(discovery.iterdir()), [])


@sliced(4)
class Meeting(NodesTest):
    def test_a_node_that_does_not_come_is_named_to_all_within_the_deadline(self):
        port = free_port()
        job, args = self.job("missing"), ["--set", "parallel.dp=3", "--set", "batch.global=6"]
        agents = [self.start_node(job, node, port, *args, nodes=3, timeout=1.5) for node in (0, 2)]
        for output in self.finish(agents, status=7):
            self.assertRegex(output, r"of 3 nodes these did not come .* in 1\.5 s: node 1;")
        self.assertFalse((self.root / "missing" / "steps.jsonl").exists())

    def test_when_node_0_does_not_come_it_is_named(self):
        output, = self.finish([self.start_node(self.job("alone"), 1, free_port(), *self.arguments("dp4"), timeout=1)], status=7)
        self.assertRegex(output, r"node 0 did not come to the rendezvous at 127\.0\.0\.1:\d+ in 1 s")

    def test_the_time_limit_holds_while_a_node_waits_for_the_others(self):
        for node in (0, 1):
            output, = self.finish([self.start_node(self.job("limited"), node, free_port(), *self.arguments("dp4"), "--max-time", "1s", timeout=600)], status=143)
            self.assertIn("the time limit", output)
            self.assertNotIn("did not come", output)

    def test_agents_that_disagree_are_refused_by_name(self):
        args = self.arguments("dp4")

        def refused(name, second, *patterns, nodes=2):
            port = free_port()
            job = self.job(name)
            first = self.start_node(job, 0, port, *args, nodes=2)
            for output in self.finish([first, *second(job, port)], status=2):
                for pattern in patterns:
                    self.assertRegex(output, pattern)
            self.assertFalse((self.root / name / "steps.jsonl").exists())

        refused("seed", lambda job, port: [self.start_node(job, 1, port, *args, "--set", "seed=8")],
                r"node 1 \(.*\) has another job than node 0", "'seed: 8' there, 'seed: 7' at node 0")
        refused("count", lambda job, port: [self.start_node(job, 1, port, *args, nodes=4)],
                r"node 1 \(.*\) was started as one of 4 nodes, and node 0 \(.*\) as one of 2")
        port, job = free_port(), self.job("twice")
        three = ["--set", "parallel.dp=3", "--set", "batch.global=6"]
        agents = [self.start_node(job, node, port, *three, nodes=3) for node in (0, 1, 1)]
        for output in self.finish(agents, status=2):
            self.assertIn("two agents say that they are node 1", output)

    def test_an_agent_that_comes_to_a_running_job_is_turned_away_and_the_job_goes_on(self):
        port, job, args = free_port(), self.job("late"), self.arguments("dp4", "steps=100000")
        agents = [self.start_node(job, node, port, *args) for node in (0, 1)]
        self.wait_for_step(agents[0], 2, "late")
        self.assertIn("runs already", self.finish([self.start_node(job, 1, port, *args)], status=7)[0])
        with socket.create_connection(("127.0.0.1", port)) as s:  # a foreign connection
            s.sendall(b"GET / HTTP/1.1\r\n\r\n")
            self.assertEqual(s.recv(100), b"")
        self.wait_for_step(agents[0], self.steps("late")[-1]["step"] + 2, "late")
        token = self.root / "late" / ".token"
        self.assertEqual(token.stat().st_mode & 0o777, 0o600)
        agents[1].send_signal(signal.SIGTERM)
        output, _ = self.finish(agents, status=143)
        self.assertRegex(output, r"node 1 \(.*\) wants to join the job: it is turned away: the job runs already, with a node of each number; end it before")
        self.assertFalse(token.exists())

    def test_a_node_without_the_shared_output_directory_is_reported(self):
        job = self.job("apart")
        places = [self.root / f"place{node}" for node in (0, 1)]

        def apart(status, **environment):
            port = free_port()
            return self.finish([self.start_node(job, node, port, *self.arguments("dp4", "output=out"), cwd=place, timeout=8 - 6 * node,
                                                env={**os.environ, **environment}) for node, place in enumerate(places)], status)

        for place in places:
            place.mkdir()
        output = apart(7)[1]
        self.assertRegex(output, r"node 0 is there, but it has left no token for the others")
        self.assertRegex(output, r"node 0 did not come .*it has left no token for the others in out/\.token; set `output` to a directory")
        for output in apart(2, TRAINERD_TOKEN="one token for both nodes"):
            self.assertIn("does not see node 0's output directory out", output)

    def test_agents_with_different_tokens_do_not_meet(self):
        port, job = free_port(), self.job("strangers")
        agents = [self.start_node(job, node, port, *self.arguments("dp4"), timeout=6 - 4 * node,
                                  env={**os.environ, "TRAINERD_TOKEN": f"this is the token of node {node}"}) for node in (0, 1)]
        first, second = self.finish(agents, status=7)
        self.assertIn("these did not come", first)
        self.assertRegex(first, r"dropped a connection from 127\.0\.0\.1: it left the exchange of proofs, as a node with another token does")
        self.assertIn("a job with another token", second)
        self.assertRegex(second, r"\[warning\] node 0 is there, but .* another token")
        for output in (first, second, (self.root / "strangers" / "starts.jsonl").read_text() if (self.root / "strangers").exists() else ""):
            self.assertNotIn("this is the token", output)
        self.assertIn("TRAINERD_TOKEN holds a token of 5 characters",
                      self.finish([self.start_node(job, 0, port, *self.arguments("dp4"), env={**os.environ, "TRAINERD_TOKEN": "short"})],
                                  status=2)[0])

    def test_a_signal_ends_the_wait_for_others(self):
        port, job = free_port(), self.job("waits")
        for node in (0, 1):
            waiting = self.start_node(job, node, port, *self.arguments("dp4"))
            for line in waiting.stdout:
                if "node" in line:
                    break
            waiting.send_signal(signal.SIGTERM)
            self.assertRegex(self.finish([waiting], status=143)[0], ("SIGTERM: stopped while node 0 waited for node 1", "SIGTERM: stopped before node 0 was reached")[node])

    def test_an_agent_that_leaves_before_all_have_met_is_named(self):
        port, job, three = free_port(), self.job("left"), ["--set", "parallel.dp=3", "--set", "batch.global=6"]
        first, second = (self.start_node(job, node, port, *three, nodes=3) for node in (0, 1))
        self.read_until(second, "node 1 of 3 joins")
        token = self.root / "left" / ".token"
        self.wait_for(first, token.exists, "it serves")
        time.sleep(0.5)  # it joins, which no output shows
        second.kill()
        self.assertRegex(self.read_until(first, "rendezvous: its agent"), r"node 1 \(.+\) left the rendezvous: its agent has ended or its host is out of reach")
        first.send_signal(signal.SIGTERM)
        self.finish([first], status=143)

    def test_a_sigquit_to_any_agent_ends_all_at_once(self):
        agents = self.start_nodes(self.job("quit"), *self.arguments("tp2-dp2", "steps=1000000"))
        self.wait_for_step(agents[0], 3, "quit")
        agents[1].send_signal(signal.SIGQUIT)
        self.assertIn("SIGQUIT: stopping at once", self.finish([agents[1]], status=131)[0])
        self.assertRegex(self.finish([agents[0]], status=7)[0], r"trainerd: node 1 \(.+\): stopped at once by SIGQUIT; the last checkpoint is ")

    def test_what_is_missing_or_contradicts_is_status_2(self):
        job = self.job("wrong")
        dp4 = self.arguments("dp4")

        def wrong(pattern, *args, env=None):
            self.assertRegex(self.run_job(job, *dp4, *args, status=2, env={**os.environ, **(env or {})}), pattern)

        wrong("nothing says which this one is: start with srun, or give --node", "--nodes", "2")
        wrong("nothing says where they meet: give --rendezvous", "--nodes", "2", "--node", "1")
        wrong("--node 2: the job is for 2 nodes", "--nodes", "2", "--node", "2", "--rendezvous", "h:1")
        wrong("--rendezvous: expected host:port", "--nodes", "2", "--node", "1", "--rendezvous", "h")
        wrong("cannot be divided evenly among 3 nodes", "--nodes", "3", "--node", "1", "--rendezvous", "h:1")
        step = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_NODEID": "1", "SLURM_JOB_ID": "12",
                "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
        wrong("the Slurm step has 2 nodes and the job is for 1 node", "--nodes", "1", env=step)
        wrong("4 tasks on 2 nodes", "--nodes", "2", env={**step, "SLURM_STEP_NUM_TASKS": "4"})
        wrong("SLURM_JOB_ID is 'x'", "--nodes", "2", env={**step, "SLURM_JOB_ID": "x"})
        wrong(r"'gpu\[07' is no list of hosts", "--nodes", "2", env={**step, "SLURM_STEP_NODELIST": "gpu[07"})


@sliced(4)
class Failures(NodesTest):
    def test_a_node_with_a_killed_agent_is_named_and_every_process_ends(self):
        for victim in (0, 1):
            name = f"victim{victim}"
            agents = self.start_nodes(self.job(name), *self.arguments("tp2-dp2", "steps=100000"))
            self.wait_for_step(agents[0], 6, name)
            workers = [pid for agent in agents for pid in self.children(agent.pid)]
            self.assertEqual(len(workers), 4)
            agents[victim].kill()
            survivor = agents[1 - victim]
            output, _ = survivor.communicate(timeout=PATIENCE)
            self.assertEqual(survivor.returncode, 7, output)
            self.assertRegex(output, rf"node {victim} (\(.*\) )?was lost")
            end = time.monotonic() + PATIENCE
            while any(alive(pid) for pid in workers) and time.monotonic() < end:
                time.sleep(0.01)
            self.assertEqual([pid for pid in workers if alive(pid)], [])

    def test_a_killed_worker_of_any_node_is_named_to_all(self):
        for node in (0, 1):
            name = f"worker{node}"
            agents = self.start_nodes(self.job(name), *self.arguments("tp2-dp2", "steps=100000", "restarts=0"))
            self.wait_for_step(agents[0], 3, name)
            pid = self.children(agents[node].pid)[1]
            os.kill(pid, signal.SIGKILL)
            for output in self.finish(agents, status=7):
                self.assertRegex(output, rf"rank {2 * node + 1} \(pid {pid}\) ended by signal 9")

    def test_an_error_of_a_rank_on_another_node_is_the_one_reported_by_all(self):
        agents = self.start_nodes(self.job("data"), *self.arguments("dp4", "steps=100000"))
        self.wait_for_step(agents[0], 3, "data")
        os.truncate(self.data, 100)
        for output in self.finish(agents, status=4):
            self.assertIn("data.txt", output)

    def test_a_killed_job_of_two_nodes_goes_on_bit_for_bit(self):
        self.run_job(self.job("whole"), *self.arguments("tp2-dp2"))
        job = self.job("killed")
        agents = self.start_nodes(job, *self.arguments("tp2-dp2"))
        self.wait_for_step(agents[0], 8, "killed")
        self.wait_for_checkpoint(agents[0], "killed")
        agents[1].kill()
        for agent in agents:
            agent.communicate(timeout=PATIENCE)
        self.finish(self.start_nodes(job, *self.arguments("tp2-dp2")))
        self.assertEqual(self.losses("killed"), self.losses("whole"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
