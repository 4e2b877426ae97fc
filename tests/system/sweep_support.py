"""Small sweeps and their results."""

from support import *

# Some seconds of steps for twelve jobs: long enough for a kill in the middle.
BASE = """\
name: base
device: cpu
threads: 1
seed: 5
model: {{layers: 1, hidden: 32, heads: 2, ffn: 64, vocab: 256, seq_len: 32}}
batch: {{global: 4, micro: 4}}
optimizer: {{lr: 1.0e-3, schedule: {{kind: constant}}}}
steps: {steps}
data: {{train: [data.txt], valid: [data.txt]}}
checkpoint: {{every: 10}}
evaluate: {{every: 20, batches: 1}}
"""
GRID = "grid: {optimizer.lr: [1.0e-3, 3.0e-3, 1.0e-2], model.hidden: [32, 64], seed: [1, 2]}\n"


class SweepCase(RunTest):
    def sweep_file(self, text, name="s", steps=60, base=""):
        (self.root / "base.yaml").write_text(BASE.format(steps=steps) + base)
        path = self.root / f"{name}.yaml"
        path.write_text(f"name: {name}\noutput: {self.root}/{name}\nbase: base.yaml\nat_once: 2\n{text}")
        return path

    def start_sweep(self, path, *args, **kwargs):
        process = subprocess.Popen([BINARY, "sweep", path, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, **kwargs)
        self.addCleanup(self._end, process)
        return process

    def run_sweep(self, path, *args, status=0, timeout=600 if SANITIZED else 120, **kwargs):
        process = self.start_sweep(path, *args, **kwargs)
        output, _ = process.communicate(timeout=timeout)
        self.assertEqual(process.returncode, status, output)
        return output

    def results(self, name="s"):
        return [json.loads(line) for line in (self.root / name / "results.jsonl").read_text().splitlines()]

    def table(self, name="s"):
        """The results without values that depend on the machine's speed or the sweep's name; losses as exact text."""
        return [(r["job"].split("-")[1], r["set"], r["status"], r["step"], repr(r["loss"]), repr(r["validation_loss"]))
                for r in self.results(name)]

    def half_way(self, name, done):
        path = self.root / name / "results.jsonl"
        if not path.exists() or len(path.read_text().splitlines()) < done:
            return False
        logs = [self.root / name / "jobs" / f"{name}-{done + i:03}" / "steps.jsonl" for i in (1, 2)]
        return any(log.exists() and log.read_text().count("\n") > 12 for log in logs)
