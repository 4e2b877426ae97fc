"""The batch script of deploy/slurm/ under a real Slurm of two nodes on this host."""

import socket
import unittest

from support import *

SCRIPT = ROOT / "deploy" / "slurm" / "trainerd.sbatch"
PROGRAMS = ["slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol"]
MISSING = [p for p in PROGRAMS if shutil.which(p, path=os.environ["PATH"] + ":/usr/sbin") is None]

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
ReturnToService=2
MpiDefault=none
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,bf_interval=1
PartitionName=batch Nodes=node1,node2 Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=grace Nodes=node1,node2 PriorityTier=1 GraceTime=30 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=node1,node2 PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


LAYOUT = ["--set", "parallel.dp=2", "--set", "batch.micro=1"]


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@unittest.skipIf(os.geteuid() != 0, "a Slurm of the test's own needs root")
class Slurm(RunTest):
    def setUp(self):
        super().setUp()
        self.assertEqual(MISSING, [], "there is no Slurm here: deploy/install-deps.sh --tests installs it")
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool-node1", "spool-node2"):
            (self.root / name).mkdir()
        config = self.root / "slurm.conf"
        config.write_text(CONFIG.format(host=host, root=self.root, ports=free_ports(3)))
        self.env = {**{k: v for k, v in os.environ.items() if not k.startswith("SLURM")}, "SLURM_CONF": str(config),
                    "PATH": os.environ["PATH"] + ":/usr/sbin", "TRAINERD": str(BINARY)}
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "node1"], ["slurmd", "-D", "-N", "node2"]):
            process = subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(self.end_daemon, process)
        self.wait_until("the nodes are idle", lambda: set(self.slurm("sinfo", "-h", "-o", "%t", check=False).split()) == {"idle"})

    @staticmethod
    def end_daemon(process):
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def slurm(self, *command, check=True):
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=30)
        if check:
            self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def wait_until(self, what, condition, seconds=40):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"== {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.root.glob("*.log")) + sorted(self.root.glob("out-*")))
                self.fail(f"not in {seconds} s: {what}\n{logs}")
            time.sleep(0.05)

    def submit(self, job, *args, options=()):
        text = self.slurm("sbatch", "--parsable", "--nodes=2", f"--output={self.root}/out-%j", *options, SCRIPT, job, *args)
        number = text.strip()
        self.addCleanup(self.slurm, "scancel", number, check=False)
        return number

    def ended(self, number):
        """(state, exit status) of a job, once it has ended."""
        fields = {}

        def over():
            fields.update(self.scontrol(number))
            return fields["JobState"] not in ("PENDING", "RUNNING", "SIGNALING", "COMPLETING", "CONFIGURING")

        self.wait_until(f"job {number} ended", over, seconds=100)  # a time limit is a minute or more
        return fields["JobState"], fields["ExitCode"].split(":")[0]

    def output(self, number):
        return (self.root / f"out-{number}").read_text()

    def scontrol(self, number):
        """The job's fields."""
        words = self.slurm("scontrol", "--oneliner", "show", "job", number).split()
        return dict(w.split("=", 1) for w in words if "=" in w)

    def train(self, name, *options):
        """A batch job without an end, once it trains."""
        number = self.submit(self.job(name, schedule=CONSTANT), *LAYOUT, "--set", "steps=10000000", "--set", "checkpoint.every=0", options=options)
        self.wait_until("it trains", lambda: len(self.steps(name)) > 3)
        return number

    def preempt(self):
        number = self.slurm("sbatch", "--parsable", "--nodes=2", "--exclusive", "--partition=urgent", "--output=/dev/null", "--wrap=true").strip()
        self.addCleanup(self.slurm, "scancel", number, check=False)

    def saved_and_requeued(self, name, number, restart):
        """Checks that the job is in the queue again and lost no step, starts it, and waits until it has gone on."""
        self.wait_until("it is requeued", lambda: self.scontrol(number)["JobState"] == "PENDING")
        self.assertEqual(self.scontrol(number)["Restarts"], str(restart), self.output(number))
        last = self.steps(name)[-1]["step"]
        self.assertEqual(self.checkpoints(name)[-1].name, f"step-{last:08d}", self.output(number))

        # Started in the second in which it was requeued, the job has a credential that counts as revoked, and Slurm drops it.
        later = time.monotonic() + 2

        def goes_on():
            # Slurm waits for two minutes, counted from the end of the requeue: it may set them after this was changed.
            if self.scontrol(number)["JobState"] == "PENDING" and time.monotonic() > later:
                self.slurm("scontrol", "update", f"JobId={number}", "StartTime=now", check=False)
            return self.steps(name)[-1]["step"] > last + 3

        self.wait_until("it goes on", goes_on)
        self.assertIn(f"checkpoints/step-{last:08d} (step {last})", self.output(number))

    def cancelled(self, number, *options):
        self.slurm("scancel", *options, number)
        state = self.ended(number)
        self.assertIn("saved and stopped on request: not requeued", self.output(number))
        return state

    def test_a_batch_job_trains_on_two_nodes(self):
        self.run_job(self.job("whole"), *LAYOUT)
        job = self.job("batch")
        number = self.submit(job, *LAYOUT)
        self.assertEqual(self.ended(number), ("COMPLETED", "0"), self.output(number))
        self.assertEqual(self.losses("batch"), self.losses("whole"))
        self.assertIn("node 1 of 2 trains ranks 1 to 1", self.output(number))

        # More nodes than the job is for, and a script without its own --nodes.
        done = subprocess.run(["srun", "--nodes=2", "--ntasks-per-node=1", BINARY, "run", job, *LAYOUT], env=self.env,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("the Slurm step has 2 nodes and the job is for 1 nodes", done.stderr)

    def test_a_job_that_is_preempted_is_saved_and_goes_on_with_and_without_a_grace_time(self):
        for restart, partition in enumerate(("batch", "grace"), 1):
            with self.subTest(partition):
                number = self.train(partition, f"--partition={partition}")
                self.preempt()
                self.saved_and_requeued(partition, number, 1)
                output = self.output(number)
                if partition == "grace":  # nobody else requeues it
                    self.assertIn("ended by preemption; requeued: restart 1 of at most 20", output)
                else:
                    self.assertIn("Slurm requeues the job: restart 1", output)
                self.assertIn("trainerd.sbatch: restart 1 of at most 20", output)
                # An earlier preemption does not make a cancelled job come back.
                self.assertEqual(self.cancelled(number)[0], "CANCELLED")

    def test_a_job_at_its_time_limit_is_saved_and_goes_on_as_often_as_allowed(self):
        self.env["TRAINERD_MAX_REQUEUES"] = "1"
        # Slurm looks every half minute.
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
