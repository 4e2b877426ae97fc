"""Sweeps with the real binary: complete, killed and resumed, with refused and failing jobs, and with halving."""

import unittest

from support import *
from sweep_support import GRID, SweepCase


@sliced(6)
class SweepTest(SweepCase):
    def test_a_twelve_job_sweep_killed_half_way_and_resumed_has_the_table_of_an_undisturbed_one(self):
        self.run_sweep(self.sweep_file(GRID, "whole"))
        whole = self.table("whole")
        self.assertEqual([r[2:4] for r in whole], [("done", 60)] * 12)
        self.assertEqual(whole[1][1], {"optimizer.lr": 0.001, "model.hidden": 32, "seed": 2})
        self.assertEqual(len({r[4] for r in whole}), 12)
        self.assertTrue(all(r["tokens_per_second"] > 0 and r["validation_loss"] > 0 for r in self.results("whole")))

        path = self.sweep_file(GRID, "killed")
        killed = 0
        for _ in range(2):
            process = self.start_sweep(path)
            wanted = 4 * (killed + 1)
            self.wait_for(process, lambda: self.half_way("killed", wanted), f"{wanted} jobs are done")
            jobs = self.children(process.pid)
            process.kill()
            if killed == 0:  # its jobs too, with SIGKILL: unsaved steps are repeated
                for job in jobs:
                    os.kill(job, signal.SIGKILL)
            process.wait()
            killed += 1
        output = self.run_sweep(path)
        self.assertEqual(self.table("killed"), whole, output)
        # A third start has nothing to do.
        self.assertNotIn("started", self.run_sweep(path))
        self.assertEqual(self.table("killed"), whole)

    def test_jobs_end_with_a_killed_sweep_and_the_next_one_waits_for_them(self):
        path = self.sweep_file("list: [{seed: 1}]\n", steps=1_000_000, base="restarts: 0\nsupervise: {hang_factor: 0}\n")
        process = self.start_sweep(path)
        self.wait_for_step(process, 5, "s/jobs/s-001")
        job, = self.children(process.pid)
        # The worker, not its agent: when the sweep dies, the kernel continues a stopped process of an orphaned process group (SIGHUP, SIGCONT).
        worker, = self.children(job)
        os.kill(worker, signal.SIGSTOP)
        process.kill()
        process.wait()
        second = self.start_sweep(path)
        self.read_until(second, "s-001 still runs, by an earlier sweep: waiting for it")
        os.kill(worker, signal.SIGCONT)
        self.read_until(second, "s-001 started")
        self.assertFalse(alive(job))
        second.send_signal(signal.SIGTERM)
        output, _ = second.communicate(timeout=PATIENCE)
        self.assertEqual(second.returncode, 143, output)
        self.assertIn("the same command goes on", output)
        self.assertEqual(self.results(), [])
        self.assertEqual(self.events("s/jobs/s-001")[-1]["event"], "stop")

    def test_what_does_not_fit_is_refused_before_anything_starts_and_a_failed_job_stops_no_other(self):
        jobs = ("list:\n  - {seed: 1}\n  - {model.layers: 64, model.hidden: 16384, model.heads: 128, model.ffn: 65536}\n  - {model.heads: 3}\n"
                "  - {optimizer.lr: 1.0e+30, optimizer.grad_clip: 0}\n  - {data.train: [none-here.txt]}\n  - {seed: 2}\n")
        path = self.sweep_file(jobs)
        dry = self.run_sweep(path, "--dry")
        self.assertFalse((self.root / "s").exists())
        rows = [line for line in dry.splitlines() if line.startswith("s-")]
        self.assertEqual(["refused: " in row for row in rows], [False, True, True, False, False, False])
        self.assertRegex(rows[0], r"fits: .* of a node")
        self.assertIn("does not fit", rows[1])
        output = self.run_sweep(path, status=6)
        self.assertLess(output.index("s-002 refused"), output.index("started"))
        results = self.results()
        self.assertEqual([r["status"] for r in results], ["done", "refused", "refused", "failed", "failed", "done"])
        self.assertIn("not finite", results[3]["reason"])
        self.assertIn("none-here.txt", results[4]["reason"])
        self.assertEqual((results[1]["step"], results[1]["loss"]), (0, None))
        self.assertFalse((self.root / "s/jobs/s-002").exists())
        page = (self.root / "s/results.html").read_text()
        self.assertIn("prefers-color-scheme: dark", page)
        self.assertEqual(page.count("<polyline"), 6)
        self.assertNotIn("http", page.replace("http-equiv", ""))

    def test_halving_stops_the_worse_jobs_and_the_best_is_that_of_its_whole_run(self):
        halving = "halving: {metric: validation_loss, eta: 2, min_steps: 20}\n"
        grid = "grid: {optimizer.lr: [1.0e-5, 1.0e-3, 1.0e-2, 1.0e-4]}\n"
        path = self.sweep_file(grid + halving, "h", steps=80)
        process = self.start_sweep(path)
        self.read_until(process, "rung of step 20: 2 of 4 jobs go on")
        process.kill()
        process.wait()
        self.run_sweep(path)
        results = self.results("h")
        self.assertEqual([(r["status"], r["step"]) for r in results],
                         [("stopped_early", 20), ("stopped_early", 40), ("done", 80), ("stopped_early", 20)])
        self.run_sweep(self.sweep_file(grid, "all", steps=80))
        whole = self.table("all")
        self.assertEqual(self.table("h")[2], whole[2])
        # A stopped job has the losses of its full run until then, and is worse at its rung than the promoted ones.
        for job in range(4):
            steps, full = (self.steps(f"{name}/jobs/{name}-{job + 1:03}") for name in ("h", "all"))
            self.assertEqual([s["loss"] for s in steps], [s["loss"] for s in full[:len(steps)]])
        at = lambda job, step: next(e["loss"] for e in self.events(f"all/jobs/all-{job:03}")
                                    if e["event"] == "evaluation" and e["step"] == step)
        self.assertLess(max(at(2, 20), at(3, 20)), min(at(1, 20), at(4, 20)))
        self.assertLess(at(3, 40), at(2, 40))

    def test_a_sweep_does_not_go_on_with_other_jobs(self):
        self.run_sweep(self.sweep_file("grid: {seed: [1]}\n", steps=5))
        self.run_sweep(self.sweep_file("grid: {seed: [1, 2]}\n", steps=5))
        self.assertEqual([r["status"] for r in self.results()], ["done", "done"])
        output = self.run_sweep(self.sweep_file("grid: {seed: [3, 2]}\n", steps=5), status=2)
        self.assertIn("s-001 in", output)
        self.assertIn("seed: 1 -> 3", output)
        output = self.run_sweep(self.sweep_file("grid: {seed: [1, x]}\n  lr: 3\n", steps=5), status=2)
        self.assertIn("s.yaml:", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
