"""Files of `trainerd run`, resuming, and ways to end."""

import re
import resource
import socket
import statistics
import unittest

from support import *


@sliced(6)
class Run(RunTest):
    @always
    def test_a_job_trains_and_leaves_its_files(self):
        output = self.run_job(self.job())
        steps = self.steps()
        self.assertEqual([s["step"] for s in steps], list(range(1, 25)))
        self.assertLess(steps[-1]["loss"], steps[0]["loss"] - 1.0)
        for s in steps:
            self.assertGreaterEqual(min(s["time"].values()), -1e-6)
            self.assertEqual(s["tokens"], s["step"] * 4 * 64)
        self.assertEqual([p.name for p in self.checkpoints()], [f"step-{n:08d}" for n in (15, 20, 24)])
        report = (self.root / "a" / "report.html").read_text()
        self.assertIn("<svg", report)
        self.assertNotRegex(report, r'(src|href)\s*=\s*"?https?://')
        again = subprocess.run([BINARY, "validate", self.root / "a" / "job.yaml"], capture_output=True, text=True)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("24", output)

    def test_the_ledger_accounts_for_a_steps_time(self):
        # `other` is the time that no part claims. It completes the sum, so the sum alone proves nothing.
        job = self.job()
        self.run_job(job, "--set", "model.hidden=256", "--set", "model.ffn=704", "--set", "batch.global=16", "--set", "steps=12")
        steps = self.steps()[1:]
        for s in steps:
            self.assertAlmostEqual(sum(s["time"].values()), s["step_seconds"], delta=1e-6)
        share = statistics.median(s["time"]["other"] / s["step_seconds"] for s in steps)
        self.assertLess(share, 0.2)
        self.assertGreater(statistics.median(s["time"]["compute"] / s["step_seconds"] for s in steps), 0.5)

    def test_a_checkpoint_that_is_waited_for_is_whole_before_the_next_step(self):
        self.run_job(self.job("a"), "--set", "checkpoint.async=false")
        self.run_job(self.job("b"))
        self.assertEqual(self.losses("a"), self.losses("b"))
        self.assertEqual([p.name for p in self.checkpoints()], [f"step-{n:08d}" for n in (15, 20, 24)])
        # The next step has the wait. Hashing, writing and flushing 1.5 MB takes more than 0.1 ms.
        def waited(name):
            return statistics.median(s["time"]["checkpoint"] for s in self.steps(name) if s["step"] in (6, 11, 16, 21))
        self.assertGreater(waited("a"), 1e-4)
        self.assertLess(waited("b"), 1e-4)

    def test_evaluations_and_checkpoints_are_logged_and_in_the_report_of_a_resumed_run(self):
        job = self.job(schedule=CONSTANT)
        self.run_job(job, "--set", "steps=12")
        self.run_job(job)
        events = self.events()
        self.assertEqual([e["step"] for e in events if e["event"] == "evaluation"], [10, 12, 20, 24])
        self.assertEqual([e["step"] for e in events if e["event"] == "checkpoint"], [5, 10, 12, 15, 20, 24])
        report = (self.root / "a" / "report.html").read_text()
        for e in (e for e in events if e["event"] in ("evaluation", "checkpoint")):
            self.assertIn(f"<tr><td>{e['step']}</td>", report)
            if e["event"] == "evaluation":
                self.assertIn(f"{e['loss']:.4f}", report)

    def test_a_done_run_without_a_report_gets_it_from_the_logs(self):
        job = self.job()
        self.run_job(job)
        report = self.root / "a" / "report.html"
        steps = (self.root / "a" / "steps.jsonl").read_bytes()
        report.unlink()
        self.run_job(job)
        page = report.read_text()
        self.assertIn("<svg", page)
        self.assertIn("<td>20</td>", page)
        self.assertIn("24 / 24", page)
        self.assertEqual((self.root / "a" / "steps.jsonl").read_bytes(), steps)
        stamp = report.stat().st_mtime_ns
        self.run_job(job)
        self.assertEqual(report.stat().st_mtime_ns, stamp, "a report that is there was written again")
        later = report.stat().st_mtime + 10
        os.utime(self.root / "a" / "steps.jsonl", (later, later))
        self.run_job(job)
        self.assertNotEqual(report.stat().st_mtime_ns, stamp, "a report older than the log was left")

    @unittest.skipIf(SANITIZED, "sanitizers slow the start down")
    def test_the_quickstart_begins_its_first_step_in_under_a_second(self):
        best = float("inf")
        for attempt in range(8):  # other processes may delay one
            name = f"start{attempt}"
            begin = time.monotonic()
            # Small steps: the start does not depend on their length, and the test waits for the end of one.
            process = self.start(ROOT / "configs" / "quickstart.yaml", "--set", f"output={self.root / name}", "--set", "batch={global: 2, micro: 1}")
            self.wait_for_step(process, 1, name)
            # The record comes at the step's end and has the step's duration.
            best = min(best, time.monotonic() - begin - self.steps(name)[0]["step_seconds"])
            process.kill()
            process.communicate()
            if best < 1.0:
                return
        busy = os.getloadavg()[0] / os.cpu_count()
        if busy > 1.5:
            self.skipTest(f"{best:.2f} s, but the machine is busy: {busy:.1f} processes want each core")
        self.fail(f"the first step began after {best:.2f} s")

    def test_two_runs_have_the_same_losses_bit_for_bit(self):
        self.run_job(self.job("a"))
        self.run_job(self.job("b"))
        self.assertEqual(self.losses("a"), self.losses("b"))

    def test_a_finished_job_run_again_trains_nothing(self):
        job = self.job()
        self.run_job(job)
        before = (self.root / "a" / "steps.jsonl").read_bytes()
        self.run_job(job)
        self.assertEqual((self.root / "a" / "steps.jsonl").read_bytes(), before)

    def test_a_longer_job_goes_on_where_the_shorter_one_ended(self):
        job = self.job(schedule=CONSTANT)
        self.run_job(job, "--set", "steps=10")
        self.run_job(job, "--set", "steps=15")
        self.run_job(self.job("b", schedule=CONSTANT), "--set", "steps=15")
        self.assertEqual(self.losses("a"), self.losses("b"))

    def test_metrics_are_served_while_it_runs(self):
        process = self.start(self.job(), "--set", "steps=100000")
        address = None
        for line in process.stdout:
            found = re.search(r"http://([0-9.]+:[0-9]+)/metrics", line)
            if found:
                address = found.group(1)
                break
        self.assertIsNotNone(address)
        self.wait_for_step(process, 12)
        text = scrape(address)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        value = {m[0]: float(m[1]) for m in re.findall(r"^(\S+) (\S+)$", text, re.M)}
        # A scrape in the middle of an update has the new step beside values of the step before.
        at = int(value["trainerd_step"])
        logged = [s for s in self.steps() if s["step"] in (at - 1, at)]
        self.assertLess(min(abs(value["trainerd_loss"] - s["loss"]) for s in logged), 5e-6)
        self.assertIn(value["trainerd_tokens_total"], [s["tokens"] for s in logged])
        self.assertIn('trainerd_time_seconds_total{part="compute"}', value)
        if shutil.which("promtool"):
            lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
            self.assertEqual((lint.returncode, lint.stdout, lint.stderr), (0, "", ""))


    def test_a_taken_metrics_port_stands_for_the_next_free_one(self):
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            held.listen()
            taken = held.getsockname()[1]
            process = self.start(self.job(), "--set", "steps=100000", "--set", f"metrics.listen=127.0.0.1:{taken}")
            self.wait_for_step(process, 2)
            [found] = json.loads((self.root / "a" / "metrics.json").read_text())
            self.assertEqual(found["labels"], {"run": "system", "node": "0"})
            [address] = found["targets"]
            self.assertNotEqual(address, f"127.0.0.1:{taken}")
            self.assertIn("trainerd_loss ", scrape(address))
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=PATIENCE)
            self.assertRegex(output, f"warning.*127.0.0.1:{taken} of metrics.listen is taken")
            self.assertIn(f"http://{address}/metrics", output)
            self.assertFalse((self.root / "a" / "metrics.json").exists(), "nothing is served there any more")

    def test_metrics_can_be_off(self):
        output = self.run_job(self.job(), "--set", "metrics.listen=off")
        self.assertNotIn("http://", output)
        self.assertFalse((self.root / "a" / "metrics.json").exists())

    def test_a_resumed_process_counts_its_own_tokens(self):
        job = self.job(schedule=CONSTANT)
        self.run_job(job, "--set", "steps=10")
        process = self.start(job, "--set", "steps=100000")
        self.wait_for_step(process, 12)
        [found] = json.loads((self.root / "a" / "metrics.json").read_text())

        def counts():
            text = scrape(found["targets"][0])
            value = {m[0]: float(m[1]) for m in re.findall(r"^(\S+) (\S+)$", text, re.M)}
            # A step may end between two of its values.
            return (value["trainerd_run_tokens"] == value["trainerd_step"] * 4 * 64
                    and value["trainerd_tokens_total"] == (value["trainerd_step"] - 10) * 4 * 64)

        self.wait_for(process, counts, "its tokens agree with its steps", timeout=30)


@sliced(6)
class Resume(RunTest):
    def wait_for_save(self, process):
        """Waits until a checkpoint is being written."""
        folder = self.root / "a" / "checkpoints"
        self.wait_for(process, lambda: [p for p in folder.glob("step-*/*.safetensors") if not (p.parent / "COMPLETE").exists()],
                      "a checkpoint is being written")

    @always
    def test_killed_at_any_moment_it_resumes_bit_for_bit(self):
        long = ("--set", f"steps={2000 if FULL else 500}", "--set", "checkpoint.every=7")
        self.run_job(self.job("whole"), *long)
        rng = random.Random(5)
        job = self.job("killed")
        kills = late_kills = 0

        def anew():
            """--fresh if the run has steps but no checkpoint to resume from: records of steps are not overwritten."""
            return ["--fresh"] if not self.checkpoints("killed") and self.steps("killed") else []

        for _ in range(40):
            process = self.start(job, *long, *anew())
            # If no run reached a checkpoint on a slow machine, the next ones get more time.
            time.sleep(rng.uniform(0.02, 0.3) * (1 if late_kills else 1 + kills))
            worker = self.children(process.pid) if process.poll() is None else []
            if process.poll() is None:
                process.kill()
                kills += 1
                late_kills += bool(self.checkpoints("killed"))
            process.communicate()
            self.assertIn(process.returncode, (0, -9))
            for pid in worker:
                end = time.monotonic() + PATIENCE
                while alive(pid) and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertFalse(alive(pid), "the worker outlived its agent")
            if process.returncode == 0 or (late_kills > 7 and not FULL):
                break
        self.assertGreater(late_kills, 3)
        self.run_job(job, *long, *anew())
        self.assertEqual(self.losses("killed"), self.losses("whole"))

    def test_a_state_in_bf16_resumes_bit_for_bit(self):
        narrow = ("--set", "precision={compute: bf16, grads: bf16, master: bf16, moments: bf16, rounding: stochastic}")
        self.run_job(self.job("whole", schedule=CONSTANT), *narrow)
        job = self.job("parts", schedule=CONSTANT)
        self.run_job(job, *narrow, "--set", "steps=12")
        self.run_job(job, *narrow)
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        steps = self.steps("whole")
        self.assertLess(steps[-1]["loss"], steps[0]["loss"] - 1.0)

    def test_a_killed_worker_is_named_and_the_next_run_goes_on(self):
        self.run_job(self.job("whole"))
        job = self.job("killed")
        process = self.start(job, "--set", "steps=2000", "--set", "restarts=0")
        self.wait_for_step(process, 12, "killed")
        self.wait_for(process, lambda: self.saves("killed"), "a checkpoint that the agent knows to be complete")
        os.kill(self.children(process.pid)[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 7, output)
        self.assertRegex(output, r"rank 0 .*signal 9")
        self.assertRegex(output, r"step-000000\d+")

    def test_sigterm_finishes_the_step_saves_and_exits_143(self):
        self.run_job(self.job("whole"))
        job = self.job("stopped")
        process = self.start(job)
        self.wait_for_step(process, 7, "stopped")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        if process.returncode != 0:  # it may just have finished
            self.assertEqual(process.returncode, 143, output)
            last = self.steps("stopped")[-1]["step"]
            self.assertEqual(self.checkpoints("stopped")[-1].name, f"step-{last:08d}")
        self.run_job(job)
        self.assertEqual(self.losses("stopped"), self.losses("whole"))

    def test_two_sigterms_milliseconds_apart_are_one_request(self):
        # As Slurm sends them at a preemption. The disk hangs, so that both signals come before the save is done.
        hold, environment = self.slow_disk()
        process = self.start(self.job(), "--set", "steps=100000", "--set", "checkpoint.every=0", env=environment)
        self.wait_for_step(process, 3)
        hold.touch()
        process.send_signal(signal.SIGTERM)
        self.wait_for_save(process)
        process.send_signal(signal.SIGTERM)
        line = self.read_until(process, "again")
        self.assertIn("the run is stopping already", line)
        hold.unlink()
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 143, output)
        self.assertEqual(self.checkpoints()[-1].name, f"step-{self.steps()[-1]['step']:08d}")

    def test_every_signal_of_a_scheduler_or_a_lost_terminal_saves_and_exits_143(self):
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
            with self.subTest(number.name):
                process = self.start(self.job(number.name), "--set", "steps=100000", "--set", "checkpoint.every=0")
                self.wait_for_step(process, 3, number.name)
                for pid in [*self.children(process.pid), process.pid]:
                    os.kill(pid, number)
                output, _ = process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, 143, output)
                self.assertIn(f"stopped by {number.name}", output)
                self.assertEqual(self.checkpoints(number.name)[-1].name, f"step-{self.steps(number.name)[-1]['step']:08d}")

    def test_a_lost_terminal_ends_nothing_under_nohup(self):
        process = self.start(self.job(), "--set", "steps=100000", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_step(process, 3)
        process.send_signal(signal.SIGHUP)
        self.wait_for_step(process, self.steps()[-1]["step"] + 50)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 143, output)
        self.assertNotIn("SIGHUP", output)

    def test_a_worker_that_has_used_up_its_cpu_time_stops_the_run_after_saving(self):
        process = self.start(self.job(), "--set", "steps=1000000", "--set", "checkpoint.every=0",
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 600)))
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 143, output)
        self.assertIn("stopped by SIGXCPU at rank 0", output)
        self.assertEqual(self.checkpoints()[-1].name, f"step-{self.steps()[-1]['step']:08d}")

    def test_a_run_saves_and_stops_before_its_time_limit(self):
        name, output = self.within_a_limit(lambda name, seconds: self.run_job(
            self.job(name), "--max-time", f"{seconds}s", "--set", "steps=1000000", "--set", "checkpoint.every=0", status=143))
        self.assertEqual([p.name for p in self.checkpoints(name)], [f"step-{self.last_step(name):08d}"])
        self.assertIn("stopped by the time limit", output)
        stops = [e for e in self.events(name) if e["event"] == "stop"]
        self.assertEqual(len(stops), 1)
        self.assertIn("the time limit", stops[0]["message"])
        for wrong in ("5", ""):
            self.assertIn("expected a duration", self.run_job(self.job(), "--max-time", wrong, status=2))

    def test_a_run_stopped_after_a_step_evaluates_and_resumes_bit_for_bit(self):
        for last in (7, 10):  # without and with an evaluation
            self.run_job(self.job(), "--stop-after", str(last))
            stopped = self.losses()[-1][0]
            self.assertTrue(last <= stopped < 24, stopped)
            self.assertEqual(self.saves()[-1], stopped)
            self.assertEqual(self.events()[-1]["event"], "stop")
        self.assertIn(10, self.evaluations())
        self.run_job(self.job(), "--stop-after", "24")  # the last step: the run is done
        self.assertEqual(self.events()[-1]["event"], "finish")
        self.run_job(self.job("whole"))
        self.assertEqual(self.losses(), self.losses("whole"))

    def test_a_sigterm_to_every_process_is_a_stop_after_saving_too(self):
        # Sent to the whole job, as a scheduler does.
        process = self.start(self.job(), "--set", "steps=100000")
        self.wait_for_step(process, 7)
        for pid in [*self.children(process.pid), process.pid]:
            for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
                if pid != process.pid:
                    os.kill(pid, number)
            os.kill(pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 143, output)
        self.assertEqual(self.checkpoints()[-1].name, f"step-{self.steps()[-1]['step']:08d}")

    def test_a_stop_vote_ends_the_run_without_an_evaluation(self):
        process = self.start(self.job(), "--set", "steps=100000", "--set", "evaluate.every=1")
        self.wait_for_step(process, 3)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 143, output)
        last = self.steps()[-1]["step"]
        # The stop came before the last evaluation, or in its only batch.
        self.assertIn(self.evaluations(), (list(range(1, last)), list(range(1, last + 1))))
        # The next run does an evaluation that was due.
        self.run_job(self.job(), "--set", f"steps={last + 2}", "--set", "evaluate.every=1")
        self.assertEqual(self.evaluations(), list(range(1, last + 3)))

    def test_a_stop_leaves_an_evaluation_between_batches_and_the_next_run_makes_up_for_it(self):
        # Evaluations of hours, on two ranks that must leave at the same batch.
        endless = ["--set", "data={format: synthetic, train: [], valid: []}", "--set", "parallel.dp=2", "--set", "evaluate.every=3"]
        job = self.job("left", schedule=CONSTANT)
        process = self.start(job, *endless, "--set", "evaluate.batches=2000000", "--set", "checkpoint.every=0")
        self.read_until(process, r"evaluation at step 3: \d+ of 2000000 batches")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 143, output)
        self.assertEqual([p.name for p in self.checkpoints("left")], ["step-00000003"])
        self.assertEqual(self.evaluations("left"), [])
        self.run_job(job, *endless, "--set", "evaluate.batches=5", "--set", "steps=7")
        self.run_job(self.job("whole", schedule=CONSTANT), *endless, "--set", "evaluate.batches=5", "--set", "steps=7")
        evaluated = [[(e["step"], repr(e["loss"])) for e in self.events(name) if e["event"] == "evaluation"] for name in ("left", "whole")]
        self.assertEqual([step for step, _ in evaluated[0]], [3, 6, 7])
        self.assertEqual(evaluated[0], evaluated[1])
        self.assertEqual(self.losses("left"), self.losses("whole"))

    def test_the_evaluation_after_the_last_step_is_made_up_for_after_a_kill(self):
        endless = ["--set", "data={format: synthetic, train: [], valid: []}", "--set", "steps=6", "--set", "evaluate.every=100"]
        process = self.start(self.job(), *endless, "--set", "evaluate.batches=2000000")
        self.read_until(process, r"evaluation at step 6: \d+ of")
        self.wait_for(process, lambda: len(self.checkpoints()) == 2, "both checkpoints")
        process.kill()
        process.communicate()
        self.assertEqual([p.name for p in self.checkpoints()], ["step-00000005", "step-00000006"])
        self.run_job(self.job(), *endless, "--set", "evaluate.batches=2")
        self.assertEqual(self.evaluations(), [6])
        self.assertIn("all 6 steps are done already", self.run_job(self.job(), *endless, "--set", "evaluate.batches=2"))
        self.assertEqual(self.evaluations(), [6])

    def test_an_evaluation_takes_no_more_than_the_validation_data_holds(self):
        sequences = (self.data.stat().st_size - 1) // 64
        whole = sequences // 4
        output = self.run_job(self.job("all"), "--set", "steps=6", "--set", "evaluate={every: 6, batches: 100000}")
        self.assertRegex(output, f"evaluate.batches: 100000 .*takes all {whole} whole ones")
        self.assertEqual([e["tokens"] for e in self.events("all") if e["event"] == "evaluation"], [whole * 4 * 64])
        self.run_job(self.job("some"), "--set", "steps=6", "--set", f"evaluate={{every: 6, batches: {whole}}}")
        loss = [[e["loss"] for e in self.events(name) if e["event"] == "evaluation"] for name in ("all", "some")]
        self.assertEqual(loss[0], loss[1])
        output = self.run_job(self.job("none"), "--set", "batch={global: 1000, micro: 2}", status=4)
        self.assertIn(f"data.valid: the validation data holds {sequences} sequences", output)

    def test_checkpoints_by_time_are_made_while_it_trains_and_resumed_bit_for_bit(self):
        layout = ["--set", "parallel.dp=2", "--set", "checkpoint.every=0.2s"]
        job = self.job("killed", schedule=CONSTANT)
        process = self.start(job, *layout, "--set", "steps=1000000")
        self.wait_for(process, lambda: len(self.saves("killed")) >= 3, "three checkpoints")
        process.kill()
        process.communicate()
        saves = self.saves("killed")
        steps = {s["step"]: s for s in self.steps("killed")}
        for first, second in zip(saves, saves[1:]):
            # On a busy machine time also passes between steps, and records may come late.
            between = max(sum(steps[step]["step_seconds"] for step in range(first + 1, second + 1)),
                          steps[second]["wall_time"] - steps[first]["wall_time"])
            self.assertGreater(between, 0.15, f"steps {first} to {second}")
        last = int(self.checkpoints("killed")[-1].name[5:])
        self.assertIn(f"step-{last:08d}", self.run_job(job, *layout, "--set", f"steps={last + 3}"))
        self.run_job(self.job("whole", schedule=CONSTANT), *layout, "--set", f"steps={last + 3}")
        self.assertEqual(self.losses("killed"), self.losses("whole"))

    def test_a_sigquit_does_not_wait_for_a_disk_that_stands_still(self):
        hold, environment = self.slow_disk()
        process = self.start(self.job(), "--set", "steps=100000", "--set", "checkpoint.every=0", env=environment)
        self.wait_for_step(process, 3)
        hold.touch()
        process.send_signal(signal.SIGTERM)
        worker = self.children(process.pid)[0]
        self.wait_for_save(process)
        process.send_signal(signal.SIGQUIT)
        output, _ = process.communicate(timeout=PATIENCE)  # the disk still stands
        self.assertEqual(process.returncode, 131, output)
        self.assertRegex(output, r"SIGQUIT: stopping at once; the last checkpoint is none")
        self.assertFalse(alive(worker))
        self.assertEqual(self.checkpoints(), [])
        hold.unlink()
        self.run_job(self.job(), "--set", "steps=10", "--fresh")
        self.assertEqual(self.checkpoints()[-1].name, "step-00000010")

    def test_a_step_to_stop_after_that_is_done_leaves_nothing_to_do(self):
        job = self.job(schedule=CONSTANT)
        self.run_job(job, "--set", "steps=1000", "--stop-after", "5")
        done = self.last_step()
        for _ in range(2):
            self.assertIn(f"step {done} is done already, so --stop-after 5 leaves nothing to do",
                          self.run_job(job, "--set", "steps=1000", "--stop-after", "5"))
        self.assertEqual(self.last_step(), done)
        self.run_job(job, "--set", "steps=1000", "--stop-after", str(done + 5))
        self.assertGreaterEqual(self.last_step(), done + 5)

    def test_a_signal_before_training_begins_ends_the_run_at_once(self):
        hold, environment = self.slow_disk()
        hold.touch()  # blocks the agent in its check of the disk
        process = self.start(self.job(), env=environment)
        self.wait_for(process, (self.root / "a" / "checkpoints").exists, "it has its directory")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)  # the disk still stands
        self.assertEqual(process.returncode, 143, output)
        self.assertEqual(self.steps(), [])
        self.assertIn("SIGTERM before training began: stopping", output)

    def test_sigint_exits_130_and_a_second_one_after_a_second_stops_at_once(self):
        process = self.start(self.job(), "--set", "steps=100000")
        self.wait_for_step(process, 3)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 130, output)
        # A long step: the second signal does not wait for it.
        slow = self.start(self.job("slow"), "--set", "steps=100000", "--set", "batch.global=40000", "--set", "evaluate.every=0")
        self.read_until(slow, "^  model ")
        slow.send_signal(signal.SIGINT)
        self.read_until(slow, "SIGINT: finishing the step")
        slow.send_signal(signal.SIGINT)
        self.read_until(slow, "SIGINT again: the run is stopping already")
        time.sleep(1.1)  # a second signal counts after 1 s
        self.assertIsNone(slow.poll())
        slow.send_signal(signal.SIGINT)
        output, _ = slow.communicate(timeout=PATIENCE)
        self.assertEqual(slow.returncode, 130, output)
        self.assertIn("SIGINT: stopping at once", output)
        self.assertEqual(self.events("slow")[-1]["message"], "stopped at once by SIGINT after step 0; the last checkpoint is none")
        self.assertEqual((self.steps("slow"), self.checkpoints("slow")), ([], []))

    def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(self):
        job = self.job("damaged", schedule=CONSTANT)
        self.run_job(job, "--set", "steps=20")
        self.run_job(self.job("reference", schedule=CONSTANT))
        newest = self.checkpoints("damaged")[-1]
        shard = next(newest.glob("*.safetensors"))
        with shard.open("r+b") as f:
            f.seek(shard.stat().st_size // 2)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 1]))
        output = self.run_job(job)
        self.assertIn(newest.name, output)
        self.assertRegex(output, "damaged|checksum")
        self.assertEqual(self.losses("damaged"), self.losses("reference"))

    def test_when_every_checkpoint_is_damaged_it_says_so_and_stops(self):
        job = self.job()
        self.run_job(job, "--set", "steps=10")
        for checkpoint in self.checkpoints():
            (next(checkpoint.glob("*.safetensors"))).write_bytes(b"gone")
        output = self.run_job(job, status=5)
        self.assertIn("step-00000010", output)

    def test_a_checkpoint_of_another_model_is_refused_by_name(self):
        job = self.job()
        self.run_job(job, "--set", "steps=5")
        output = self.run_job(job, "--set", "model.ffn=192", status=5)
        self.assertIn("model.ffn", output)
        output = self.run_job(job, "--set", "model.rope_theta=10001", "--set", "model.norm_eps=1.0e-6", status=5)
        self.assertIn("model.rope_theta", output)
        self.assertIn("model.norm_eps", output)

    def test_other_training_data_is_refused_before_a_step_is_taken(self):
        job = self.job()
        self.run_job(job, "--set", "steps=5")
        report = (self.root / "a" / "report.html").read_bytes()
        with self.data.open("a") as f:
            f.write("more")
        output = self.run_job(job, status=5)
        self.assertRegex(output, r"data: the checkpoint has .*, the job .*")
        self.assertEqual(len(self.steps()), 5)
        self.assertEqual((self.root / "a" / "report.html").read_bytes(), report, "the old report was overwritten")

    def test_another_thread_count_is_warned_of_in_one_line(self):
        job = self.job()
        quiet = self.run_job(job, "--set", "steps=5")
        self.assertNotIn("bit for bit", quiet)
        quiet = self.run_job(job, "--set", "steps=10")
        self.assertNotIn("bit for bit", quiet)
        output = self.run_job(job, "--set", "threads=2")
        warnings = [line for line in output.splitlines() if "will not be bit for bit" in line]
        self.assertEqual(len(warnings), 1, output)
        self.assertIn("threads was 1, is 2", warnings[0])


@sliced(4)
class Refusals(RunTest):
    def test_a_wrong_job_is_status_2_with_every_problem(self):
        job = self.job(extra="modle: {}\n")
        output = self.run_job(job, "--set", "batch.micro=99", status=2)
        self.assertIn("modle", output)
        self.assertIn("batch", output)

    def test_an_address_of_another_machine_is_status_2_and_leaves_nothing(self):
        elsewhere = ("--set", "metrics.listen=192.0.2.1:9464")
        output = self.run_job(self.job(), *elsewhere, status=2)
        self.assertIn("192.0.2.1:9464", output)
        self.assertEqual(self.steps(), [])
        self.assertFalse((self.root / "a" / "job.yaml").exists(), "a refused run left its job")
        # Nor does it change the files of an earlier run.
        self.run_job(self.job(), "--set", "steps=5")
        left = {n: (self.root / "a" / n).read_bytes() for n in ("job.yaml", "steps.jsonl", "report.html")}
        self.run_job(self.job(), *elsewhere, status=2)
        self.assertEqual({n: (self.root / "a" / n).read_bytes() for n in left}, left)

    def test_a_discovery_directory_that_cannot_be_written_is_status_2(self):
        (self.root / "file").write_text("")
        output = self.run_job(self.job(), "--set", f"metrics.discovery={self.root}/file/d", status=2)
        self.assertIn(f"metrics.discovery: cannot make {self.root}/file/d: Not a directory", output)
        self.assertFalse((self.root / "a" / "job.yaml").exists(), "a refused run left its job")

    def test_an_output_that_cannot_be_written_is_status_2(self):
        (self.root / "a").write_text("a file where the directory should be")
        output = self.run_job(self.job(), status=2)
        self.assertIn("output", output)

    def test_a_directory_in_use_by_another_run_is_status_2(self):
        job = self.job()
        process = self.start(job, "--set", "steps=100000")
        self.wait_for_step(process, 1)
        output = self.run_job(job, status=2)
        self.assertIn("another run", output)

    def test_absent_data_is_status_4(self):
        job = self.job()
        self.data.unlink()
        output = self.run_job(job, status=4)
        self.assertIn("data.txt", output)

    def test_data_truncated_while_it_runs_is_status_4(self):
        process = self.start(self.job(), "--set", "steps=100000")
        self.wait_for_step(process, 5)
        os.truncate(self.data, 100)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 4, output)
        self.assertIn("data.txt", output)

    def test_a_full_disk_is_status_5_and_leaves_no_broken_checkpoint(self):
        process = self.start(self.job(), "--set", "steps=100000", "--set", "checkpoint.every=50",
                             "--set", "checkpoint.give_up=300ms")
        self.wait_for_step(process, 60)
        self.wait_for_checkpoint(process)
        # From here on no file of the agent may grow beyond this size, which is less than one shard.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (300_000, 300_000))
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 5, output)
        self.assertRegex(output, "step-\\d+.*File too large")
        left = list((self.root / "a" / "checkpoints").iterdir())
        self.assertTrue(left)
        self.assertEqual(sorted(left), self.checkpoints())
        self.run_job(self.job(), "--set", f"steps={int(left[0].name[5:]) + 100}")

    def test_a_disk_that_is_really_full_is_status_5_and_leaves_no_broken_checkpoint(self):
        disk = self.root / "disk"
        disk.mkdir()
        # Space for two checkpoints of 1.5 MB, but not for a third.
        mounted = shutil.which("mount") and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True).returncode == 0
        if not mounted:
            self.skipTest("no file system can be mounted here; the file-size limit's test stands in")
        self.addCleanup(subprocess.run, ["umount", disk], check=True)
        job = self.job("disk")
        # Saves are synchronous, so that a checkpoint meets the full disk before any step's record does.
        give_up = ("--set", "checkpoint.give_up=0s")
        output = self.run_job(job, "--set", "steps=100000", "--set", "checkpoint.async=false", *give_up, status=5)
        self.assertIn("No space left", output)
        self.assertRegex(output, r"step-0000001\d")
        left = sorted((disk / "checkpoints").iterdir())
        self.assertEqual([p.name for p in left], ["step-00000005", "step-00000010"])
        self.assertEqual(left, self.checkpoints("disk"))
        self.run_job(job, "--set", "checkpoint.keep=1", "--set", "checkpoint.every=0", *give_up, status=5)
        shutil.rmtree(left[0])
        self.run_job(job, "--set", "checkpoint.keep=1", "--set", "checkpoint.every=0")
        self.assertEqual([p.name for p in self.checkpoints("disk")], ["step-00000024"])

    def test_a_loss_that_is_not_finite_is_status_6_and_names_the_tensor_and_the_last_good_checkpoint(self):
        output = self.run_job(self.job(lr="1.0e+30", schedule=CONSTANT), "--set", "checkpoint.every=1", status=6)
        self.assertRegex(output, r"step \d+: the (loss|gradient of \S+) is not finite")
        self.assertRegex(output, r"last good checkpoint is \S*(step-\d+|none)")

    def test_a_job_larger_than_the_node_is_status_3(self):
        output = self.run_job(self.job(), "--set", "model.layers=1000", "--set", "model.hidden=8192", "--set", "model.ffn=32768",
                              status=3)
        self.assertIn("does not fit", output)

    def test_a_batch_beyond_any_machine_is_refused_with_its_key(self):
        for sequences in (1 << 24, 1 << 19):
            output = self.run_job(self.job(), "--set", f"model.seq_len={1 << 27}", "--set", f"batch.global={sequences}",
                                  "--set", f"batch.micro={sequences}", status=2)
            self.assertIn("batch.micro: the activations of", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
