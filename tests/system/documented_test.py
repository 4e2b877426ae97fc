"""Runs the commands of the pages' `console` blocks about nodes and Slurm, as a user types them."""

import pathlib
import pty
import re
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from documents import documented, documented_line
from netns import Hosts
from nodes_test import free_port
from slurm_support import *
from support import *

STEPS = 3


class Commands(RunTest):
    """A directory with `trainerd`, `job.yaml`, `configs/` and `deploy/` as the pages expect them."""

    def setUp(self):
        super().setUp()
        (self.root / "bin").mkdir()
        (self.root / "bin" / "trainerd").symlink_to(BINARY)
        for folder in ("configs", "deploy"):
            (self.root / folder).symlink_to(ROOT / folder)

    def write_job(self, name, ranks, more=""):
        """Writes job.yaml for `ranks` ranks with output `name`, plus the task's number in an array."""
        text = self.job("job").read_text()
        text = re.sub(r"(?m)^output: .*$", f"output: {self.root}/{name}${{SLURM_ARRAY_TASK_ID:-}}", text)
        text = re.sub(r"(?m)^steps: .*$", f"steps: {STEPS}", text)
        text = re.sub(r"(?m)^batch: .*$", "batch: {global: 4, micro: 1}", text)
        text = re.sub(r"warmup: \d+", "warmup: 1", text)
        (self.root / "job.yaml").write_text(text + f"parallel: {{dp: {ranks}}}\n{more}")

    def environment(self, base=os.environ):
        return {**base, "PATH": f"{self.root}/bin:{base['PATH']}", "CUDA_VISIBLE_DEVICES": ""}

    def assert_trained(self, name):
        self.assertEqual([s["step"] for s in self.steps(name)], list(range(1, STEPS + 1)), name)


class Nodes(Commands):
    def test_an_agent_on_each_of_two_nodes_and_a_spare(self):
        self.write_job("nodes", 2, "cluster: {nodes: 2, failures: {spares: 1}}\n")
        here = f"127.0.0.1:{free_port()}"
        agents = []
        for beginning in ("trainerd run job.yaml --spare", "trainerd run job.yaml --nodes 2 --node 0", "trainerd run job.yaml --nodes 2 --node 1"):
            words = documented("core/run/README.md", beginning, {"10.0.0.1:29500": here})
            agents.append(subprocess.Popen(words, env=self.environment(), cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            self.addCleanup(self._end, agents[-1])
        outputs = [agent.communicate(timeout=120)[0] for agent in agents]
        self.assertEqual([agent.returncode for agent in agents], [0, 0, 0], "\n----\n".join(outputs))
        self.assert_trained("nodes")


@sliced(6)
class Data(Commands):
    def inspect(self, *beginning, status=0):
        done = subprocess.run(documented("io/README.md", *beginning), env=self.environment(), cwd=self.root, capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout + done.stderr

    def test_token_files_are_inspected(self):
        (self.root / "tokens").mkdir()
        for last, status, beginning in ((50_256, 0, "trainerd data inspect tokens/ --vocab 50257  "), (50_257, 4, "trainerd data inspect tokens/ --vocab 50257 --all")):
            ids = [*range(50_000), last]
            header = struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253)  # llm.c's
            (self.root / "tokens" / "a.bin").write_bytes(header + struct.pack(f"<{len(ids)}H", *ids))
            self.assertRegex(self.inspect(beginning, status=status).replace(",", ""), r"tokens +50001" if status == 0 else r"a\.bin.*50257 at position 50000")


    def test_texts_are_prepared(self):
        (self.root / "corpus").mkdir()
        for name in ("a", "b"):
            (self.root / "corpus" / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"document {name} {n}"}) + "\n" for n in range(50)))
        tokenizer = ROOT / "tests" / "io" / "tokenizers" / "llama3.json"
        line = documented_line("io/README.md", "trainerd data prepare corpus/*.jsonl", {"llama3/tokenizer.json": tokenizer})
        done = subprocess.run(["bash", "-c", line], env=self.environment(), cwd=self.root, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads((self.root / "tokens" / "dataset.json").read_text())["documents"], 100)

    def test_pairs_are_prepared(self):
        (self.root / "pairs.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": "a"}], "chosen": [{"role": "assistant", "content": "b"}],
                                                           "rejected": [{"role": "assistant", "content": "c"}]}) + "\n")
        words = documented("io/README.md", "trainerd data prepare pairs.jsonl", {"qwen3/tokenizer.json": ROOT / "tests" / "io" / "tokenizers" / "qwen2.json"})
        done = subprocess.run(words, env=self.environment(), cwd=self.root, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(json.loads((self.root / "pairs" / "dataset.json").read_text())["pairs"])


class Plans(Commands):
    def test_this_machine_is_measured_and_planned_for(self):
        page = "core/plan/README.md"
        self.write_job("planned", 1)

        def plan(beginning, *more, places=None):
            done = subprocess.run([*documented(page, beginning, places), *more], env=self.environment(), cwd=self.root, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout

        plan("trainerd calibrate --out", "--seconds", "0.01")  # as written it takes 45 s; one round has every operator
        self.assertIn("time of a step: ", plan("trainerd plan job.yaml --cluster here.yaml"))
        self.assertIn("time of a step: ", plan("trainerd plan job.yaml --calibrate", places={"--calibrate ": "--calibrate=0.01 "}))
        # A run accepts the file, too.
        self.run_job(self.root / "job.yaml", "--rates", self.root / "here.yaml", cwd=self.root)
        self.assert_trained("planned")


@sliced(6)
class Views(Commands):
    def test_runs_are_looked_at(self):
        page = "io/README.md"
        for name in ("quickstart", "a", "b", "c"):
            self.write_job(f"runs/{name}", 1)
            self.run_job(self.root / "job.yaml", cwd=self.root)
        for beginning in ("trainerd top --once", "trainerd report runs/a runs/b", "trainerd report runs/a --out"):
            done = subprocess.run(documented(page, beginning), env=self.environment(), cwd=self.root, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("cmp", "a"):
            self.assertIn("<html", (self.root / f"{name}.html").read_text())

        self.write_job("runs/long", 1)
        process = self.start(self.root / "job.yaml", "--set", "steps=1000000", cwd=self.root)
        self.wait_for_step(process, 1, "runs/long")
        [address] = json.loads((self.root / "runs" / "long" / "metrics.json").read_text())[0]["targets"]
        self.follow(documented(page, "trainerd top runs/quickstart"), "done")
        self.follow(documented(page, "trainerd top http", {"node17:9464": address}), "training")
        done = subprocess.run(documented(page, "curl", {"127.0.0.1:9464": address}), capture_output=True, text=True)
        self.assertIn("trainerd_loss ", done.stdout)

    @unittest.skipUnless(Hosts.possible(), "network namespaces need CAP_NET_ADMIN")
    def test_a_run_is_followed_by_its_default_address(self):
        hosts = Hosts(1)  # a host with its own ports
        self.addCleanup(hosts.close)
        self.write_job("alone", 1)
        job = self.root / "job.yaml"
        job.write_text(re.sub(r"(?m)^metrics: .*\n", "", job.read_text()))
        run = subprocess.Popen(hosts.command(0, BINARY, "run", job, "--set", "steps=1000000"), cwd=self.root, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self._end, run)
        self.wait_for_step(run, 1, "alone")
        self.follow(hosts.command(0, *documented("io/README.md", "trainerd top      ")), "training")

    def follow(self, words, text):
        """Runs a command on a terminal and types `q` once it shows `text`."""
        master, slave = pty.openpty()
        process = subprocess.Popen(words, env={**self.environment(), "TERM": "xterm"}, cwd=self.root, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        shown = b""
        while text.encode() not in shown:
            self.assertIsNone(process.poll(), shown)
            shown += os.read(master, 1 << 16)
        os.write(master, b"q")
        try:
            while os.read(master, 1 << 16):
                pass
        except OSError:  # the other end is closed
            pass
        os.close(master)
        self.assertEqual(process.wait(), 0)


@sliced(6)
class Slurm(Commands, SlurmTest):
    """Slurm with 16 nodes of 8 declared GPUs each."""
    node_count, gpus, features = 16, 8, "h100"

    def type(self, page, beginning, name=None, ranks=1, more=""):
        """Runs one of a page's commands. Returns its output."""
        if name:
            self.write_job(name, ranks, more)
        words = documented(page, beginning)
        done = subprocess.run(words, env=self.environment({k: v for k, v in self.env.items() if k != "TRAINERD"}), cwd=self.root,
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def assert_completed(self, number, output):
        self.assertEqual(self.ended(number), ("COMPLETED", "0"), (self.root / output).read_text())

    def test_ten_billion_parameters_on_128_gpus(self):
        output = self.type("deploy/README.md", "trainerd submit configs/10b-h100.yaml")
        self.assertRegex(output, r"(?s)^10b-h100 on 128 x NVIDIA H100 .*\nfits: .* of 79.6 GiB\n.*Job \d+ to start at \S+ .* on nodes node\[1-16\]")

    def test_jobs_are_submitted_and_train(self):
        page = "deploy/README.md"
        submitted = {}
        for name, ranks, beginning in (("partition", 1, "trainerd submit job.yaml --partition gpu"), ("four", 4, "trainerd submit job.yaml --nodes 4")):
            submitted[name] = re.search(r"submitted: job (\d+)", self.type(page, beginning, name, ranks))[1]
        submitted["two"] = re.search(r"submitted: job (\d+)", self.type("core/run/README.md", "trainerd submit job.yaml --nodes 2", "two", 2))[1]
        self.assertIn("to start at", self.type(page, "trainerd submit job.yaml --test-only", "asked"))
        for name, number in submitted.items():
            self.assert_completed(number, f"{name}/slurm/{number}.out")
            self.assert_trained(name)
        self.assertEqual(self.steps("asked"), [])

    def test_srun_and_sbatch_train(self):
        for name, page, beginning in (("plain", "core/run/README.md", "srun --nodes=2"), ("own", "deploy/README.md", "srun")):
            self.type(page, beginning, name, 2)
            self.assert_trained(name)
        self.type("core/run/README.md", "srun --nodes=5", "spared", 4, "cluster: {nodes: 4, failures: {spares: 1}}\n")
        self.assert_trained("spared")
        for name, ranks, beginning in (("script", 2, "sbatch --nodes=2 deploy"), ("early", 2, "sbatch --nodes=2 --signal"), ("array", 1, "sbatch --array")):
            output = self.type("deploy/README.md", beginning, name, ranks)
            number = re.search(r"Submitted batch job (\d+)", output)[1]
            tasks = [f"{number}_{task}" for task in range(4)] if name == "array" else [number]
            for task in tasks:
                self.assert_completed(task, f"slurm-{task}.out")
            for task in ("0123" if name == "array" else [""]):
                self.assert_trained(name + task)


if __name__ == "__main__":
    unittest.main(verbosity=2)
