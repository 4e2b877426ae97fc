"""Copies of checkpoints in a durable tier (a directory or a failing object store): training never waits for it, and a run whose
output is lost resumes from it."""

import errno
import re
import unittest

from nodes_test import free_port
from s3_server import Store
from support import *


@sliced(6)
class Durable(RunTest):
    def setUp(self):
        super().setUp()
        self.store = Store()
        self.addCleanup(self.store.server_close)
        self.addCleanup(self.store.shutdown)
        self.environment = {**{k: v for k, v in os.environ.items() if not k.startswith("AWS_")}, **self.store.environment()}

    def durable(self, to="s3://safe/runs/a", **more):
        return [f"--set=checkpoint.durable.{key}={value}" for key, value in {"to": to, **more}.items()]

    def stored(self, prefix="safe/runs/a"):
        """Folders of complete checkpoints in the store."""
        return sorted(k.split("/")[-2] for k in list(self.store.objects) if k.startswith(prefix) and k.endswith("/COMPLETE"))

    def notices(self, kind, name="a"):
        return [e["message"] for e in self.events(name) if e["event"] == kind]

    def checkpoint(self, *args, status=0):
        done = subprocess.run([BINARY, "checkpoint", *args], env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_a_run_whose_output_is_lost_goes_on_bit_for_bit_from_a_store_that_fails(self):
        self.run_job(self.job("whole"))
        # Credentials expire and must be fetched again, and all kinds of failures occur.
        self.store.lifetime = 1
        del self.environment["AWS_ACCESS_KEY_ID"], self.environment["AWS_SECRET_ACCESS_KEY"]
        self.environment |= {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.store.url}/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN": self.store.token}
        seen = []

        def fault(handler):
            with self.store.lock:
                seen.append(handler.path)
                turn = len(seen) % 17
            if turn == 8:
                time.sleep(0.2)
            return {1: 503, 4: "cut", 7: 500, 11: "drop"}.get(turn)

        self.store.fault = fault
        output = self.run_job(self.job(), "--stop-after", "12", *self.durable(keep=2), env=self.environment)
        self.assertNotIn("ASIA", output)
        stored = self.stored()
        self.assertTrue(stored and len(stored) <= 2 and stored[-1] >= "step-00000012", stored)
        self.assertTrue(self.notices("durable"), self.events())
        self.assertIn("s3://safe/runs/a/" + stored[-1], self.notices("durable")[-1])
        self.assertEqual(self.store.uploads, {})
        # The store is read from outside of the run.
        self.assertIn(stored[-1], self.checkpoint("list", "s3://safe/runs/a"))
        self.assertIn("checksums OK", self.checkpoint("verify", "s3://safe/runs/a"))
        self.assertIn("shard-00000.safetensors", self.checkpoint("show", f"s3://safe/runs/a/{stored[-1]}"))
        self.assertIn("bit for bit", self.checkpoint("diff", "s3://safe/runs/a", self.root / "a"))
        # The disk is lost.
        last = self.last_step()
        shutil.rmtree(self.root / "a")
        output = self.run_job(self.job(), *self.durable(keep=2), env=self.environment)
        self.assertIn(f"resuming from s3://safe/runs/a/{stored[-1]}", output)
        self.assertIn("the newest of the run's directory and its durable tier is s3://safe/runs/a/" + stored[-1], self.notices("durable")[0])
        self.assertIn("holds none", self.notices("durable")[0])
        self.assertEqual(self.losses(), self.losses("whole")[last:])
        self.assertEqual(self.stored()[-1], "step-00000024")
        # The run is complete: nothing is sent again.
        self.store.requests.clear()
        self.assertIn("all 24 steps are done already", self.run_job(self.job(), *self.durable(keep=2), env=self.environment))
        self.assertEqual([r for r in self.store.requests if r[0] in ("PUT", "POST", "DELETE")], [])

    def test_the_newest_complete_checkpoint_of_both_places_is_loaded_and_named(self):
        job, place = self.job(), self.root / "place"
        self.run_job(job, "--stop-after", "10", *self.durable(place))
        newest = self.checkpoints()[-1]
        self.assertEqual(sorted(p.name for p in place.iterdir())[-1], newest.name)
        shard = newest / "shard-00000.safetensors"
        data = bytearray(shard.read_bytes())
        data[-5] ^= 1
        shard.write_bytes(data)
        output = self.run_job(job, "--stop-after", "14", *self.durable(place))
        self.assertRegex(output, rf"{newest} is damaged and will not be used")
        self.assertIn(f"resuming from {place}/{newest.name}", output)
        # If both are intact, the run's own checkpoint is used.
        self.assertIn(f"resuming from {self.root}/a/", self.run_job(job, "--stop-after", "16", *self.durable(place)))
        self.assertIn("holds checkpoints of an earlier run", self.run_job(job, "--fresh", *self.durable(place), status=2))
        # Another run refuses to use the tier.
        output = self.run_job(self.job("b"), *self.durable(place), status=2)
        self.assertIn(f'OWNER names job "system", output "{self.root}/a"', output)
        self.assertEqual(self.steps("b"), [])
        link = self.root / "link"
        link.symlink_to(self.root / "a" / "checkpoints")
        self.assertIn("is the run's own directory", self.run_job(job, *self.durable(link), status=2))
        # Checkpoints that the tier lacks at the start are copied to it.
        shutil.rmtree(place)
        self.run_job(job, *self.durable(place))
        again = [p.name for p in place.iterdir() if (p / "COMPLETE").exists()]
        self.assertIn("step-00000024", again)
        shutil.rmtree(place)
        self.assertIn("all 24 steps are done", self.run_job(job, *self.durable(place)))
        self.assertTrue((place / "step-00000024" / "COMPLETE").exists())

    def test_an_unreachable_tier_stops_nothing_but_a_start_from_nothing(self):
        job = self.job()
        process = self.start(job, *self.durable(), "--set=steps=100000", env=self.environment)
        self.wait_for(process, self.stored, "a first copy")
        # A denied request fails at once, an unavailable store is retried for seconds per request.
        status = 503 if FULL else 403
        self.store.fault = lambda handler: status
        self.wait_for(process, lambda: [m for m in self.notices("warning") if "could not be copied" in m], "the failure is an event", 2 * PATIENCE)
        step = self.last_step()
        self.wait_for_step(process, step + 10)
        address = json.loads((self.root / "a" / "metrics.json").read_text())[0]["targets"][0]
        self.wait_for(process, lambda: re.search(r"(?m)^trainerd_durable_checkpoint_age_seconds [1-9]", scrape(address)), "the tier's age")
        metrics = scrape(address)
        self.assertRegex(metrics, r"(?m)^trainerd_durable_checkpoint_failures_total [1-9]")
        self.assertRegex(metrics, r"(?m)^trainerd_durable_checkpoints_total [1-9]")
        # The store recovers before the run ends.
        before = self.stored()
        self.store.fault = lambda handler: None
        self.wait_for(process, lambda: self.stored() != before, "another copy", 2 * PATIENCE)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=2 * PATIENCE)
        self.assertEqual(process.returncode, 143, output)
        self.assertRegex(output, r"the durable copy of step \d+ is dropped: a newer checkpoint takes its place")
        self.store.fault = lambda handler: status
        process = self.start(job, *self.durable(), "--set=steps=100000", env=self.environment)
        self.read_until(process, "may hold a newer checkpoint")
        self.read_until(process, "resuming from")
        process.kill()
        process.wait()
        shutil.rmtree(self.root / "a")
        output = self.run_job(job, *self.durable(), status=5, env=self.environment)
        self.assertIn("nothing begins at step 1", output)
        self.assertEqual(self.steps(), [])

    def test_a_checkpoint_that_is_removed_before_it_is_copied_is_given_up(self):
        self.store.fault = lambda handler: 403 if "shard-" in handler.path else None
        process = self.start(self.job(), *self.durable(), "--set=steps=6", "--set=checkpoint.every=0", env=self.environment)
        self.wait_for(process, lambda: [m for m in self.notices("warning") if "could not be copied" in m], "the failure is an event")
        for checkpoint in self.checkpoints():
            shutil.rmtree(checkpoint)
        output, _ = process.communicate(timeout=2 * PATIENCE)
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("the durable copy of step 6 is dropped: it is not in the run's directory any more", output)
        self.assertNotIn("is not in the durable tier", output)
        self.assertEqual(self.stored(), [])

    def test_a_tag_that_cannot_be_written_is_reported(self):
        rules, environment = self.failing_disk()
        good = ["--set=checkpoint.every=200", "--set=checkpoint.good_after=200", "--set=steps=400", "--set=evaluate.every=0"]
        no_space = r"could not be tagged good: \S*/step-00000200/GOOD\S* .*No space left on device"
        rules.write_text(f"write {errno.ENOSPC} /GOOD\n")
        self.assertRegex(self.run_job(self.job("own"), *good, env=environment), r"\] the checkpoint of step 200 " + no_space)
        place = self.root / "place"
        rules.write_text(f"write {errno.ENOSPC} {place}/step-00000200/GOOD\n")
        output = self.run_job(self.job("after"), *self.durable(place), *good, env=environment)
        self.assertRegex(output, "the checkpoint of step 200 in the durable tier " + no_space)
        self.assertTrue((self.root / "after" / "checkpoints" / "step-00000200" / "GOOD").exists())

        # The copy is complete only after the run's own checkpoint has its tag.
        def fault(handler):
            end = time.monotonic() + PATIENCE
            while "shard-" in handler.path and time.monotonic() < end and not any((c / "GOOD").exists() for c in self.checkpoints("before")):
                time.sleep(0.05)
            return 403 if handler.path.endswith("/GOOD") else None

        self.store.fault = fault
        output = self.run_job(self.job("before"), *self.durable(), *good, env=self.environment)
        self.assertRegex(output, r"it could not be tagged good there: s3://\S+/step-00000200/GOOD: ")

    def test_while_the_disk_is_full_the_snapshot_in_memory_goes_to_the_tier(self):
        rules, environment = self.failing_disk()
        self.run_job(self.job("whole"))
        rules.write_text(f"write {errno.ENOSPC} /step-0000\n")
        job = self.job()
        process = self.start(job, *self.durable(), "--set=checkpoint.every=0", "--stop-after=7",
                             env={**environment, **self.environment, "LD_PRELOAD": environment["LD_PRELOAD"]})
        self.wait_for(process, self.stored, "a copy of the snapshot")
        if FULL:  # the disk stays full, and the run waits for it at the end
            output, _ = process.communicate(timeout=2 * PATIENCE)
            self.assertEqual(process.returncode, 0, output)
        else:
            self.wait_for(process, lambda: self.notices("durable"), "it is an event")
            process.kill()
            process.wait()
        self.assertEqual(self.checkpoints(), [])
        self.assertIn("from the snapshot in memory", self.notices("durable")[0])
        last = self.last_step()
        shutil.rmtree(self.root / "a")
        self.run_job(job, *self.durable(), env=self.environment)
        self.assertEqual(self.losses(), self.losses("whole")[last:])

    def test_nodes_copy_the_shards_of_their_ranks(self):
        layout = ["--set=parallel.dp=2", "--set=batch.micro=1"]
        self.run_job(self.job("whole"), *layout)
        job, port = self.job(), free_port()
        options = [*layout, *self.durable(), "--nodes", "2", "--rendezvous", f"127.0.0.1:{port}", "--stop-after", "12"]
        nodes = [self.start(job, *options, "--node", str(node), env=self.environment) for node in (0, 1)]
        for process in nodes:
            output, _ = process.communicate(timeout=2 * PATIENCE)
            self.assertEqual(process.returncode, 0, output)
        self.assertIn("2 shards", self.checkpoint("verify", "s3://safe/runs/a"))
        last = self.last_step()
        shutil.rmtree(self.root / "a")
        self.run_job(job, *layout, *self.durable(), env=self.environment)
        self.assertEqual(self.losses(), self.losses("whole")[last:])

    def test_objects_are_files_of_a_storage_through_failures(self):
        """Uses the storage class alone (`test_io [.s3-storage]`)."""
        for failing in (False, True) if FULL else (True,):
            turns = []

            def fault(handler):
                with self.store.lock:
                    turns.append(handler.path)
                    return {1: 503, 3: "cut", 5: "drop"}.get(len(turns) % 23) if failing else None

            self.store.fault = fault
            self.store.page = 3 if failing else 1000
            cases = "an interrupted copy*" if failing else "[.s3-storage]"
            done = subprocess.run([os.environ["TRAINERD_TEST_IO"], cases], env=self.environment, capture_output=True, text=True,
                                  timeout=4 * PATIENCE)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertGreater(len(turns), 60 if failing else 300)
            self.assertEqual(([k for k in self.store.objects if k.startswith("written/")], self.store.uploads), ([], {}))


if __name__ == "__main__":
    unittest.main()
