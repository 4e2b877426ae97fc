"""The output and log of `trainerd run`. A run does not depend on a reader."""

import fcntl
import pathlib
import pty
import re
import resource
import unittest

from support import *


@sliced(4)
class Unread(RunTest):
    """Runs whose output is not read."""

    # Hundreds of bytes per step, with an evaluation and a checkpoint in each.
    TALKATIVE = ("--set", "steps=100000", "--set", "evaluate.every=1", "--set", "checkpoint.every=1")

    def start_into(self, descriptor, job, *args):
        process = subprocess.Popen([BINARY, "run", job, *args], stdout=descriptor, stderr=descriptor)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        os.close(descriptor)
        return process

    def full_pipe(self):
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        return read_end, write_end

    def check_that_it_trains_and_stops(self, process):
        self.wait_for_step(process, 100)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=PATIENCE), 143)
        self.assertEqual(self.checkpoints()[-1].name, f"step-{self.steps()[-1]['step']:08d}")

    def test_a_full_pipe_stops_neither_training_nor_its_end(self):
        read_end, write_end = self.full_pipe()
        process = self.start_into(write_end, self.job(), *self.TALKATIVE)
        self.check_that_it_trains_and_stops(process)
        self.assertFalse(fcntl.fcntl(read_end, fcntl.F_GETFL) & os.O_NONBLOCK)

    def test_a_stopped_terminal_stops_neither_training_nor_its_end(self):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        os.write(master, b"\x13")  # Ctrl-S
        self.check_that_it_trains_and_stops(self.start_into(slave, self.job(), *self.TALKATIVE))

    def test_an_error_is_not_held_up_by_a_full_pipe(self):
        _, write_end = self.full_pipe()
        os.write(write_end, b"x" * 4096)
        process = self.start_into(write_end, self.job(lr="1.0e+30", schedule=CONSTANT), "--set", "checkpoint.every=1")
        self.assertEqual(process.wait(timeout=60), 6)

    def test_with_closed_standard_streams_no_file_gets_the_log(self):
        process = subprocess.run(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', BINARY, "run", self.job()], timeout=120)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(len(self.steps()), 24)
        output = self.root / "a"
        self.assertEqual((output / ".lock").read_bytes(), b"")
        for path in (p for p in output.rglob("*") if p.is_file() and p.name != "run.log"):
            self.assertNotIn(b"/metrics\n", path.read_bytes(), path)


@sliced(4)
class Records(RunTest):
    def events(self, name="a"):
        return [json.loads(line) for line in (self.root / name / "events.jsonl").read_text().splitlines()]

    def notices(self, name="a"):
        """Events without warnings of a busy machine: a peak that was measured too low is raised later, with a warning."""
        return [e for e in self.events(name) if e["event"] in ("start", "resume", "warning", "stop", "failure", "finish")
                and "GEMM peak that MFU is of" not in e["message"]]

    def metrics(self):
        [found] = json.loads((self.root / "a" / "metrics.json").read_text())
        return {m[0]: float(m[1]) for m in re.findall(r"^(\S+) (\S+)$", scrape(found["targets"][0]), re.M)}

    def test_the_first_line_is_about_the_run_and_run_log_has_all_with_the_time(self):
        output = self.run_job(self.job()).splitlines()
        self.assertRegex(output[0], r"trainerd \S+ \(\w+(-changed)?\): system: .*parameters, tp1 pp1 dp1 on 1 CPU rank, 24 steps of 256 tokens$")
        self.assertNotIn("calibrate", "".join(output))
        log = (self.root / "a" / "run.log").read_text().splitlines()
        self.assertEqual([line for line in log if not re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4} (info|warning|error) ", line)], [])
        self.assertTrue(log[0].endswith(output[0].split("] ")[-1]), log[0])
        self.assertTrue(any("checkpoint at step 20" in line for line in log))
        # A later process appends to the log, and an error is in it, too.
        self.run_job(self.job(), "--set", "model.ffn=192", status=5)
        later = (self.root / "a" / "run.log").read_text().splitlines()
        self.assertEqual(later[:len(log)], log)
        self.assertRegex("\n".join(later[len(log):]), r"error +(.|\n)*model\.ffn")

    def test_workers_are_named_by_their_rank(self):
        process = self.start(self.job(), "--set", "steps=100000", "--set", "parallel.dp=2")
        self.wait_for_step(process, 1)
        workers = [pathlib.Path(f"/proc/{pid}") for pid in self.children(process.pid)]
        self.assertEqual([(w / "cmdline").read_bytes().split(b"\0")[0] for w in workers], [b"trainerd: rank 0", b"trainerd: rank 1"])
        self.assertEqual([(w / "comm").read_text() for w in workers], ["trainerd:rank 0\n", "trainerd:rank 1\n"])

    def test_every_record_says_when_it_was(self):
        begin = time.time()
        self.run_job(self.job())
        for record in [*self.steps(), *self.events()]:
            self.assertTrue(begin - 0.001 <= record["wall_time"] <= time.time() + 0.001, record)
        times = [s["wall_time"] for s in self.steps()]
        self.assertEqual(times, sorted(times))

    def test_events_say_how_each_attempt_began_and_ended(self):
        job = self.job(schedule=CONSTANT)
        process = self.start(job, "--set", "steps=100000", "--set", "checkpoint.every=50")
        self.wait_for_step(process, 60)
        self.wait_for_checkpoint(process)
        process.kill()
        process.communicate()
        logged = self.steps()[-1]
        process = self.start(job, "--set", "steps=100000", "--set", "checkpoint.every=50")
        self.wait_for_step(process, logged["step"] + 5)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        stopped = self.steps()[-1]["step"]
        self.run_job(job, "--set", f"steps={stopped + 5}")
        start, resume, stop, again, finish = self.notices()
        self.assertEqual([n["event"] for n in (start, resume, stop, again, finish)], ["start", "resume", "stop", "resume", "finish"])
        self.assertEqual(resume["earlier"]["last_step"], logged["step"])
        self.assertEqual(resume["earlier"]["wall_time"], logged["wall_time"])
        self.assertGreater(resume["earlier"]["lost_seconds"], 0)
        self.assertIn("step-", resume["message"])
        self.assertIn("SIGTERM", stop["message"])
        self.assertEqual((stop["step"], again["step"], again["earlier"]["lost_seconds"]), (stopped, stopped, 0))
        self.assertEqual(finish["step"], stopped + 5)
        report = (self.root / "a" / "report.html").read_text()
        self.assertIn("total time, 3 attempts", report)
        self.assertIn("killed, or its host was lost", report)

    def test_an_attempt_that_ends_before_its_first_step_is_in_the_events(self):
        job = self.job()
        self.run_job(job, "--set", "steps=5")
        with self.data.open("a") as f:
            f.write("more")
        self.run_job(job, status=5)
        self.assertEqual([n["event"] for n in self.notices()], ["start", "finish", "resume", "failure"])
        self.assertIn("data", self.notices()[-1]["message"])

    def test_a_failure_is_in_the_events_and_in_the_report_with_its_reason(self):
        self.run_job(self.job(lr="1.0e+30", schedule=CONSTANT), "--set", "checkpoint.every=1", status=6)
        failure = self.notices()[-1]
        self.assertEqual(failure["event"], "failure")
        self.assertIn("is not finite", failure["message"])
        report = (self.root / "a" / "report.html").read_text()
        self.assertIn(f"Failed after step {failure['step']}", report)
        self.assertIn("is not finite", report)

    def test_the_report_is_there_while_the_run_goes_on(self):
        process = self.start(self.job(), "--set", "steps=100000", "--set", "name=going")
        self.wait_for(process, (self.root / "a" / "report.html").exists, "its report")
        report = (self.root / "a" / "report.html").read_text()
        self.assertIn('<meta name="run" content="running">', report)
        for text in ("--set name=going", os.uname().nodename, "tp1 pp1 dp1 on 1 CPU rank", "data.txt: 60,", "gradients", "optimizer"):
            self.assertIn(text, report)
        process.kill()
        process.communicate()

    def test_a_log_that_cannot_be_written_for_a_while_is_complete_in_the_end(self):
        process = self.start(self.job(), "--set", "steps=100000", "--set", "checkpoint.every=0")
        self.wait_for_step(process, 20)
        # No file of the agent may grow beyond the log's current size.
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        size = (self.root / "a" / "steps.jsonl").stat().st_size
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))
        waiting = 'trainerd_output_waiting_lines{output="steps.jsonl"}'
        self.wait_for(process, lambda: self.metrics()[waiting] > 50, "50 lines wait")
        self.assertGreater(self.metrics()['trainerd_output_failed_writes_total{output="steps.jsonl"}'], 0)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        self.wait_for(process, lambda: self.metrics()[waiting] == 0, "the log is written")
        self.assertEqual(self.metrics()['trainerd_output_dropped_lines_total{output="steps.jsonl"}'], 0)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 143, output)
        steps = [s["step"] for s in self.steps()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        warnings = [n["message"] for n in self.notices() if n["event"] == "warning" and n["message"].startswith("steps.jsonl")]
        self.assertRegex(warnings[0], "cannot be written: File too large; training goes on")
        self.assertRegex(warnings[-1], "is written again; nothing lost")
        self.assertIn("steps.jsonl cannot be written", output)


class Progress(RunTest):
    def test_calibrate_shows_how_far_it_is(self):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        process = subprocess.Popen([BINARY, "calibrate", "--seconds", "60"], stdout=subprocess.DEVNULL, stderr=slave)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        os.close(slave)
        shown = b""
        while b"%  operators, round 1, model 1 of " not in shown:
            shown += os.read(master, 4096)  # an error if the process ends before
        self.assertIn(b"for about 1m00s", shown)


if __name__ == "__main__":
    unittest.main(verbosity=2)
