"""Ranks without progress are named within their deadline, and the run continues from memory. Ranks that are slow, stopped together,
or waiting for a disk are not named."""

import re
import unittest
import urllib.request

from restart_test import KILLED, RestartTest
from support import *

# A loaded machine may delay a process by more than this minimum: sleep and stops are judged, not delay.
QUICK = ["--set", "supervise.hang_minimum=1s"]
LONG = ["--set", "steps=100000", "--set", "evaluate.every=0", "--set", "checkpoint.every=0", "--set", "checkpoint.memory=2"]

# A rank that hangs: while the file named by the environment contains "NAME spin" or "NAME sleep", the main thread of process NAME
# does that at its next futex call in shared memory (to wait for or wake another rank) and never returns.
ENDLESS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
// Not <unistd.h>, which declares syscall() with other arguments.
long read(int, void*, unsigned long);
int close(int), getpid(void), pause(void);
static void come_to_no_end(const char* file) {
  char text[64] = {0}, name[16] = {0}, asked[64];
  const int fd = open(file, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const long n = read(fd, text, sizeof(text) - 1);
  close(fd);
  prctl(PR_GET_NAME, name);
  snprintf(asked, sizeof(asked), "%s spin", name);
  for (volatile int on = n > 0 && !strcmp(text, asked); on;) {}
  snprintf(asked, sizeof(asked), "%s sleep", name);
  while (n > 0 && !strcmp(text, asked)) pause();
}
long syscall(long number, long a, long b, long c, long d, long e, long f) {
  static long (*next)(long, long, long, long, long, long, long);
  if (!next) next = (__typeof__(next))dlsym(RTLD_NEXT, "syscall");
  const char* file = getenv("ENDLESS");
  if (file && number == SYS_futex && next(SYS_gettid, 0, 0, 0, 0, 0, 0) == getpid()) come_to_no_end(file);
  return next(number, a, b, c, d, e, f);
}
"""


# A rank that comes late: the process that calls itself what the environment names sleeps while the file of the environment is there.
LATE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
int prctl(int option, ...) {
  static int (*next)(int, unsigned long, unsigned long, unsigned long, unsigned long);
  if (!next) next = (__typeof__(next))dlsym(RTLD_NEXT, "prctl");
  va_list list;
  va_start(list, option);
  const unsigned long a = va_arg(list, unsigned long), b = va_arg(list, unsigned long), c = va_arg(list, unsigned long), d = va_arg(list, unsigned long);
  va_end(list);
  const char *late = getenv("LATE"), *file = getenv("LATE_HOLD");
  if (option == PR_SET_NAME && late && file && !strcmp((const char*)a, late))
    while (!access(file, F_OK)) usleep(100000);
  return next(option, a, b, c, d);
}
"""


class HangTest(RestartTest):
    def hangs(self, name):
        return [e for e in self.events(name) if e["event"] == "hang"]

    def pages(self, name):
        return [json.loads(p.read_text()) for p in sorted((self.root / name / "hangs").glob("*.json"))]

    def rank_pid(self, process, rank):
        return self.children(process.pid)[rank]

    def assert_calm(self, name):
        self.assertEqual((self.hangs(name), self.restarts(name), self.pages(name)), ([], [], []))


@sliced(6)
class OneNode(HangTest):
    @always
    def test_a_stopped_rank_is_named_within_its_deadline_and_the_losses_are_those_of_an_undisturbed_run(self):
        layout = ["--set", "parallel.tp=2", "--set", "parallel.dp=2", "--set", "batch.micro=1", "--set", "checkpoint.memory=2"]
        process = self.start(self.job("stopped", schedule=CONSTANT), *KILLED, *layout, *QUICK)
        address = re.search(r"http://(\S+)/metrics", self.read_until(process, "metrics at")).group(1)
        self.wait_for_step(process, 7, "stopped")
        pid = self.rank_pid(process, 3)
        with self.promptly(2 + 1):
            os.kill(pid, signal.SIGSTOP)
            line = self.read_until(process, r"rank 3 \(tp 1, dp 1\) (never|makes)")
        self.assertRegex(line, r"rank 3 \(tp 1, dp 1\) (never entered \w+ #\d+ '\w+' of group \w+|makes no progress); last seen in .* (of|after) step \d+, "
                               r"\d+\.\d s ago; its process is stopped by a signal")
        self.assertRegex(self.read_until(process, "restarted: "), r"restarted: rank 3 \(tp 1, dp 1\) .*from step \d+ \(snapshot in memory\)")
        self.assertFalse(alive(pid))
        self.assertRegex(scrape(address), r'trainerd_hangs_total\{kind="stopped"\} 1\n')
        self.assertRegex(scrape(address), r"trainerd_restarts_total 1\n")
        self.finish_one(process)
        self.assert_as_whole("stopped", *layout)
        [event], [page] = self.hangs("stopped"), self.pages("stopped")
        self.assertIn("rank 3 (tp 1, dp 1)", event["message"])
        self.assertRegex(event["details"][-1], r"^what all ranks did is in .*/stopped/hangs/hang-\d{8}\.json$")
        self.assertEqual((page["kind"], page["held_up_by"], page["message"]), ("stopped", [3], event["message"]))
        self.assertEqual([(r["rank"], r["process_state"] == "T") for r in page["ranks"]], [(0, False), (1, False), (2, False), (3, True)])
        for rank in page["ranks"]:
            self.assertGreaterEqual(len(rank["operations"]), 5)
            self.assertGreaterEqual(rank["step"], 7)
        self.assertIn("rank 3 (tp 1, dp 1)", (self.root / "stopped" / "report.html").read_text())

    def test_a_rank_alone_that_is_stopped_is_named_and_starts_again(self):
        process = self.start(self.job("alone", schedule=CONSTANT), *KILLED, *QUICK, "--set", "checkpoint.memory=2")
        self.wait_for_step(process, 7, "alone")
        with self.promptly(2 + 1):
            self.kill_worker(process, 0, signal.SIGSTOP)
            line = self.read_until(process, "rank 0 makes")
        self.assertRegex(line, r"rank 0 makes no progress; last seen in .*step \d+, \d+\.\d s ago; its process is stopped by a signal")
        self.finish_one(process)
        self.assert_as_whole("alone", "--set", "checkpoint.memory=2")

    def test_a_spinning_rank_is_distinguished_from_a_sleeping_one(self):
        layout = ["--set", "parallel.tp=2", "--set", "checkpoint.memory=2"]
        for how, kind, evidence in (("spin", "spinning", r"its process computes without progress, for \d+\.\d s of CPU time"),
                                    ("sleep", "asleep", r"its process sleeps, for \d+\.\d s"))[:2 if FULL else 1]:
            with self.subTest(how):
                asked = self.root / f"asked-{how}"
                process = self.start(self.job(how, schedule=CONSTANT), *KILLED, *layout, *QUICK,
                                     env={**self.preloaded("endless", ENDLESS), "ENDLESS": str(asked)})
                self.wait_for_step(process, 7, how)
                (self.root / "new").write_text(f"trainerd:rank 1 {how}")
                (self.root / "new").rename(asked)
                line = self.read_until(process, r"rank 1 \(tp 1\) (never|makes)")
                asked.unlink()
                self.assertRegex(line, r"rank 1 \(tp 1\) (never entered \w+ #\d+ '\w+' of group \w+|makes no progress); last seen in .* (of|after) step \d+, "
                                       rf"\d+\.\d s ago; {evidence}")
                self.finish_one(process)
                self.assert_as_whole(how, *layout)
                self.assertEqual([p["kind"] for p in self.pages(how)], [kind])

    @unittest.skipUnless(FULL, "faults_test.py has a stopped rank without restarts")
    def test_one_hang_more_than_restarts_ends_the_run_with_the_reason(self):
        process = self.start(self.job("often"), *LONG, *QUICK, "--set", "restarts=0", "--set", "parallel.dp=2")
        self.wait_for_step(process, 4, "often")
        self.kill_worker(process, 1, signal.SIGSTOP)
        output = self.finish_one(process, status=7)
        self.assertRegex(output, r"rank 1 \(dp 1\) .*its process is stopped by a signal.*; the last checkpoint is ")

    @unittest.skipUnless(FULL, "half a minute on a busy machine; HangLimits has the same in test_core")
    def test_without_a_factor_nothing_is_judged(self):
        process = self.start(self.job("off"), *LONG, "--set", "supervise.hang_factor=0", "--set", "parallel.dp=2")
        self.wait_for_step(process, 4, "off")
        self.kill_worker(process, 1, signal.SIGSTOP)
        last = self.settled("off")
        time.sleep(7)  # longer than the default deadline
        self.assertEqual(self.last_step("off"), last)
        self.assert_calm("off")
        self.kill_worker(process, 1, signal.SIGCONT)
        self.wait_for_step(process, last + 3, "off")
        process.send_signal(signal.SIGTERM)
        self.finish_one(process, status=143)

    def test_a_run_that_is_stopped_as_a_whole_goes_on_undisturbed(self):
        process = self.start(self.job("whole-stop"), *LONG, *QUICK, "--set", "parallel.dp=2")
        self.wait_for_step(process, 4, "whole-stop")
        every = [*self.children(process.pid), process.pid]
        for _ in range(3 if FULL else 1):
            for pid in every:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(3 if FULL else 1.5)  # more than the deadline
            for pid in reversed(every):  # the agent first, so that it sees its ranks stopped
                os.kill(pid, signal.SIGCONT)
            self.wait_for_step(process, self.last_step("whole-stop") + 3, "whole-stop")
        # Only the agent is stopped, as by Ctrl-Z on a terminal.
        process.send_signal(signal.SIGSTOP)
        time.sleep(3 if FULL else 1.5)  # more than the deadline
        process.send_signal(signal.SIGCONT)
        self.wait_for_step(process, self.last_step("whole-stop") + 3, "whole-stop")
        process.send_signal(signal.SIGTERM)
        self.finish_one(process, status=143)
        self.assert_calm("whole-stop")

    def test_an_evaluation_and_a_disk_that_stands_still_are_no_hangs(self):
        hold, environment = self.slow_disk()
        hold.write_text("step-")
        process = self.start(self.job("busy"), "--set", "steps=100000", "--set", "checkpoint.every=5", "--set", "checkpoint.async=false",
                             "--set", "evaluate.every=4", "--set", "evaluate.batches=2", "--set", "supervise.hang_minimum=1s",
                             "--set", "parallel.dp=2", env=environment)
        # The ranks wait for the agent, and the agent waits for the disk.
        self.wait_for_step(process, 5, "busy")
        time.sleep(4 if FULL else 2)
        self.assert_calm("busy")
        hold.unlink()
        self.wait_for_step(process, 12, "busy")
        process.send_signal(signal.SIGTERM)
        self.finish_one(process, status=143)
        self.assert_calm("busy")

    def test_a_worker_that_is_stopped_after_its_last_step_does_not_keep_the_run_from_its_end(self):
        hold, environment = self.slow_disk()
        hold.write_text("step-")
        process = self.start(self.job("last", schedule=CONSTANT), *KILLED, *QUICK, "--set", "parallel.dp=2", "--set", "checkpoint.every=0", env=environment)
        address = re.search(r"http://(\S+)/metrics", self.read_until(process, "metrics at")).group(1)

        self.wait_for_step(process, 1, "last")

        def states():
            with urllib.request.urlopen(f"http://{address}/status.json", timeout=PATIENCE) as reply:
                ranks = json.load(reply)["ranks"]
            return [ranks["names"][state] for state in ranks["state"]]

        self.wait_for(process, lambda: states() == ["finished", "finished"], "the end of both ranks' work")
        self.kill_worker(process, 1, signal.SIGSTOP)
        hold.unlink()
        self.finish_one(process)
        self.assert_calm("last")
        self.assert_as_whole("last", "--set", "parallel.dp=2", "--set", "checkpoint.every=0")

    def test_ranks_that_many_programs_starve_do_not_hang(self):
        process = self.start(self.job("starved"), *LONG, "--set", "supervise.hang_minimum=1s", "--set", "parallel.dp=2")
        self.wait_for_step(process, 3, "starved")
        burners = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(4 * (os.cpu_count() or 1))]
        try:
            first = self.last_step("starved")
            time.sleep(30 if FULL else 3)
            self.assertGreater(self.last_step("starved"), first)
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
        process.send_signal(signal.SIGTERM)
        self.finish_one(process, status=143)
        self.assert_calm("starved")


@sliced(4)
class Meeting(HangTest):
    def late(self):
        """(a file, the environment of a run whose rank 1 begins when the file is gone)"""
        hold = self.root / "hold"
        hold.write_text("")
        return hold, {**self.preloaded("late", LATE), "LATE": "trainerd:rank 1", "LATE_HOLD": str(hold)}

    def test_a_rank_that_does_not_come_is_named_and_the_run_waits_for_it(self):
        hold, env = self.late()
        agents = self.start_nodes(self.job("late", schedule=CONSTANT), *KILLED, "--set", "parallel.dp=2", *QUICK, env=env)
        line = self.read_until(agents[0], "has not come")
        self.assertRegex(line, r"rank 1 \(node 1, dp 1\) has not come to group \w+; last seen in its start, \d+\.\d s ago; its process sleeps, for \d+\.\d s; rank 0 waits for it")
        hold.unlink()
        self.finish(agents)
        [event], [page] = self.hangs("late"), self.pages("late")
        self.assertEqual((page["kind"], page["restart"], page["held_up_by"]), ("meet", False, [1]))
        self.assertIn("its deadline was 1.0 s", event["details"])
        self.assertEqual(self.restarts("late"), [])
        self.assert_as_whole("late", "--set", "parallel.dp=2")

    def test_on_one_node_too_and_a_signal_ends_what_waits(self):
        hold, env = self.late()
        process = self.start(self.job("alone-late", schedule=CONSTANT), *KILLED, "--set", "parallel.dp=2", *QUICK, env=env)
        line = self.read_until(process, "has not entered")
        self.assertRegex(line, r"rank 1 \(dp 1\) has not entered \w+ #1 '\w+' of group \w+; last seen in its start, .*; its process sleeps, .*; rank 0 waits for it")
        with self.promptly(5):
            process.send_signal(signal.SIGTERM)
            self.finish_one(process, status=143)

    def test_a_signal_to_either_agent_ends_both_while_their_ranks_meet(self):
        hold, env = self.late()
        for node in (0, 1):
            agents = self.start_nodes(self.job(f"signal-{node}", schedule=CONSTANT), *KILLED, "--set", "parallel.dp=2", *QUICK, env=env)
            self.read_until(agents[0], "has not come")
            with self.promptly(5):
                agents[node].send_signal(signal.SIGTERM)
                self.finish(agents, status=143)


class Stragglers(HangTest):
    @unittest.skipUnless(FULL, "three windows of 10 s; StragglerWatch has the rules in test_core")
    def test_a_slow_rank_is_named(self):
        slow = "[{kind: slow, step: 10, steps: 1000000, rank: 1, factor: 4}]"
        process = self.start(self.job("slow"), *LONG, "--set", "parallel.dp=2", "--set", f"faults={{allow: true, inject: {slow}}}")
        address = re.search(r"http://(\S+)/metrics", self.read_until(process, "metrics at")).group(1)
        self.wait_for(process, lambda: [e for e in self.events("slow") if e["event"] == "straggler"], "the straggler's event")
        [event] = [e for e in self.events("slow") if e["event"] == "straggler"]
        self.assertRegex(event["message"], r"^rank 1 \(dp 1\) is slow: it computes \d+% longer per step than the median of its pipeline stage "
                                           r"\(\d+\.\d ms against \d+\.\d ms\)$")
        self.assertRegex(scrape(address), r'trainerd_straggler_ratio\{rank="1"\} [0-9.]+\n')
        process.send_signal(signal.SIGTERM)
        self.finish_one(process, status=143)


@sliced(4)
class TwoNodes(HangTest):
    def test_the_rank_of_another_node_is_named_there_and_all_start_again(self):
        arguments = ["--set", "parallel.tp=2", "--set", "parallel.dp=2", "--set", "batch.micro=1", "--set", "checkpoint.memory=2", *QUICK]
        agents = self.start_nodes(self.job("nodes", schedule=CONSTANT), *KILLED, *arguments)
        self.wait_for_step(agents[0], 7, "nodes")
        with self.promptly(2 + 1):
            self.kill_worker(agents[1], 0, signal.SIGSTOP)
            self.wait_for(agents[0], lambda: self.hangs("nodes"), "the hang's event")
        [event] = self.hangs("nodes")
        self.assertRegex(event["message"], r"rank 2 \(node 1, tp 0, dp 1\) .*; last seen in .* (of|after) step \d+, .* s ago; its process is stopped by a signal")
        for output in self.finish(agents):
            self.assertRegex(output, r"restarted: rank 2 \(node 1, tp 0, dp 1\) .*\(snapshot in memory\)")
        self.assert_as_whole("nodes", *arguments)
        [page] = self.pages("nodes")
        self.assertEqual([(r["rank"], r["node"]) for r in page["ranks"]], [(0, 0), (1, 0), (2, 1), (3, 1)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
