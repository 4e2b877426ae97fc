"""Runs with failing file systems, and with output directories that were changed."""

import errno
import fcntl
import pathlib
import re
import unittest

from support import *


@sliced(6)
class Looking(RunTest):
    """A path that cannot be examined does not count as absent."""

    def trained(self, steps=12):
        job = self.job(schedule=CONSTANT)
        self.run_job(job, "--set", f"steps={steps}")
        return job

    def kept(self):
        """The files that a refused run must not change."""
        folder = self.root / "a"
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name not in (".lock", "run.log")}

    def assert_kept(self, before):
        """No file was changed, except that a refused attempt may have appended to the events."""
        now = self.kept()
        events = now.pop("events.jsonl", b"")
        self.assertTrue(events.startswith(before["events.jsonl"]), "the events of the run before were touched")
        added = [json.loads(line)["event"] for line in events[len(before["events.jsonl"]):].splitlines()]
        self.assertEqual(added[1::2], ["failure"] * (len(added) // 2), added)
        self.assertEqual(sorted(now), sorted(name for name in before if name != "events.jsonl"))
        for name, content in now.items():
            self.assertTrue(content == before[name], f"{name} was touched")

    def test_an_error_in_place_of_a_marker_stops_the_run_and_touches_nothing(self):
        job = self.trained()
        before = self.kept()
        rules, environment = self.failing_disk()
        for number, what in ((errno.EIO, "Input/output error"), (errno.EACCES, "Permission denied"), (errno.ESTALE, "Stale file")):
            rules.write_text(f"look {number} COMPLETE\n")
            output = self.run_job(job, status=5, env=environment)
            self.assertRegex(output, rf"step-000000\d+/COMPLETE.*{what}")
            self.assert_kept(before)

    def test_an_error_while_the_newest_is_verified_is_not_damage(self):
        job = self.trained()
        before = self.kept()
        rules, environment = self.failing_disk()
        for rule in (f"read {errno.EIO} step-00000012/shard", f"look {errno.EMFILE} step-00000012/shard",
                     f"look {errno.EACCES} step-00000012/manifest"):
            rules.write_text(rule + "\n")
            output = self.run_job(job, status=5, env=environment)
            self.assertIn("step-00000012", output)
            self.assertNotIn("damaged", output)
            self.assertNotIn("resuming", output)
            self.assert_kept(before)

    def test_a_disk_that_fails_before_the_first_step_is_reported(self):
        rules, environment = self.failing_disk()
        rules.write_text(f"write {errno.EIO} .preflight\n")
        self.run_job(self.job(), "--set", "steps=6", env=environment)
        [warning] = [e["message"] for e in self.events() if e["event"] == "warning" and "pre-flight" in e["message"]]
        self.assertRegex(warning, r"^pre-flight: node 0: storage: .*/a/\.preflight-node-0-\w+.*: Input/output error")
        self.assertEqual(list((self.root / "a").glob(".preflight*")), [])

    def test_an_error_that_passes_is_waited_for(self):
        job = self.trained()
        rules, environment = self.failing_disk()
        rules.write_text(f"look {errno.EIO} COMPLETE\n")
        process = self.start(job, env=environment)
        self.wait_for(process, rules.with_name("rules.failed").exists, "it has looked")  # it retries for about 2 s
        rules.unlink()
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("step 12", output)
        self.assertEqual([s["step"] for s in self.steps()], list(range(1, 25)))

    def test_records_without_a_checkpoint_are_refused_until_fresh_moves_them_aside(self):
        job = self.trained()
        away = self.root / "away"
        (self.root / "a" / "checkpoints").rename(away)  # like a file system that is not mounted
        before = self.kept()
        output = self.run_job(job, "--set", "steps=6", status=5)
        self.assertRegex(output, r"/a holds the records of a run up to step 12, but \S+/a/checkpoints holds no complete checkpoint: bring it back")
        self.assertIn(f"trainerd run {job} --fresh --set steps=6", output)
        self.assert_kept(before)
        # When it is mounted again, the run resumes.
        (self.root / "a" / "checkpoints").rmdir()
        away.rename(self.root / "a" / "checkpoints")
        self.run_job(job, "--set", "steps=14")
        before = self.kept()
        output = self.run_job(job, "--set", "steps=6", "--fresh")
        moved = re.search(r"moved to (\S+)", output).group(1)
        self.assertRegex(moved, r"/a\.old-\d{8}-\d{6}$")
        self.assertEqual([s["step"] for s in self.steps()], list(range(1, 7)))
        (self.root / "a").rename(self.root / "b")
        os.rename(moved, self.root / "a")
        self.assert_kept(before)

    def test_a_run_that_ended_before_its_first_checkpoint_begins_again(self):
        job = self.job()
        process = self.start(job, "--set", "steps=100000", "--set", "optimizer.schedule.kind=constant", "--set", "optimizer.schedule.min_lr=0",
                             "--set", "checkpoint.every=0")
        self.wait_for_step(process, 3)
        process.kill()
        process.wait()
        output = self.run_job(job)
        self.assertRegex(output, r"the run ended after step \d+, before its first checkpoint: it begins at step 1 again")
        self.assertEqual([s["step"] for s in self.steps()], list(range(1, 25)))
        self.run_job(self.job("b"))
        self.assertEqual(self.losses(), self.losses("b"))

    def test_fresh_does_not_move_what_another_run_uses_and_needs_nothing_to_move(self):
        job = self.job()
        process = self.start(job, "--fresh", "--set", "steps=100000")
        self.wait_for_step(process, 3)
        output = self.run_job(job, "--fresh", status=2)
        self.assertIn("another run", output)
        self.assertIsNone(process.poll())
        self.assertEqual([p.name for p in self.root.glob("a.old*")], [])

    def test_fresh_puts_the_earlier_output_back_if_the_run_does_not_begin(self):
        job = self.trained()
        before = self.kept()
        self.assertIn("192.0.2.1", self.run_job(job, "--fresh", "--metrics-listen", "192.0.2.1:9464", status=2))
        self.assertIn("nowhere.json: cannot be read", self.run_job(job, "--fresh", "--set", "evaluate.tokenizer=nowhere.json", "--set", "evaluate.every=5", status=4))
        self.assert_kept(before)
        self.assertEqual([p.name for p in self.root.glob("a.old*")], [])
        self.assertIn("was moved to", self.run_job(job, "--set", "seed=3", "--fresh"))
        self.assertEqual(len(list(self.root.glob("a.old*"))), 1)

    def test_a_run_inside_the_directory_of_its_texts_is_refused(self):
        texts = self.root / "texts"
        texts.mkdir()
        (texts / "a.txt").write_bytes((ROOT / "README.md").read_bytes())
        for train in (texts, f"{texts}/**"):
            output = self.run_job(self.job(), "--set", f"data.train={train}", "--set", f"output={texts}/run", status=2)
            self.assertIn("lies in data.train", output)
        self.assertEqual([p.name for p in texts.iterdir()], ["a.txt"])

    def test_fresh_is_refused_where_it_would_move_what_the_user_needs(self):
        job = self.trained()
        data = self.root / "a" / "data.txt"
        data.write_bytes((ROOT / "README.md").read_bytes())
        inside = pathlib.Path(shutil.copy(job, self.root / "a" / "mine.yaml"))
        before = self.kept()
        for arguments, found in (((job, "--set", f"data.train={data}"), "data.train, /"),
                                 ((job, "--set", f"data.train={data.parent}/*.txt"), "data.train, /"),
                                 ((inside,), "the job, "), ((job, "--set", f"output={self.root}"), "the job, ")):
            self.assertRegex(self.run_job(*arguments, "--fresh", status=2), f"--fresh: {found}.* lies in the output .*, which would be moved aside")
        self.assertIn("no such file", self.run_job(job, "--set", "data.train=nothing.txt", "--fresh", status=4))
        failed = subprocess.run([BINARY, "run", job, "--fresh"], cwd=self.root / "a", capture_output=True, text=True, timeout=PATIENCE)
        self.assertIn("the working directory lies in the output", failed.stderr)
        self.assertEqual(failed.returncode, 2)
        self.assert_kept(before)
        self.assertEqual([p.name for p in self.root.glob("a.old*")], [])

    def test_a_job_is_not_replaced_by_its_resolved_form(self):
        job = self.job()
        (self.root / "a").mkdir()
        mine = pathlib.Path(shutil.move(job, self.root / "a" / "job.yaml"))
        text = mine.read_text()
        self.assertIn("a/job.yaml is the job itself", self.run_job(mine, status=2))
        self.assertEqual(mine.read_text(), text)
        # The resolved job of a run can be run again.
        self.run_job(self.job("b"), "--set", "steps=6")
        self.run_job(self.root / "b" / "job.yaml", "--set", "steps=8")

    def test_an_output_around_the_working_directory_is_refused(self):
        job = self.job()
        here = self.root / "project"
        here.mkdir()
        before = sorted(self.root.iterdir())
        for output in ("/", self.root):
            failed = subprocess.run([BINARY, "run", job, "--set", f"output={output}"], cwd=here, capture_output=True, text=True, timeout=PATIENCE)
            self.assertRegex(failed.stderr, f"output: the working directory lies in {output}, which no run has written")
            self.assertEqual(failed.returncode, 2)
        self.assertEqual(sorted(self.root.iterdir()), before)
        # In the output itself a run may be started.
        done = subprocess.run([BINARY, "run", job, "--set", "output=.", "--set", "steps=8"], cwd=here, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_records_that_are_removed_during_the_run_are_reported_and_end_it_with_an_error(self):
        process = self.start(self.job(schedule=CONSTANT), "--set", "steps=200")
        self.wait_for_step(process, 5)
        (self.root / "a" / "steps.jsonl").unlink()
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 2, output)
        self.assertIn("steps.jsonl cannot be written: the file was removed while it was written", output)
        self.assertIn("/a/steps.jsonl was removed while the run wrote it: its last 200 lines are lost", output)
        self.assertEqual(self.checkpoints()[-1].name, "step-00000200")

    def test_a_lock_that_is_removed_is_made_again_unless_another_run_has_it(self):
        job = self.job(schedule=CONSTANT)
        process = self.start(job, "--set", "steps=100000", "--set", "checkpoint.every=10")
        self.wait_for_step(process, 5)
        (self.root / "a" / ".lock").unlink()
        self.assertIn("/a/.lock was removed or moved while the run held it", self.read_until(process, "the lock was made again"))
        self.assertIn("another run is using", self.run_job(job, status=2))
        (self.root / "a" / ".lock").unlink()
        with open(self.root / "a" / ".lock", "w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 2, output)
        self.assertRegex(output, r"another run has begun to use \S+/a: its lock, \S+/a/.lock, was removed or moved")

    def test_fresh_through_a_link_moves_what_it_leads_to(self):
        scratch = self.root / "scratch"
        scratch.mkdir()
        (self.root / "a").symlink_to(scratch)
        job = self.job()
        self.run_job(job, "--set", "steps=6")
        self.run_job(job, "--set", "steps=5", "--fresh")
        self.assertTrue((self.root / "a").is_symlink())
        self.assertEqual([s["step"] for s in self.steps()], list(range(1, 6)))
        self.assertEqual(len(list(self.root.glob("scratch.old-*/steps.jsonl"))), 1)

    def test_a_log_that_cannot_be_read_is_left_alone(self):
        job = self.trained()
        before = self.kept()
        rules, environment = self.failing_disk()
        rules.write_text(f"read {errno.EIO} steps.jsonl\n")
        output = self.run_job(job, status=2, env=environment)
        self.assertIn("steps.jsonl: cannot read: Input/output error", output)
        self.assert_kept(before)

    def test_a_garbled_line_is_set_aside_with_a_warning_and_the_run_goes_on(self):
        job = self.trained()
        log = self.root / "a" / "steps.jsonl"
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join([*lines[:5], "x" * 40 + "\n", *lines[6:]]))
        output = self.run_job(job)
        self.assertIn("steps.jsonl: line 6", output)
        self.assertEqual([s["step"] for s in self.steps()], [n for n in range(1, 25) if n != 6])
        self.assertEqual((self.root / "a" / "steps.jsonl.garbled").read_text(), "x" * 40 + "\n")
        self.assertTrue([e for e in self.events() if e["event"] == "warning" and "garbled" in e["message"]])

    def test_a_newest_checkpoint_without_its_marker_is_named(self):
        job = self.trained()
        (self.root / "a" / "checkpoints" / "step-00000012" / "COMPLETE").unlink()
        output = self.run_job(job)
        self.assertRegex(output, r"step-00000012 will not be used: .*COMPLETE")
        self.assertRegex(output, r"resuming.*step-00000010")
        self.assertTrue([e for e in self.events() if e["event"] == "warning" and "step-00000012" in e["message"]])

    def test_an_output_uri_is_one_place(self):
        job = self.job()
        output = f"output=file://{self.root}/a"
        self.run_job(job, "--set", output, "--set", "steps=6", cwd=self.root)
        self.assertEqual([s["step"] for s in self.steps()], list(range(1, 7)))
        self.assertEqual([p.name for p in self.checkpoints()], ["step-00000005", "step-00000006"])
        self.assertFalse((self.root / "file:").exists())
        self.run_job(job, "--set", "steps=7")
        self.assertIn("a directory is expected here", self.run_job(job, "--set", "output=s3://bucket/a", status=2))

    def test_planted_links_are_refused_or_replaced_and_their_targets_stay(self):
        mine = self.root / "mine"
        mine.write_text("precious")
        (self.root / "a").mkdir()
        for name in ("steps.jsonl", "events.jsonl", ".lock"):
            link = self.root / "a" / name
            link.unlink(missing_ok=True)
            link.symlink_to(mine)
            output = self.run_job(self.job(), status=2)
            self.assertIn(f"/{name}", output)
            link.unlink()
        self.assertRegex(output, r"/\.lock is not a regular file; remove it: nothing is written through links in the output directory")
        for name in ("steps.jsonl", "events.jsonl", ".lock", "run.log"):
            fifo = self.root / "a" / name
            fifo.unlink(missing_ok=True)
            os.mkfifo(fifo)
            self.assertIn(f"/{name} is not a regular file; remove it", self.run_job(self.job(), status=2))
            fifo.unlink()
        os.mkfifo(self.root / "a" / "report.html")  # a FIFO is replaced, like a link
        self.run_job(self.job(), "--set", "steps=5")
        self.run_job(self.job(), "--set", "steps=5")
        self.assertTrue((self.root / "a" / "report.html").is_file())
        (self.root / "a" / "report.html").unlink()
        (self.root / "a" / "job.yaml").unlink()
        os.mkfifo(self.root / "a" / "job.yaml")  # job.yaml is read at a resume
        self.assertIn("/job.yaml is not a regular file; remove it", self.run_job(self.job(), "--set", "steps=6", status=2))
        (self.root / "a" / "job.yaml").unlink()
        for name in ("job.yaml", "job.yaml.partial", "report.html", "report.html.partial"):
            (self.root / "a" / name).symlink_to(mine)
        self.run_job(self.job(), "--set", "steps=6")
        self.assertEqual(mine.read_text(), "precious")
        self.assertFalse((self.root / "a" / "report.html").is_symlink())


@sliced(6)
class Saving(RunTest):
    """Failed writes are retried while training continues."""

    def warnings(self, part, name="a"):
        return [e for e in self.events(name) if e["event"] == "warning" and part in e["message"]]

    def address(self, process):
        for line in process.stdout:
            if found := re.search(r"http://([0-9.]+:[0-9]+)/metrics", line):
                return found.group(1)
        self.fail("no metrics")

    def test_a_disk_that_is_full_for_a_while_costs_no_step(self):
        for waits in ("true", "false"):
            with self.subTest(f"async={waits}"):
                rules, environment = self.failing_disk()
                rules.unlink(missing_ok=True)
                name = f"async-{waits}"
                process = self.start(self.job(name), "--set", "steps=1000000", "--set", f"checkpoint.async={waits}", env=environment)
                address = self.address(process)
                self.wait_for_checkpoint(process, name)
                rules.write_text(f"write {errno.ENOSPC} shard-\n")
                self.wait_for(process, lambda: self.warnings("could not be written", name), "the failure is an event")
                # More snapshots than fit into memory: training waits for none of them.
                self.wait_for_step(process, self.steps(name)[-1]["step"] + 40, name)
                warning = self.warnings("could not be written", name)[0]["message"]
                self.assertRegex(warning, "No space left.*the disk is full: free some space.*training goes on for up to 1h")
                metrics = dict(re.findall(r"^(\S+) (\S+)$", scrape(address), re.M))
                self.assertGreaterEqual(float(metrics['trainerd_checkpoint_failures_total{part="write"}']), 1)
                self.assertGreater(float(metrics["trainerd_checkpoint_age_seconds"]), 0)
                saved = self.checkpoints(name)[-1]
                rules.unlink()
                [warning, *_] = self.wait_for(process, lambda: self.warnings("can be written again", name), "it is saved")
                self.assertRegex(warning["message"], r"^checkpoints can be written again: that of step \d+ was, after \d+ failed tries in ")
                self.wait_for(process, lambda: self.checkpoints(name)[-1] != saved, "a newer checkpoint")
                process.send_signal(signal.SIGTERM)
                output, _ = process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, 143, output)
                steps = [s["step"] for s in self.steps(name)]
                self.assertEqual(steps, list(range(1, len(steps) + 1)))
                self.assertEqual(self.checkpoints(name)[-1].name, f"step-{len(steps):08d}")
                left = sorted(p.name for p in (self.root / name / "checkpoints").iterdir())
                self.assertEqual(left, [p.name for p in self.checkpoints(name)], "something was left over")

    def test_old_checkpoints_that_cannot_be_removed_or_seen_end_nothing_and_go_later(self):
        for rule in (f"remove {errno.EIO} step-000000", f"look {errno.EIO} step-00000010/COMPLETE"):
            with self.subTest(rule):
                rules, environment = self.failing_disk()
                rules.unlink(missing_ok=True)
                name = rule.split()[0]
                folder = self.root / name / "checkpoints"
                process = self.start(self.job(name), "--set", "steps=1000000", "--set", "checkpoint.keep=2", env=environment)
                address = self.address(process)
                self.wait_for(process, lambda: len(self.checkpoints(name)) >= 2, "two checkpoints")
                rules.write_text(rule + "\n")
                self.wait_for(process, lambda: self.warnings("older checkpoints could not be removed, which is tried again after the next one", name), "the failure is an event")
                self.assertRegex(scrape(address), r'trainerd_checkpoint_failures_total\{part="clean_up"\} [1-9]')
                # A checkpoint that cannot be examined is not removed as unfinished.
                self.assertGreaterEqual(len(self.checkpoints(name)), 2)
                rules.unlink()
                step = self.steps(name)[-1]["step"]
                self.wait_for(process, lambda: self.checkpoints(name)[0].name > f"step-{step:08d}", "they are removed")
                process.send_signal(signal.SIGTERM)
                output, _ = process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, 143, output)
                self.assertEqual(sorted(folder.iterdir()), self.checkpoints(name))
                self.assertEqual(self.checkpoints(name)[-1].name, f"step-{self.steps(name)[-1]['step']:08d}")

    def test_a_run_that_cannot_save_for_its_time_to_give_up_ends_with_status_5(self):
        rules, environment = self.failing_disk()
        process = self.start(self.job(), "--set", "steps=1000000", "--set", "checkpoint.give_up=1s", env=environment)
        self.wait_for_checkpoint(process)
        begin = time.monotonic()
        rules.write_text(f"write {errno.EROFS} shard-\n")
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 5, output)
        self.assertGreater(time.monotonic() - begin, 1.0)
        self.assertRegex(output, r"could not be written in \d+ tries over .*Read-only file system.*the last checkpoint is \S+step-\d+")
        left = sorted((self.root / "a" / "checkpoints").iterdir())
        self.assertEqual(left, self.checkpoints())
        rules.unlink()
        self.assertIn("resuming", self.run_job(self.job(), "--set", f"steps={int(left[-1].name[5:]) + 3}"))

    def test_the_last_checkpoint_of_a_run_is_tried_again_before_it_ends(self):
        for stop in (False, True):
            with self.subTest(stop=stop):
                rules, environment = self.failing_disk()
                rules.write_text(f"write {errno.EDQUOT} shard-\n")
                name = f"stop-{stop}"
                steps = 1000000 if stop else 6
                process = self.start(self.job(name), "--set", f"steps={steps}", "--set", "checkpoint.every=0", env=environment)
                if stop:
                    self.wait_for_step(process, 3, name)
                    process.send_signal(signal.SIGTERM)
                self.wait_for(process, lambda: self.warnings("could not be written, try 2", name), "two tries have failed")
                rules.unlink()
                output, _ = process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, 143 if stop else 0, output)
                self.assertEqual([p.name for p in self.checkpoints(name)], [f"step-{self.steps(name)[-1]['step']:08d}"])

    def test_what_an_earlier_run_left_unfinished_is_collected_at_the_start(self):
        job = self.job()
        self.run_job(job, "--set", "steps=6")
        for name in ("step-00000099", "step-00000006.2", ".partial-step-00000099-of-a-version-that-renamed"):
            left = self.root / "a" / "checkpoints" / name
            left.mkdir()
            (left / "shard-00000.safetensors").write_text("half")
            self.run_job(job, "--set", "steps=6")
            self.assertFalse(left.exists())

    def test_unfinished_files_that_cannot_be_removed_are_reported_and_end_nothing(self):
        left = self.root / "a" / "checkpoints" / "step-00000099"
        left.mkdir(parents=True)
        (left / "shard-00000.safetensors").touch()
        rules, environment = self.failing_disk()
        rules.write_text(f"remove {errno.EROFS} step-00000099\n")
        output = self.run_job(self.job(), "--set", "steps=5", env=environment)
        self.assertRegex(output, r"what an earlier run left unfinished is still there: .*/step-00000099.*Read-only file system")
        self.assertTrue(left.exists())
        self.assertEqual([p.name for p in self.checkpoints()], ["step-00000005"])

    def test_a_refused_start_that_cannot_be_recorded_says_so_and_why_it_was_refused(self):
        job = self.job()
        self.run_job(job, "--set", "steps=6")
        self.data.write_text("other data " * 5000)
        rules, environment = self.failing_disk()
        rules.write_text(f"write {errno.EROFS} events.jsonl\n")
        output = self.run_job(job, status=5, env=environment)
        self.assertRegex(output, r"while the failure was recorded: .*events\.jsonl.*Read-only file system")
        self.assertIn("other data", output)

    def test_an_output_that_cannot_be_written_is_refused_with_what_to_set(self):
        (self.root / "file").touch()
        output = self.run_job(self.job(), "--set", f"output={self.root}/file/a", status=2)
        self.assertRegex(output, r"the output directory cannot be written: .*/file/a: Not a directory; set `output` to one that can")

    def test_a_full_disk_at_a_rerun_is_named_as_that(self):
        job = self.job()
        self.run_job(job, "--set", "steps=6")
        rules, environment = self.failing_disk()
        for part in (".lock", "job.yaml", ".partial-probe"):
            rules.write_text(f"write {errno.ENOSPC} {part}\n")
            output = self.run_job(job, "--set", "steps=7", status=5, env=environment)
            self.assertRegex(output, r"disk is full.*free some space")
            self.assertNotIn("another", output)


class Commands(RunTest):
    """`checkpoint list`, `verify` and `show` of a run, of its checkpoints, and of one."""

    def checkpoint(self, *args, status=0):
        done = subprocess.run([BINARY, "checkpoint", *args], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def test_a_run_its_checkpoints_and_one_checkpoint_are_taken_alike(self):
        self.run_job(self.job(), "--set", "steps=12")
        run = self.root / "a"
        newest = run / "checkpoints" / "step-00000012"
        moved = self.root / "exported"
        shutil.copytree(newest, moved)
        all_steps = [12, 10, 5]
        for place in (run, f"{run}/", f"file://{run}", run / "checkpoints"):
            listed = json.loads(self.checkpoint("list", place, "--json")[0])
            self.assertEqual([c["step"] for c in listed["checkpoints"]], all_steps)
            self.assertEqual(listed["incomplete"], [])
            verified = json.loads(self.checkpoint("verify", place, "--json")[0])["checkpoints"]
            self.assertEqual([(c["step"], c["complete"], c["shards"]) for c in verified], [(n, True, 1) for n in all_steps])
            self.assertEqual(json.loads(self.checkpoint("show", place, "--json")[0])["step"], 12)
            self.assertEqual(len(self.checkpoint("verify", place)[0].splitlines()), 3)
        for place in (newest, f"{newest}/", moved):
            self.assertEqual([c["step"] for c in json.loads(self.checkpoint("list", place, "--json")[0])["checkpoints"]], [12])
            self.assertIn("complete: step 12, 1 shard,", self.checkpoint("verify", place)[0])
            shown = json.loads(self.checkpoint("show", place, "--json")[0])
            self.assertEqual((shown["step"], shown["seed"], shown["tokens"]), (12, 7, 12 * 4 * 64))
            self.assertEqual([s["file"] for s in shown["shards"]], ["shard-00000.safetensors"])
            self.assertEqual({t["name"]: t["shape"] for t in shown["tensors"]}["embed.weight"], [256, 64])
        # The commands write nothing.
        self.assertEqual(sorted(p.name for p in (run / "checkpoints").iterdir()), [f"step-{n:08d}" for n in reversed(all_steps)])

    def test_damaged_and_unfinished_checkpoints_are_listed_beside_complete_ones(self):
        self.run_job(self.job(), "--set", "steps=12")
        folder = self.root / "a" / "checkpoints"
        (folder / "step-00000012" / "COMPLETE").unlink()
        with (folder / "step-00000010" / "shard-00000.safetensors").open("r+b") as shard:
            shard.seek(5000)
            shard.write(b"x" * 100)
        listed = json.loads(self.checkpoint("list", self.root / "a", "--json")[0])
        self.assertEqual(([c["step"] for c in listed["checkpoints"]], [c["step"] for c in listed["incomplete"]]), ([10, 5], [12]))
        self.assertRegex(self.checkpoint("list", self.root / "a")[0], "step-00000012  incomplete: no file COMPLETE")
        text, problem = self.checkpoint("verify", self.root / "a", status=5)
        self.assertIn("step-00000005: complete", text)
        self.assertRegex(problem, "step-00000010/shard-00000.safetensors: is damaged")
        verified = json.loads(self.checkpoint("verify", self.root / "a", "--json", status=5)[0])["checkpoints"]
        self.assertEqual([(c["step"], c["complete"]) for c in verified], [(10, False), (5, True)])
        self.assertIn("never finished", self.checkpoint("verify", folder / "step-00000012", status=5)[1])
        self.assertIn("no complete checkpoint", self.checkpoint("verify", self.root, status=5)[1])
        self.assertIn("no directory", self.checkpoint("list", self.root / "nowhere", status=5)[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
