"""Runs with random faults: the plan drawn from a seed, the agents of one run and faults from outside, and the cost of each fault
from the run's records."""

import pathlib
import re
import statistics
import sys

from support import *
from support import seconds_without_core

# Layouts: ranks and settings. Each has bit for bit the losses of one node (nodes_test.py).
LAYOUTS = {
    "one": (1, ["parallel.dp=1"]),
    "dp2-zero0": (2, ["parallel.dp=2", "parallel.zero=0"]),
    "dp2-zero1": (2, ["parallel.dp=2", "parallel.zero=1"]),
    "dp2-zero2": (2, ["parallel.dp=2", "parallel.zero=2"]),
    "dp2-zero3": (2, ["parallel.dp=2", "parallel.zero=3"]),
    "tp2": (2, ["parallel.tp=2"]),
    "pp2": (2, ["parallel.pp=2"]),
    "tp2-dp2": (4, ["parallel.tp=2", "parallel.dp=2", "batch.micro=1"]),
    "tp2-dp2-zero3": (4, ["parallel.tp=2", "parallel.dp=2", "batch.micro=1", "parallel.zero=3"]),
    "dp2-pp2": (4, ["parallel.dp=2", "parallel.pp=2", "batch.micro=1", "parallel.zero=0"]),
    "dp3-zero0": (3, ["parallel.dp=3", "batch.global=6", "batch.micro=1", "parallel.zero=0"]),
    "dp3-zero1": (3, ["parallel.dp=3", "batch.global=6", "batch.micro=1"]),
    "dp3-zero3": (3, ["parallel.dp=3", "batch.global=6", "batch.micro=1", "parallel.zero=3"]),
    "pp3": (3, ["parallel.pp=3", "model.layers=3"]),
    "tp2-dp3": (6, ["parallel.tp=2", "parallel.dp=3", "batch.global=6", "batch.micro=1"]),
}
# Layouts in which `hash_every` finds flipped bits: every rank's state has a replica.
COPIED = ("dp2-zero0", "dp2-pp2", "dp3-zero0")
STEPS = 300 if FULL else 160  # steps of a layout's undisturbed run; other runs have at most as many
DEAD, HANG = 2.0, 1.5
BASE = [f"supervise={{hang_minimum: {HANG}s}}", "evaluate.every=0", "restarts=1000", "metrics.listen=off", "checkpoint.keep=4"]
BEATS = [f"supervise={{hang_minimum: {HANG}s, heartbeat: 250ms, dead_after: {DEAD}s}}", *BASE[1:]]

# Kinds of `faults` and faults from outside, with their weights in the draw.
ANY = {"kill": 6, "crash": 3, "stop": 1, "hang": 1, "slow": 2, "flip_checkpoint": 1, "fill_disk": 1}
OUTSIDE = {"SIGKILL worker": 6, "SIGKILL two workers": 2, "SIGSTOP worker": 1, "pause worker": 1, "pause agent": 1}
NODES = {"kill_agent": 2, "drop_link": 1, "SIGKILL agent": 3, "SIGSTOP agent": 1, "SIGKILL worker and agent": 1}
LEADER = {"SIGKILL leader": 1}
FLIPS = {"flip_parameter": 1, "flip_gradient": 1}
# Kinds after which training continues without a restart.
HANGS = ("stop", "hang", "SIGSTOP worker")
CALM = ("slow", "flip_checkpoint", "fill_disk", "fail_store", "pause worker", "pause agent")


def draw(rng, weights):
    return rng.choices(list(weights), list(weights.values()))[0]


class Plan:
    """The plan of a run, drawn from a seed."""

    def __init__(self, seed, count):
        rng = self.rng = random.Random(seed)
        self.seed = seed
        self.nodes = rng.choice((1, 1, 2, 3))
        # Each node has as many ranks as the others and tp stays inside a node; three nodes have layouts of their own.
        self.layout = rng.choice([name for name, (ranks, _) in LAYOUTS.items()
                                  if ranks % self.nodes == 0 and (ranks % 3 == 0) == (self.nodes == 3) and (self.nodes == 1 or name != "tp2")])
        self.every = rng.choice((2, 5, 10))  # steps between checkpoints
        self.ranks = LAYOUTS[self.layout][0]
        self.memory = rng.choice((1, 2, 2, 4, 0))
        self.partner = self.nodes > 1 and self.memory > 0 and rng.random() < 0.7
        self.spare = self.nodes > 1 and rng.random() < 0.4
        self.durable = rng.random() < 0.3
        self.hashes = self.layout in COPIED
        weights = {**ANY, **OUTSIDE}
        if self.nodes > 1:
            weights.update(NODES)
        weights.update(LEADER)
        if self.hashes:
            weights.update(FLIPS)
        if self.durable:
            weights["fail_store"] = 2
        if self.ranks > 1:
            weights["reset_link"] = 2
        self.faults, step = [], 4
        for _ in range(count):
            step += rng.randrange(5, 16)
            if step > STEPS - 60:  # one fault may take 31 steps, and a wrong message and the end follow
                break
            kind = draw(rng, weights)
            rank = rng.randrange(self.ranks)
            if kind in ("kill_agent", "drop_link") and self.nodes > 1:  # node 0's agent is "SIGKILL leader"
                rank = rng.randrange(self.ranks // self.nodes, self.ranks)
            self.faults.append({"kind": kind, "step": step, "rank": rank})
            if kind in ("drop_link", "SIGSTOP agent"):  # the ranks continue until the fault is detected
                self.faults.append({"kind": "slow", "step": step + 1, "rank": 0, "steps": 30, "factor": 30})
                step += 31
            if kind == "pause agent" and self.nodes > 1:  # what it reads late is of checkpoints that another node gives up
                other = (rank * self.nodes // self.ranks + 1) % self.nodes
                self.faults.append({"kind": "fill_disk", "step": step, "rank": other * self.ranks // self.nodes})
        # A message that is wrong in the same way for all ranks changes all later losses, so it comes last.
        self.wrong_from = None
        if self.ranks > 1 and rng.random() < 0.15:
            step += 5
            self.faults.append({"kind": "flip_message", "step": step, "rank": rng.randrange(self.ranks)})
            self.wrong_from = step
        self.steps = step + rng.randrange(6, 14)

    def copied(self):
        """Whether all of a lost node's state is on another: its partner has it, or a replica does (ZeRO 0)."""
        return self.nodes == 1 or self.partner or self.layout in ("dp2-zero0", "dp3-zero0")

    def inside(self):
        own = []
        for fault in self.faults:
            if "SIG" in fault["kind"] or "pause" in fault["kind"]:
                continue
            fault = dict(fault)
            if fault["kind"] == "slow":
                fault = {"steps": 2, "factor": 3, **fault}
            if fault["kind"] in ("drop_link", "fill_disk", "fail_store"):
                fault["seconds"] = 0.3 if fault["kind"] != "drop_link" else 2 * DEAD
            own.append(fault)
        return own

    def outside(self):
        return [f for f in self.faults if "SIG" in f["kind"] or "pause" in f["kind"]]

    def arguments(self, root, name):
        flags = [*(BASE if self.nodes == 1 else BEATS), *LAYOUTS[self.layout][1], f"steps={self.steps}", f"checkpoint.every={self.every}",
                 "faults=" + json.dumps({"allow": True, "inject": self.inside()})]
        if self.memory:
            flags.append(f"checkpoint.memory={self.memory}")
        if self.partner:
            flags.append("checkpoint.partner={wait: 60s}")
        if self.spare:
            flags.append("cluster.failures.spares=1")
        if self.hashes:
            flags.append("supervise.hash_every=1")
        if self.durable:
            flags += [f"checkpoint.durable.to={root / (name + '-durable')}", f"checkpoint.durable.every={self.every}"]
        return [word for flag in flags for word in ("--set", flag)]

    def __str__(self):
        what = [f"{self.nodes} node{'s' * (self.nodes > 1)}", self.layout, f"every {self.every}", f"memory {self.memory}"]
        what += [word for word in ("partner", "spare", "durable") if getattr(self, word)]
        return f"seed {self.seed}: {', '.join(what)}; " + ", ".join(f"{f['kind']} at {f['step']}/{f['rank']}" for f in self.faults)


class Driver:
    """Starts and restarts the agents of one run, as a user or scheduler does, and injects faults from outside."""

    def __init__(self, test, plan, name, port):
        self.test, self.plan, self.name, self.port = test, plan, name, port
        self.agents = [None] * (plan.nodes + plan.spare)
        self.old = []      # replaced agents that are stopped or ending
        self.wake = []     # (when, pid)
        self.pids = []     # pids of all agents, which are their sessions' ids
        self.done = []     # (fault, when) of faults from outside
        self.waited = []   # (when, total time until then in which some process had no core)
        self.starts = 0
        self.todo = sorted(plan.outside(), key=lambda f: f["step"])
        self.log = (test.root / f"{name}.out").open("a+")

    def start(self, node):
        p = self.plan
        words = [BINARY, "run", self.test.root / f"{self.name}.yaml"]
        if p.nodes > 1:
            words += ["--nodes", str(p.nodes), "--node", str(node), "--rendezvous", f"127.0.0.1:{self.port}", "--rendezvous-timeout", "60"]
        words += p.arguments(self.test.root, self.name)
        self.starts += 1
        self.log.write(f"--- {time.time():.3f} start of node {node}\n")
        self.log.flush()
        agent = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)
        self.pids.append(agent.pid)
        agent.begun = time.monotonic()
        return agent

    def run(self, seconds):
        """Runs until the run is done."""
        end = time.monotonic() + seconds
        self.agents = [self.start(node) for node in range(len(self.agents))]
        while True:
            if time.monotonic() > end:
                raise AssertionError(f"the run is not done within {seconds} s")
            if self.starts > 4 * len(self.plan.faults) + 40:
                raise AssertionError(f"agents were started {self.starts} times")
            self.wake_up()
            self.waited.append((time.time(), seconds_without_core()))
            first = self.agents[0].poll()
            if first == 0:
                self.end_all()
                return
            if first in (2, 3, 6):  # statuses that no fault causes
                raise AssertionError(f"the run has ended with status {first}")
            if first is not None:
                self.end_all()
                self.agents = [self.start(node) for node in range(len(self.agents))]
                continue
            for node, agent in enumerate(self.agents[1:], 1):  # without a partner or a spare, the leader ends too
                if agent.poll() not in (None, 0) and (self.plan.partner or self.plan.spare):
                    self.agents[node] = self.start(node)
            if self.todo and self.test.last_step(self.name) >= self.todo[0]["step"]:
                self.act(self.todo.pop(0))
            time.sleep(0.01)

    def waited_between(self, begin, end):
        """Seconds in which some process had no core, including the loop's iterations around; None if the kernel does not report
        it."""
        before = [waited for when, waited in self.waited if when <= begin] or [self.waited[0][1]]
        after = [waited for when, waited in self.waited if when >= end] or [seconds_without_core()]
        return None if before[-1] is None else after[0] - before[-1]

    def wake_up(self, everything=False):
        for when, pid in list(self.wake):
            if everything or time.monotonic() > when:
                self.wake.remove((when, pid))
                signal_quietly(pid, signal.SIGCONT)

    def end_all(self):
        """The leader has ended: waits for the other agents. Those that came too late to join wait for another leader and are
        killed."""
        end = time.monotonic() + PATIENCE
        for agent in [*self.agents, *self.old]:
            if agent.begun > end - PATIENCE - 5:
                agent.kill()
            while agent.poll() is None:
                self.wake_up(everything=True)
                if time.monotonic() > end:
                    raise AssertionError("an agent does not end after its leader")
                time.sleep(0.01)
        self.old = []

    def workers(self):
        """The workers that exist, by rank."""
        found = []
        for agent in self.agents[:self.plan.nodes]:
            try:
                found += RunTest.children(agent.pid)
            except FileNotFoundError:
                pass
        return found

    def act(self, fault):
        kind, workers = fault["kind"], self.workers()
        if "worker" in kind and not workers:
            return self.todo.insert(0, fault)  # the workers are just starting
        self.done.append((fault, time.time()))
        self.log.write(f"--- {time.time():.3f} {kind}\n")
        self.log.flush()
        follower = 1 + fault["rank"] % max(1, self.plan.nodes - 1)
        victim = workers[fault["rank"] % len(workers)] if workers else None
        if kind == "pause worker":
            signal_quietly(victim, signal.SIGSTOP)
            self.wake.append((time.monotonic() + 0.2, victim))
        elif kind == "pause agent":
            agent = self.agents[fault["rank"] * self.plan.nodes // self.plan.ranks]
            signal_quietly(agent.pid, signal.SIGSTOP)
            self.wake.append((time.monotonic() + DEAD / 4, agent.pid))
        elif kind == "SIGSTOP worker":
            signal_quietly(victim, signal.SIGSTOP)
        elif kind == "SIGKILL worker":
            signal_quietly(victim, signal.SIGKILL)
        elif kind == "SIGKILL two workers":
            for pid in {victim, workers[(fault["rank"] + 1) % len(workers)]}:
                signal_quietly(pid, signal.SIGKILL)
        elif kind == "SIGKILL leader":
            signal_quietly(self.agents[0].pid, signal.SIGKILL)
        elif kind == "SIGKILL worker and agent":
            signal_quietly(self.workers()[0], signal.SIGKILL)
            signal_quietly(self.agents[follower].pid, signal.SIGKILL)
        elif kind == "SIGKILL agent":
            signal_quietly(self.agents[follower].pid, signal.SIGKILL)
        elif kind == "SIGSTOP agent":
            # Another agent takes its place. The stopped one is woken later and must end by itself.
            old = self.agents[follower]
            signal_quietly(old.pid, signal.SIGSTOP)
            self.old.append(old)
            self.wake.append((time.monotonic() + 3 * DEAD, old.pid))
            if self.plan.partner or self.plan.spare:
                self.agents[follower] = self.start(follower)
        else:
            raise AssertionError(kind)

    def kill_all(self):
        for pid in self.pids:
            for member in session(pid):
                signal_quietly(member, signal.SIGKILL)
        for agent in [*self.agents, *self.old]:
            if agent is not None:
                agent.wait()

    def output(self):
        self.log.flush()
        return (self.test.root / f"{self.name}.out").read_text()[-20000:]


def signal_quietly(pid, signum):
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass


def session(pid):
    """The live processes of the session that process `pid` started."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def costs(plan, driver, events):
    """Per fault that happened: (kind, its cost). Effects of a fault are the events before the next fault."""
    happened = [(fault["kind"], when) for fault, when in driver.done]
    for e in events:
        if e["event"] == "injected":
            happened.append((kind_of(plan, e["message"]), e["wall_time"]))
    happened.sort(key=lambda h: h[1])
    found = []
    for i, (kind, when) in enumerate(happened):
        until = happened[i + 1][1] if i + 1 < len(happened) else float("inf")
        after = [e for e in events if when - 0.01 <= e["wall_time"] < until + 0.01]
        cost = {}
        if kind not in CALM:
            recovered = next((e for e in after if e["event"] == "recovered"), None)
            restart = next((e for e in after if e["event"] == "restart"), None)
            corrupt = next((e for e in after if e["event"] == "corruption"), None)
            hang = next((e for e in after if e["event"] == "hang"), None)
            if corrupt and kind in FLIPS:
                cost["detect"] = corrupt["wall_time"] - when
            if recovered and restart:
                r = recovered["recovery"]
                from_disk = plan.memory > 0 and "checkpoint " in restart["message"].rsplit("(", 1)[-1]
                cost = {"detect": max(0.0, r["noticed"] - when), "recover": r["noticed"] - when + r["total_seconds"],
                        "groups": r["groups_seconds"], "disk": from_disk, "copied": from_disk and plan.copied()}
            if hang and kind in HANGS:
                deadline = next(float(m[1]) for line in hang["details"] if (m := re.fullmatch(r"its deadline was (\d+\.\d) s", line)))
                cost["over"] = hang["wall_time"] - when - deadline
                cost["excused"] = driver.waited_between(when, hang["wall_time"])
                cost["deadline"] = deadline
        found.append((kind, cost))
    return found


PHRASES = (("to the other ranks close", "reset_link"), ("is killed", "kill"), ("crashes", "crash"), ("is stopped", "stop"), ("computes for ever", "hang"), ("times as long", "slow"),
           ("of the gradient of", "flip_gradient"), ("sends in", "flip_message"), ("shard-", "flip_checkpoint"), ("do not reach each other", "drop_link"),
           ("no space for checkpoints", "fill_disk"), ("in the durable tier", "fail_store"), ("bit ", "flip_parameter"))


def kind_of(plan, message):
    if "the agent of rank" in message and "is killed" in message:
        return "kill_agent"
    return next(kind for phrase, kind in PHRASES if phrase in message)


def print_table(found, file=sys.stderr):
    """Prints one line per kind: the number of faults and their costs."""
    def numbers(costs, key):
        values = [c[key] for c in costs if key in c]
        return f"{statistics.median(values):7.2f} {max(values):7.2f}" if values else f"{'-':>7} {'-':>7}"

    print(f"{'fault':26} {'count':>6} {'detected':>15} {'over its deadline':>17} {'recovered':>15} {'groups':>15} {'disk read':>9} {'though copied':>13}   (seconds: median, most; of runs with checkpoint.memory)",
          file=file)
    for kind in sorted({k for k, _ in found}):
        of = [c for k, c in found if k == kind]
        disk, copied = (sum(c.get(key, False) for c in of) for key in ("disk", "copied"))
        print(f"{kind:26} {len(of):6} {numbers(of, 'detect')} {numbers(of, 'over'):>17} {numbers(of, 'recover')} {numbers(of, 'groups')} {disk:9} {copied:13}", file=file)
    print(f"{'all':26} {len(found):6}", file=file, flush=True)
