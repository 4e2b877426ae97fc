"""A real Slurm of two or more nodes on this host, for one test."""

import pathlib
import random
import socket

from support import *

SCRIPT = ROOT / "deploy" / "slurm" / "trainerd.sbatch"
PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "sinfo", "squeue"]
MISSING = [p for p in PROGRAMS if shutil.which(p, path=os.environ["PATH"] + ":/usr/sbin") is None]

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
ReturnToService=2
SlurmdTimeout={slurmd_timeout}
FirstJobId={first_job}
MpiDefault=none
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
{nodes}
{more}PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,bf_interval=1
PartitionName=batch Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=grace Nodes=ALL PriorityTier=1 GraceTime=30 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=ALL PriorityTier=1 MaxTime=INFINITE State=UP
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


class SlurmTest(RunTest):
    slurmd_timeout = 300  # seconds after which Slurm considers a node without slurmd down
    node_count = 2
    gpus = 0              # GPUs declared per node
    features = "none"     # features of each node, for --constraint

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("a Slurm of the test's own needs root")
        self.assertEqual(MISSING, [], "there is no Slurm here: deploy/install-deps.sh --tests installs it")
        host = socket.gethostname().split(".")[0]
        names = [f"node{i + 1}" for i in range(self.node_count)]
        for name in ("state", *(f"spool-{node}" for node in names)):
            (self.root / name).mkdir()
        port, *ports = free_ports(1 + self.node_count)
        resources = f"CPUs=2 Features={self.features}" + (f" Gres=gpu:{self.gpus}" if self.gpus else "")
        nodes = "\n".join(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={own} {resources} State=UNKNOWN"
                          for node, own in zip(names, ports))
        config = self.root / "slurm.conf"
        config.write_text(CONFIG.format(host=host, root=self.root, port=port, slurmd_timeout=self.slurmd_timeout, nodes=nodes,
                                        first_job=random.randrange(1000, 60_000_000),  # the job's port depends on it
                                        more="GresTypes=gpu\n" if self.gpus else ""))
        if self.gpus:
            # Files stand for devices: Slurm only counts them.
            for i in range(self.gpus):
                (self.root / f"gpu{i}").touch()
            (self.root / "gres.conf").write_text(f"NodeName=node[1-{self.node_count}] Name=gpu File={self.root}/gpu[0-{self.gpus - 1}]\n")
        self.env = {**{k: v for k, v in os.environ.items() if not k.startswith("SLURM")}, "SLURM_CONF": str(config),
                    "PATH": os.environ["PATH"] + ":/usr/sbin", "TRAINERD": str(BINARY)}
        self.addCleanup(self.end_jobs, names)  # when the daemons have ended
        self.start_munge()
        self.daemon("slurmctld", "-D")
        self.slurmd = {node: self.daemon("slurmd", "-D", "-N", node) for node in names}
        self.wait_for_nodes()

    def daemon(self, *command):
        process = subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.end_daemon, process)
        return process

    def start_munge(self):
        """Starts a munged for the test with its own key, which authenticates Slurm's programs of this cluster."""
        self.root.chmod(0o711)  # munged requires that everybody can reach its socket
        folder = self.root / "munge"
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = [f"--{option}-file={folder}/{name}" for option, name in (("key", "key"), ("pid", "pid"), ("log", "log"), ("seed", "seed"))]
        munged = self.daemon("munged", "--foreground", f"--socket={folder}/socket", *files)
        self.wait_until("munged listens", lambda: munged.poll() is not None or (folder / "socket").exists())
        self.assertIsNone(munged.poll(), (folder / "log").read_text() if (folder / "log").exists() else "munged ended")

    def wait_for_nodes(self):
        self.wait_until("the nodes are idle", lambda: set(self.slurm("sinfo", "-h", "-o", "%t", check=False).split()) == {"idle"})

    def processes_of(self, node):
        """(processes that Slurm started on a node, their slurmstepd processes)."""
        marks = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={self.env['SLURM_CONF']}".encode()}
        tasks, steps = set(), set()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if not marks <= set((process / "environ").read_bytes().split(b"\0")):
                    continue
                parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
                tasks.add(int(process.name))
                if pathlib.Path(f"/proc/{parent}/comm").read_text().startswith("slurmstepd"):
                    steps.add(parent)
            except OSError:  # it has ended
                pass
        return tasks, steps

    def lose(self, node):
        """Kills a node's slurmd, its slurmstepd and their processes, as a power cut does."""
        tasks, steps = self.processes_of(node)
        self.assertTrue(tasks and steps)
        self.kill(self.slurmd[node].pid, *steps, *tasks)
        self.slurmd[node].wait()

    def end_jobs(self, nodes):
        """Kills what Slurm started. Jobs outlive its daemons, and an endless one would compute beside all later tests."""
        for node in nodes:
            tasks, steps = self.processes_of(node)
            self.kill(*steps, *tasks)

    @staticmethod
    def kill(*pids):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    @staticmethod
    def end_daemon(process):
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def slurm(self, *command, check=True):
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=PATIENCE)
        if check:
            self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def wait_until(self, what, condition, seconds=90):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"== {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.root.glob("*.log")) + sorted(self.root.glob("out-*")) + sorted(self.root.glob("*/slurm/*.out")))
                self.fail(f"not in {seconds} s: {what}\n{logs}")
            time.sleep(0.2)  # most conditions start a process to ask Slurm

    def submit(self, job, *args, options=()):
        text = self.slurm("sbatch", "--parsable", "--nodes=2", f"--output={self.root}/out-%j", *options, SCRIPT, job, *args)
        number = text.strip()
        self.addCleanup(self.slurm, "scancel", number, check=False)
        return number

    def ended(self, number):
        """Waits for the end of a job. Returns (state, exit status)."""
        fields = {}

        def over():
            fields.update(self.scontrol(number))
            return fields["JobState"] not in ("PENDING", "RUNNING", "SIGNALING", "COMPLETING", "CONFIGURING")

        self.wait_until(f"job {number} ended", over, seconds=240)  # time limits are at least a minute
        return fields["JobState"], fields["ExitCode"].split(":")[0]

    def output(self, number):
        """The output of the batch script."""
        found = [self.root / f"out-{number}", *self.root.glob(f"*/slurm/{number}.out")]
        return next((path.read_text() for path in found if path.exists()), "")

    def scontrol(self, number):
        """The job's fields."""
        words = self.slurm("scontrol", "--oneliner", "show", "job", number).split()
        return dict(w.split("=", 1) for w in words if "=" in w)

    def train(self, name, *options):
        """Submits an endless batch job and waits until it trains. Returns its number."""
        number = self.submit(self.job(name, schedule=CONSTANT), *LAYOUT, "--set", "steps=10000000", "--set", "checkpoint.every=0", options=options)
        self.trains(lambda: self.last_step(name) > 3)
        return number

    def trains(self, condition):
        """Waits until an endless job trains. From then on other programs come first: Slurm takes up to a minute to end it."""
        self.wait_until("it trains", condition)
        for node in self.slurmd:
            tasks, _ = self.processes_of(node)
            lower_priority(*tasks)

    def preempt(self):
        number = self.slurm("sbatch", "--parsable", "--nodes=2", "--exclusive", "--partition=urgent", "--output=/dev/null", "--wrap=true").strip()
        self.addCleanup(self.slurm, "scancel", number, check=False)

    def requeued(self, number, restart, seconds=90):
        """Waits until the job is in the queue again."""
        self.wait_until("it is requeued", lambda: self.scontrol(number)["JobState"] == "PENDING", seconds)
        self.assertEqual(self.scontrol(number)["Restarts"], str(restart), self.output(number))

    def hasten(self, number, what, condition, seconds=90):
        """Waits for `condition` on a queued job, and makes Slurm start the job soon."""
        # If the job starts in the second of its requeue, its credential counts as revoked, and Slurm drops it.
        later = time.monotonic() + 2

        def hastened():
            # Slurm delays the start by two minutes from the end of the requeue, possibly after this change.
            if self.scontrol(number)["JobState"] == "PENDING" and time.monotonic() > later:
                self.slurm("scontrol", "update", f"JobId={number}", "StartTime=now", check=False)
            return condition()

        self.wait_until(what, hastened, seconds)

    def saved_and_requeued(self, name, number, restart):
        """Checks that the job is queued again and lost no step, starts it, and waits until it has continued."""
        self.requeued(number, restart)
        last = self.steps(name)[-1]["step"]
        self.assertEqual(self.checkpoints(name)[-1].name, f"step-{last:08d}", self.output(number))
        self.hasten(number, "it goes on", lambda: self.steps(name)[-1]["step"] > last)
        self.trains(lambda: self.steps(name)[-1]["step"] > last + 3)
        self.assertIn(f"checkpoints/step-{last:08d} (step {last})", self.output(number))

    def cancelled(self, number, *options):
        self.slurm("scancel", *options, number)
        state = self.ended(number)
        self.assertIn("saved and stopped on request: not requeued", self.output(number))
        return state



__all__ = ["SlurmTest", "RunTest", "LAYOUT", "BINARY", "CONSTANT", "FULL", "ROOT", "sliced", "pathlib", "json", "os", "shutil", "signal", "subprocess", "time"]
