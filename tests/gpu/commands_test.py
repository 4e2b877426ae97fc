"""The pages' commands for a machine with a GPU, as they are written, where there is none: each says so in one line and measures nothing. With
a GPU tests/gpu/run.sh runs the same programs and judges them."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from documents import documented_line

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ["TRAINERD_BUILD"]).resolve()
NO_DEVICE = r"^\w+: no CUDA.*\n$"


@unittest.skipUnless((BUILD / "test_cuda").exists(), "built without CUDA")
class Commands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="trainerd-gpu-pages-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "build").mkdir()
        (self.root / "build/release").symlink_to(BUILD)
        (self.root / "tests").symlink_to(ROOT / "tests")

    def run_line(self, page, beginning):
        return subprocess.run(["bash", "-c", documented_line(page, beginning)], cwd=self.root, capture_output=True, text=True, timeout=120,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})

    def test_tests_of_a_gpu_say_that_they_ran_none(self):
        for name, beginning in (("test_cuda", "build/release/test_cuda  "), ("test_cuda_comm", "build/release/test_cuda_comm")):
            done = self.run_line("kernels/README.md", beginning)
            if (BUILD / name).exists():
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("no GPU: no test was run", done.stdout)
        done = self.run_line("kernels/README.md", "build/release/test_core")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_what_is_measured_is_refused_in_one_line(self):
        page = "tests/bench/gpu/README.md"
        for beginning in ("build/release/train_bench tests/bench/gpu/a.yaml --warmup", "build/release/train_bench tests/bench/gpu/a.yaml --ledger",
                          "build/release/device_bench", "build/release/operators_bench"):
            done = self.run_line(page, beginning)
            self.assertEqual((done.returncode, done.stdout), (1, ""), beginning)
            self.assertRegex(done.stderr, NO_DEVICE)

    def test_a_job_is_described_for_pytorch(self):
        done = self.run_line("tests/bench/gpu/README.md", "build/release/train_bench tests/bench/gpu/a.yaml --describe")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads((self.root / "a.json").read_text())["name"], "a")


if __name__ == "__main__":
    unittest.main()
