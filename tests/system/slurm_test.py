"""The batch script of deploy/slurm/ under a real Slurm of two nodes on this host."""

import unittest

from slurm_support import *


@sliced(4)
class Script(SlurmTest):
    def test_a_batch_job_trains_on_two_nodes(self):
        self.run_job(self.job("whole"), *LAYOUT)
        job = self.job("batch")
        number = self.submit(job, *LAYOUT)
        self.assertEqual(self.ended(number), ("COMPLETED", "0"), self.output(number))
        self.assertEqual(self.losses("batch"), self.losses("whole"))
        self.assertIn("node 1 of 2 trains ranks 1 to 1", self.output(number))

    def srun(self, *args, status=0):
        """The output of `srun trainerd run` on two nodes."""
        done = subprocess.run(["srun", "--nodes=2", *args], env=self.env, capture_output=True, text=True, timeout=180)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout + done.stderr

    def test_srun_needs_nothing_but_the_job(self):
        self.run_job(self.job("whole"), *LAYOUT)
        # node1 and node2 are not in DNS.
        output = self.srun(BINARY, "run", self.job("step"), *LAYOUT)
        self.assertIn("cluster.nodes is 2, the nodes that the scheduler gave the job", output)
        self.assertRegex(output, r"node 1 of 2 joins node 0 at 127\.0\.0\.1:\d+")
        self.assertEqual(self.losses("step"), self.losses("whole"))
        # A job for another number of nodes, and several tasks per node.
        self.assertIn("the Slurm step has 2 nodes and the job is for 1 node",
                      self.srun(BINARY, "run", self.job("one"), *LAYOUT, "--set", "cluster.nodes=1", status=2))
        self.assertIn("start with srun --ntasks-per-node=1", self.srun("--ntasks-per-node=2", BINARY, "run", self.job("two"), *LAYOUT, status=2))

    def test_a_job_that_is_preempted_is_saved_and_goes_on_with_and_without_a_grace_time(self):
        for restart, partition in enumerate(("batch", "grace"), 1):
            with self.subTest(partition):
                number = self.train(partition, f"--partition={partition}")
                self.preempt()
                self.saved_and_requeued(partition, number, 1)
                output = self.output(number)
                if partition == "grace":  # nothing else requeues it
                    self.assertIn("ended by preemption; requeued: restart 1 of at most 20", output)
                else:
                    self.assertIn("Slurm requeues the job: restart 1", output)
                self.assertIn("trainerd.sbatch: restart 1 of at most 20", output)
                # An earlier preemption does not make a cancelled job come back.
                self.assertEqual(self.cancelled(number)[0], "CANCELLED")

    def test_a_job_at_its_time_limit_is_saved_and_goes_on_as_often_as_allowed(self):
        self.env["TRAINERD_MAX_REQUEUES"] = "1"
        # Slurm checks time limits every 30 s.
        number = self.train("limit", "--time=1", "--signal=B:TERM@45")
        self.saved_and_requeued("limit", number, 1)
        self.assertIn("ended by the time limit; requeued: restart 1 of at most 1", self.output(number))
        self.assertEqual(self.ended(number), ("FAILED", "143"), self.output(number))
        self.assertIn("as many as TRAINERD_MAX_REQUEUES allows: not requeued", self.output(number))
        self.assertEqual(self.checkpoints("limit")[-1].name, f"step-{self.steps('limit')[-1]['step']:08d}")

    def test_a_job_that_is_cancelled_is_saved_and_does_not_come_back(self):
        for name, options in (("all", []), ("steps", ["--signal=TERM"])):
            with self.subTest(name):
                number = self.train(name)
                state = self.cancelled(number, *options)
                self.assertEqual(state, ("CANCELLED" if name == "all" else "FAILED", "143"), self.output(number))
                self.assertEqual(self.checkpoints(name)[-1].name, f"step-{self.steps(name)[-1]['step']:08d}")
                self.assertEqual(self.scontrol(number)["Restarts"], "0")

    def test_a_task_of_an_array_is_stopped_and_requeued_alone(self):
        job = self.job("${SLURM_ARRAY_TASK_ID}", schedule=CONSTANT)
        array = self.submit(job, "--set", "steps=10000000", "--set", "checkpoint.every=0", options=("--array=0-1", "--nodes=1"))
        tasks = [f"{array}_{i}" for i in range(2)]
        self.trains(lambda: all(self.last_step(str(i)) > 3 for i in range(2)))
        # One of the two tasks has the array's own number.
        self.assertIn(array, [self.scontrol(task)["JobId"] for task in tasks])
        for i, task in enumerate(tasks):
            other = tasks[1 - i]
            before = self.scontrol(other)["Restarts"]
            self.slurm("scancel", "--batch", "--signal=TERM", task)  # as Slurm does before the time limit
            self.wait_until("it is requeued", lambda: self.scontrol(task)["JobState"] == "PENDING")
            self.assertEqual(self.scontrol(task)["Restarts"], "1")
            last = self.steps(str(i))[-1]["step"]
            self.assertEqual(self.checkpoints(str(i))[-1].name, f"step-{last:08d}")
            if i == 0:
                self.assertEqual((self.scontrol(other)["JobState"], self.scontrol(other)["Restarts"]), ("RUNNING", before))
                self.hasten(task, "it goes on", lambda: self.steps("0")[-1]["step"] > last + 3)
        self.assertEqual((self.scontrol(tasks[0])["JobState"], self.scontrol(tasks[0])["Restarts"]), ("RUNNING", "1"))
        self.slurm("scancel", tasks[0])
        self.assertEqual(self.ended(tasks[0])[0], "CANCELLED")
        self.assertEqual(self.scontrol(tasks[1])["JobState"], "PENDING")


if __name__ == "__main__":
    unittest.main(verbosity=2)
