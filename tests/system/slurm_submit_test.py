"""`trainerd submit` under a real Slurm of two nodes on this host, and jobs that lose a node."""

import re
import unittest

from slurm_support import *

# The quickstart's job, made smaller: steps of 0.05 to 0.15 s.
STEPS = 24
QUICKSTART = ["--set", "model.layers=2", "--set", "model.seq_len=128", "--set", "batch.global=4", "--set", "batch.micro=2", "--set", f"steps={STEPS}",
              "--set", "optimizer.schedule.warmup=4", "--set", "checkpoint.every=6"]


class Submitter(SlurmTest):
    def trainerd(self, *args, status=0):
        done = subprocess.run([BINARY, *args], env=self.env, cwd=self.root, capture_output=True, text=True, timeout=180)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stderr

    def submitted(self, *args):
        """Submits a job with `trainerd submit`. Returns its number."""
        output = self.trainerd("submit", *args)
        number = re.search(r"^submitted: job (\d+) on", output, re.M).group(1)
        self.addCleanup(self.slurm, "scancel", number, check=False)
        return number

    def endless(self, name, *options):
        """Submits an endless job and waits until it trains. Returns its number."""
        number = self.submitted(self.job(name, schedule=CONSTANT), *LAYOUT, "--nodes", "2", "--set", "steps=10000000",
                                "--set", "checkpoint.every=0", *options)
        self.trains(lambda: self.last_step(name) > 3)
        return number


@sliced(4)
class Submit(Submitter):
    def test_a_job_is_planned_submitted_and_trained(self):
        self.run_job(self.job("whole"), *LAYOUT)
        job = self.job("batch")
        output = self.trainerd("submit", job, *LAYOUT, "--nodes", "2", "--time", "5", "--", "--comment=two words")
        number = re.search(r"job (\d+)", output).group(1)
        self.assertRegex(output, r"(?s)^system on 2 x .*\nfits: .* GiB\ntime of a step: .*\nsubmitted: job \d+ on 2 nodes, whole nodes\n")
        fields = self.scontrol(number)
        self.assertEqual((fields["JobName"], fields["NumNodes"], fields["TimeLimit"], fields["Requeue"], fields["OverSubscribe"]),
                         ("system", "2-2" if fields["JobState"] == "PENDING" else "2", "00:05:00", "1", "NO"))
        self.assertEqual(self.ended(number), ("COMPLETED", "0"), self.output(number))
        self.assertEqual(self.losses("batch"), self.losses("whole"))
        left = self.root / "batch" / "slurm"
        self.assertEqual(sorted(p.name for p in left.iterdir()), [f"{number}.out", f"{number}.sbatch", f"job-{number}.yaml"])
        resolved = self.trainerd("validate", left / f"job-{number}.yaml")
        self.assertIn("nodes: 2\n", resolved)
        # The printed script is the submitted one and can be submitted itself.
        printed = self.trainerd("submit", self.job("printed"), *LAYOUT, "--nodes", "2", "--dry")
        self.assertFalse((self.root / "printed").exists())
        (self.root / "printed" / "slurm").mkdir(parents=True)
        script = self.root / "printed.sbatch"
        script.write_text(printed)
        number = self.slurm("sbatch", "--parsable", script).strip()
        self.assertEqual(self.ended(number), ("COMPLETED", "0"), self.output(number))
        self.assertEqual(self.losses("printed"), self.losses("whole"))
        # The job gets only the CPUs of two ranks of a node.
        number = self.submitted(self.job("shared"), *LAYOUT, "--share")
        self.assertEqual(self.ended(number), ("COMPLETED", "0"), self.output(number))
        fields = self.scontrol(number)
        self.assertEqual((fields["NumNodes"], fields["NumCPUs"], fields["CPUs/Task"], fields["OverSubscribe"]), ("1", "2", "2", "OK"))
        self.assertEqual(self.losses("shared"), self.losses("whole"))

    def test_a_job_that_does_not_fit_or_that_slurm_refuses_is_not_submitted(self):
        large = self.trainerd("submit", self.job("large"), "--set", "model.hidden=16384", "--set", "model.layers=80", status=3)
        self.assertIn("the job is not submitted: ", large)
        self.assertIn("does not fit", large)
        refused = self.trainerd("submit", self.job("a"), "--partition", "none", status=2)
        self.assertIn("sbatch does not take the job: ", refused)
        self.assertIn("invalid partition", refused.lower())
        self.assertEqual(list((self.root / "a" / "slurm").iterdir()), [])
        self.assertRegex(self.trainerd("submit", self.job("a"), "--test-only"), r"Job \d+ to start at")
        self.assertEqual(self.slurm("squeue", "-h"), "")

    @unittest.skipUnless(FULL, "slurm_test.py has a preemption, and the next test --requeues")
    def test_a_submitted_job_is_preempted_requeued_and_cancelled(self):
        number = self.endless("a", "--partition", "grace", "--requeues", "2")
        self.preempt()
        self.saved_and_requeued("a", number, 1)
        self.assertIn("ended by preemption; requeued: restart 1 of at most 2", self.output(number))
        self.assertEqual(self.cancelled(number)[0], "CANCELLED")
        self.assertEqual(self.checkpoints("a")[-1].name, f"step-{self.steps('a')[-1]['step']:08d}")

    def test_a_job_whose_agent_is_killed_is_requeued_and_begins_again_without_a_checkpoint(self):
        number = self.endless("a", "--requeues", "1")
        tasks, _ = self.processes_of("node2")
        agents = [pid for pid in tasks if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"run"]]
        self.assertEqual(len(agents), 1)
        os.kill(agents[0], signal.SIGKILL)
        self.requeued(number, 1)
        self.assertIn("ended by the loss of a node or agent (status 137); requeued: restart 1 of at most 1", self.output(number))
        last = self.steps("a")[-1]["step"]
        self.hasten(number, "it begins again", lambda: "begins at step 1 again" in self.output(number) and len(self.steps("a")) > 3)
        self.assertIn(f"ended after step {last}, before its first checkpoint", self.output(number))
        self.assertEqual(self.steps("a")[0]["step"], 1)


class Loss(Submitter):
    slurmd_timeout = 10

    def lose_a_node(self, node):
        """Trains the quickstart on two nodes. One is lost in mid-run and comes back."""
        quickstart = ROOT / "configs" / "quickstart.yaml"
        self.run_job(quickstart, *QUICKSTART, "--set", f"output={self.root}/whole")
        number = self.submitted(quickstart, *QUICKSTART, "--nodes", "2", "--set", f"output={self.root}/lost")
        self.wait_until("it trains after a checkpoint", lambda: self.last_step("lost") > 8 and self.checkpoints("lost"))
        self.lose(node)
        step = self.steps("lost")[-1]["step"]
        self.assertLess(step, STEPS)
        # All complete checkpoints are of earlier steps and intact.
        self.requeued(number, 1, seconds=180)
        self.trainerd("checkpoint", "verify", self.root / "lost")
        kept = self.checkpoints("lost")[-1].name
        self.assertLessEqual(int(kept.split("-")[1]), step)
        self.slurmd[node] = self.daemon("slurmd", "-D", "-N", node)
        self.wait_for_nodes()
        self.hasten(number, "it is done", lambda: self.scontrol(number)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), seconds=180)
        self.assertEqual(self.ended(number), ("COMPLETED", "0"), self.output(number))
        self.assertEqual(self.losses("lost"), self.losses("whole"))
        self.assertIn("trainerd.sbatch: restart 1 of at most 20", self.output(number))
        self.assertIn(f"resuming from {self.root}/lost/checkpoints/{kept}", self.output(number))
        return number

    @unittest.skipUnless(FULL, "the next test loses the node of the script too")
    def test_a_job_that_loses_a_node_goes_on_and_has_the_same_losses(self):
        number = self.lose_a_node("node2")
        self.assertRegex(self.output(number), r"node 1 \(.*\) was lost after step \d+")

    def test_a_job_that_loses_the_node_of_its_script_goes_on_and_has_the_same_losses(self):
        self.lose_a_node("node1")
        self.assertRegex((self.root / "lost" / "run-node-1.log").read_text(), r"node 0 \(node1\) was lost after step \d+")


@sliced(4)
class Dry(RunTest):
    """Tests without Slurm."""

    def submit(self, *args, status=0):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "TRAINERD_MAX"))}
        done = subprocess.run([BINARY, "submit", *args], env={**environment, "PATH": str(self.root), "CUDA_VISIBLE_DEVICES": ""}, cwd=self.root,
                              capture_output=True, text=True, timeout=180)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stderr

    def options(self, *args):
        """The options of sbatch in the script."""
        return re.findall(r"^#SBATCH (.*)$", self.submit(self.job(), "--dry", *args), re.M)

    def test_a_job_is_looked_at_where_there_is_no_slurm(self):
        job = self.job()
        job.write_text(re.sub(r"(?m)^device: .*\n", "", job.read_text()))
        self.assertIn("#SBATCH --nodes=1\n", self.submit(job, "--dry"))
        self.assertIn("set device and parallel.dp, or let Slurm be asked: there is no sinfo on the PATH", self.submit(job, status=2))
        # Errors of the job are reported even if Slurm does not answer.
        for words, status, text in ((["--set", "optimizer.lrr=1"], 2, "unknown key (nearest valid: lr)"),
                                    (["--set", "model.heads=5"], 2, "is not divisible by heads 5"),
                                    (["--set", "batch.global=4194304", "--set", "batch.micro=4194304"], 3, "the job is not submitted: ")):
            self.assertIn(text, self.submit(job, *words, status=status))
        # And before it is asked.
        sinfo = self.root / "sinfo"
        sinfo.write_text(f"#!/bin/sh\n: >{self.root}/asked\nexit 1\n")
        sinfo.chmod(0o755)
        self.submit(job, "--set", "model.heads=5", status=2)
        self.assertFalse((self.root / "asked").exists())
        self.assertIn("sinfo", self.submit(job, status=2))
        self.assertTrue((self.root / "asked").exists())
        sinfo.unlink()
        sweep = self.root / "sweep.yaml"
        sweep.write_text(f"output: {self.root}/sweep\nbase: {job}\ngrid: {{seed: [1, 2]}}\nwhere: slurm\n")
        for more, status, text in ((["--dry"], 0, "are by this machine, since Slurm does not say what its nodes have: there is no sinfo on the PATH"),
                                   ([], 2, "set device and parallel.dp in the base, or let Slurm be asked: there is no sinfo on the PATH")):
            done = subprocess.run([BINARY, "sweep", sweep, *more], env={"PATH": str(self.root), "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(text, done.stderr)

    def test_options_become_those_of_the_script(self):
        plain = self.options()
        self.assertLess({"--job-name=system", "--nodes=1", "--exclusive", "--mem=0", "--requeue", "--signal=B:TERM@120",
                         f"--chdir={self.root}", f"--output={self.root}/a/slurm/%j.out"}, set(plain))
        self.assertEqual(len(self.options("-p", "gpu", "-A", "me", "-q", "high", "-t", "1:00:00")), len(plain) + 4)
        self.assertLess({"--partition=gpu", "--account=me", "--qos=high", "--time=1:00:00"},
                        set(self.options("-p", "gpu", "-A", "me", "-q", "high", "-t", "1:00:00")))
        self.assertIn("--signal=B:TERM@600", self.options("--save-before", "10m"))
        self.assertIn("--no-requeue", self.options("--requeues", "0"))
        shared = self.options("--share", *LAYOUT)
        self.assertIn("--cpus-per-task=2", shared)
        self.assertFalse({"--exclusive", "--mem=0"} & set(shared))
        self.assertEqual([option for option in self.options("--", "--job-name=x", "--constraint=a&b", "--contiguous") if option not in plain],
                         ["--job-name=x", "--constraint='a&b'", "--contiguous"])
        script = self.submit(self.job(), "--dry", "--requeues", "7", "--interface", "ib0", "--rendezvous-timeout", "20")
        self.assertIn("TRAINERD_MAX_REQUEUES=7\n", script)
        self.assertIn('set -- "$resolved" --interface ib0 --rendezvous-timeout 20\n', script)

    def test_what_cannot_be_submitted_is_refused_in_one_line(self):
        job = self.job()
        for words, problem in {("--save-before", "soon"): "--save-before: expected a duration",
                               ("-t", "2:00"): "--time 2:00 is no longer than the 2m before its end",
                               ("-t", "2:00:00", "--save-before", "3h"): "--time 2:00:00 is no longer than the 3h before its end",
                               ("--share", "--set", "threads=0"): "threads: 0 takes all cores of a node",
                               ("--", "--nodes=2"): "give --nodes before the `--`",
                               ("--", "-p"): "'-p' is no option of sbatch",
                               ("--set", "device=auto"): "device: auto and dp: auto are by what Slurm's nodes have",
                               ("--set", "device=cuda", "--set", "data.format=synthetic", "--set", "data.train=[]", "--set", "data.valid=[]"):
                                   "name the cluster that Slurm's nodes are",
                               (): "there is no sbatch on the PATH"}.items():
            with self.subTest(words):
                self.assertIn(problem, self.submit(job, *words, status=2))
        self.assertEqual(list((self.root / "a" / "slurm").iterdir()), [])


class Gpus(SlurmTest):
    gpus = 8

    def test_a_job_for_gpus_asks_for_those_of_its_ranks(self):
        job = self.job("a").read_text().replace("device: cpu\nthreads: 1\n", "")
        (self.root / "gpu.yaml").write_text(job + "cluster: {preset: dgx-h100}\nparallel: {dp: 16}\n")

        def submit(*args):
            return subprocess.run([BINARY, "submit", self.root / "gpu.yaml", "--set", "batch.global=64", *args],
                                  env={**self.env, "CUDA_VISIBLE_DEVICES": ""}, cwd=self.root, capture_output=True, text=True, timeout=180)

        done = submit("--test-only")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?s)^system on 16 x NVIDIA H100 .*time of a step: .* tokens/s; 24 steps: ")
        self.assertRegex(done.stdout, r"Job \d+ to start at \S+ using 4 processors on nodes node\[1-2\] in partition batch")
        done = submit("--test-only", "--set", "parallel.dp=32")  # four nodes
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("sbatch would not take the job", done.stderr)
        # device: auto depends on Slurm's nodes, for which this machine cannot plan.
        done = submit("--test-only", "--set", "cluster.preset=local", "--set", "cluster.nodes=2")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("name the cluster that Slurm's nodes are", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
