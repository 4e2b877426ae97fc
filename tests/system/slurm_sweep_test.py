"""Sweeps as arrays of a real Slurm of two nodes on this host."""

import re
import unittest

from slurm_support import SlurmTest
from support import *
from sweep_support import GRID, SweepCase


class SlurmSweep(SlurmTest, SweepCase):
    def test_a_twelve_job_sweep_stopped_half_way_and_resumed_has_the_table_of_a_local_one(self):
        self.run_sweep(self.sweep_file(GRID, "local"))
        path = self.sweep_file(GRID + "where: slurm\nsbatch: [--time=10:00]\n", "array")
        process = self.start_sweep(path, env=self.env)
        self.wait_until("half of it is done", lambda: self.half_way("array", 4), seconds=120)
        process.kill()
        array = re.search(r"submitted to Slurm as job (\d+)", process.communicate(timeout=180)[0])[1]
        # A killed sweep leaves its array to Slurm. The next sweep waits for the array, and cancels it if the sweep is stopped.
        process = self.start_sweep(path, env=self.env)
        self.read_until(process, f"Slurm still runs job {array} of an earlier sweep")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=180)
        self.assertEqual(process.returncode, 143, output)
        self.assertLess(len(self.results("array")), 12)
        # Killed after Slurm has accepted the array and before the sweep has its number.
        (self.root / "killing").mkdir()
        sbatch = self.root / "killing" / "sbatch"
        sbatch.write_text(f"#!/bin/sh\n{shutil.which('sbatch', path=self.env['PATH'])} \"$@\" >{self.root}/number\nkill -KILL $PPID\n")
        sbatch.chmod(0o755)
        self.run_sweep(path, env={**self.env, "PATH": f"{sbatch.parent}:{self.env['PATH']}"}, status=-signal.SIGKILL)
        output = self.run_sweep(path, env=self.env, timeout=180)
        self.assertIn(f"Slurm still runs job {(self.root / 'number').read_text().strip()} of an earlier sweep", output)
        self.assertEqual(self.table("array"), self.table("local"), output)
        self.assertNotIn("submitted", self.run_sweep(path, env=self.env))

    def test_each_rung_of_halving_is_an_array(self):
        text = "grid: {optimizer.lr: [1.0e-5, 1.0e-3]}\nhalving: {eta: 2, min_steps: 20}\nwhere: slurm\n"
        output = self.run_sweep(self.sweep_file(text), env=self.env, timeout=180)
        self.assertEqual(output.count("submitted to Slurm"), 2, output)
        self.assertEqual([(r["status"], r["step"]) for r in self.results()], [("stopped_early", 20), ("done", 60)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
