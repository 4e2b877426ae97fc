"""Runs the real binary on small jobs in a temporary directory."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

BINARY = pathlib.Path(os.environ["TRAINERD_BINARY"]).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Sanitizers slow the program down several times and end it themselves when memory is short.
SANITIZED = b"__asan_init" in BINARY.read_bytes() or b"__tsan_init" in BINARY.read_bytes()

# A disk that stands still: no fsync returns while the file that the environment names exists.
SLOW_DISK = r'''
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int fsync(int fd) {
  const char* hold = getenv("SLOW_DISK_HOLD");
  while (hold && access(hold, F_OK) == 0) usleep(1000);
  return (int)syscall(SYS_fsync, fd);
}
'''

JOB = """\
name: system
seed: 7
output: {output}
device: cpu
threads: 1
model: {{layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 176, vocab: 256, seq_len: 64}}
batch: {{global: 4, micro: 2}}
precision: bf16
optimizer: {{name: adamw, lr: {lr}, schedule: {schedule}}}
steps: 24
data: {{train: [{data}], valid: [{data}], format: text, tokenizer: bytes}}
checkpoint: {{every: 5, keep: 3}}
evaluate: {{every: 10, batches: 1}}
metrics: {{listen: "127.0.0.1:0"}}
"""


CONSTANT = "{kind: constant, warmup: 5}"


def make_text(size):
    """Words of a small fixed vocabulary: something to learn, the same every time."""
    rng = random.Random(3)
    words = ["int", "float", "return", "while", "template", "class", "namespace", "{", "}", ";", "(", ")", "\n"]
    out = []
    while sum(map(len, out)) < size:
        out.extend(rng.choice(words) + " " for _ in range(500))
    return "".join(out)


class RunTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="trainerd-test-"))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.data = self.root / "data.txt"
        self.data.write_text(make_text(60_000))

    def job(self, name="a", extra="", lr="1.0e-3", schedule="{kind: cosine, warmup: 5, min_lr: 1.0e-4}"):
        path = self.root / f"{name}.yaml"
        path.write_text(JOB.format(output=self.root / name, data=self.data, lr=lr, schedule=schedule) + extra)
        return path

    def start(self, job, *args, **kwargs):
        process = subprocess.Popen([BINARY, "run", job, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   **kwargs)
        self.addCleanup(self._end, process)
        return process

    @staticmethod
    def _end(process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()

    def run_job(self, job, *args, status=0, timeout=600 if SANITIZED else 120, **kwargs):
        """Runs to the end, checks the exit status, gives the output."""
        process = self.start(job, *args, **kwargs)
        output, _ = process.communicate(timeout=timeout)
        self.assertEqual(process.returncode, status, output)
        return output

    def steps(self, name="a"):
        path = self.root / name / "steps.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def losses(self, name="a"):
        """(step, loss as its exact text) of every step."""
        return [(s["step"], repr(s["loss"])) for s in self.steps(name)]

    def checkpoints(self, name="a"):
        """Complete checkpoints, oldest first."""
        folder = self.root / name / "checkpoints"
        return sorted(p for p in folder.glob("step-*") if (p / "COMPLETE").exists())

    def events(self, name="a"):
        path = self.root / name / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def evaluations(self, name="a"):
        """Steps of the evaluations that were logged."""
        return [e["step"] for e in self.events(name) if e["event"] == "evaluation"]

    def saves(self, name="a"):
        """Steps of the checkpoints that were logged."""
        return [e["step"] for e in self.events(name) if e["event"] == "checkpoint"]

    def read_until(self, process, pattern):
        """The first line of its output that matches; the lines before it are gone."""
        seen = []
        for line in process.stdout:
            if re.search(pattern, line):
                return line
            seen.append(line)
        self.fail(f"no line matches {pattern!r}:\n{''.join(seen)}")

    def wait_for_step(self, process, step, name="a", timeout=60):
        """Until the log has `step` or the process has ended."""
        end = time.monotonic() + timeout
        while time.monotonic() < end and process.poll() is None:
            steps = self.steps(name)
            if steps and steps[-1]["step"] >= step:
                return
            time.sleep(0.005)
        self.assertIsNone(process.poll(), f"ended before step {step}")

    def slow_disk(self):
        """(a file, the environment of a process whose disk stands still while that file exists)."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None or SANITIZED:
            self.skipTest("needs a C compiler, and a program that no sanitizer was built into")
        source, library, hold = self.root / "slow.c", self.root / "slow.so", self.root / "hold"
        source.write_text(SLOW_DISK)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        return hold, {**os.environ, "LD_PRELOAD": str(library), "SLOW_DISK_HOLD": str(hold)}

    @staticmethod
    def children(pid):
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(p) for p in text.split()]


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def scrape(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as response:
        return response.read().decode()


__all__ = ["RunTest", "make_text", "BINARY", "CONSTANT", "ROOT", "SANITIZED", "alive", "scrape", "random", "signal", "time", "subprocess", "json", "os", "shutil"]
