"""The batch script of deploy/slurm/ under a real Slurm of two nodes on this host. Skipped where there is none."""

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
PartitionName=all Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@unittest.skipIf(MISSING, f"there is no Slurm here: {', '.join(MISSING)} not found (package slurm-wlm)")
@unittest.skipIf(os.geteuid() != 0, "a Slurm of the test's own needs root")
class Slurm(RunTest):
    def setUp(self):
        super().setUp()
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
        self.wait_until("the nodes are idle", lambda: self.slurm("sinfo", "-h", "-o", "%t", check=False).split() == ["idle"])

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

    def submit(self, job, *args):
        text = self.slurm("sbatch", "--parsable", "--nodes=2", f"--output={self.root}/out-%j", SCRIPT, job, *args)
        number = text.strip()
        self.addCleanup(self.slurm, "scancel", number, check=False)
        return number

    def ended(self, number):
        """(state, exit status) of a job, once it has ended."""
        fields = {}

        def over():
            words = self.slurm("scontrol", "--oneliner", "show", "job", number).split()
            fields.update(w.split("=", 1) for w in words if "=" in w)
            return fields["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")

        self.wait_until(f"job {number} ended", over)
        return fields["JobState"], fields["ExitCode"].split(":")[0]

    def output(self, number):
        return (self.root / f"out-{number}").read_text()

    def test_a_batch_job_trains_on_two_nodes_is_stopped_after_saving_and_goes_on(self):
        layout = ["--set", "parallel.dp=2", "--set", "batch.micro=1"]
        self.run_job(self.job("whole"), *layout)
        job = self.job("batch")
        number = self.submit(job, *layout)
        self.assertEqual(self.ended(number), ("COMPLETED", "0"), self.output(number))
        self.assertEqual(self.losses("batch"), self.losses("whole"))
        self.assertIn("node 1 of 2 trains ranks 1 to 1", self.output(number))

        # As at the end of a job's time.
        job = self.job("stopped", schedule=CONSTANT)
        number = self.submit(job, *layout, "--set", "steps=100000")
        self.wait_until("it trains", lambda: len(self.steps("stopped")) > 3)
        self.slurm("scancel", "--batch", "--signal=TERM", number)
        self.assertEqual(self.ended(number), ("FAILED", "143"), self.output(number))
        last = self.steps("stopped")[-1]["step"]
        self.assertEqual(self.checkpoints("stopped")[-1].name, f"step-{last:08d}")
        number = self.submit(job, *layout, "--set", f"steps={last + 3}")
        self.assertEqual(self.ended(number), ("COMPLETED", "0"), self.output(number))
        self.assertIn(f"resuming from {self.checkpoints('stopped')[0].parent}/step-{last:08d}", self.output(number))

        # More nodes than the job is for, and a script without its own --nodes.
        done = subprocess.run(["srun", "--nodes=2", "--ntasks-per-node=1", BINARY, "run", job, *layout], env=self.env,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("the Slurm step has 2 nodes and the job is for 1 nodes", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
