"""The commands of golden/README.md and parity/README.md, as they are written, in a copy of the folder: where `python3` has what they import.
tests/run.sh installs no PyTorch: there they are skipped. In tests/run.sh full the long ones run too."""

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from documents import documented_line
from slices import FULL

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Prints how far the tensors of two files are apart, of the largest of each; a tensor that only one has is an error.
COMPARE = """import sys
from safetensors.torch import load_file
a, b = map(load_file, sys.argv[1:])
assert a.keys() == b.keys() and all(a[n].shape == b[n].shape for n in a)
print(max(float((a[n].double() - b[n].double()).abs().max() / a[n].double().abs().max().clamp(min=1e-30)) for n in a if a[n].numel()))"""


@functools.cache
def missing(*modules):
    return [module for module in modules if subprocess.run(["python3", "-c", f"import {module}"], capture_output=True).returncode]


class Commands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="trainerd-golden-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copytree(ROOT / "tests/golden", self.root / "tests/golden")

    def run_line(self, beginning, *modules, more="", page="tests/golden/README.md", cwd=None, **environment):
        if absent := missing(*modules):
            self.skipTest(f"python3 has no {', '.join(absent)}")
        line = documented_line(page, beginning).split(" #")[0] + more
        done = subprocess.run(["bash", "-c", line], cwd=cwd or self.root, capture_output=True, text=True, env={**os.environ, **environment})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def assert_same(self, *names):
        """Other versions of PyTorch sum in another order."""
        for name in names:
            words = ["python3", "-c", COMPARE, self.root / f"tests/golden/{name}.safetensors", ROOT / f"tests/golden/{name}.safetensors"]
            done = subprocess.run(words, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertLess(float(done.stdout), 1e-3, name)

    def test_the_reference_runs(self):
        (self.root / "tests/golden/llama.safetensors").unlink()
        self.run_line("python3 tests/golden/make_golden.py", "torch", "safetensors", more="" if FULL else " llama")
        self.assert_same("llama")

    @unittest.skipUnless(FULL, "takes minutes")
    def test_the_reference_runs_are_checked(self):
        self.assertIn("llama: central differences", self.run_line("python3 tests/golden/check_golden.py", "torch", "safetensors"))

    def test_the_reference_run_in_fp8(self):
        (self.root / "tests/golden/fp8_llama.safetensors").unlink()
        self.run_line("python3 tests/golden/make_fp8.py", "torch", "safetensors")
        self.assert_same("fp8_llama")

    def test_lion_and_sgd(self):
        (self.root / "tests/golden/rules_llama.safetensors").unlink()
        self.run_line("python3 tests/golden/make_rules.py", "torch", "safetensors")
        self.assert_same("rules_llama")

    @unittest.skipUnless(FULL, "takes a minute")
    def test_muon(self):
        self.run_line("python3 tests/golden/make_muon.py", "torch", "safetensors")
        self.assert_same("muon_llama", "muon_qwen", "muon_shared")

    def test_preferences(self):
        (self.root / "tests/golden/dpo_llama.safetensors").unlink()
        self.run_line("python3 tests/golden/make_dpo.py   ", "torch", "safetensors")
        self.assert_same("dpo_llama", "dpo_smooth")

    def test_preferences_by_trl(self):
        self.assertIn("the largest difference from TRL is", self.run_line("python3 tests/golden/make_dpo.py --trl", "torch", "safetensors", "trl"))

    def test_megatrons_data_sets(self):
        self.run_line("python3 tests/golden/megatron/make_megatron.py", "torch", "megatron.core", "packaging")
        for name in ("narrow.bin", "narrow.idx", "wide.bin", "wide.idx", "documents.json"):
            self.assertEqual((self.root / "tests/golden/megatron" / name).read_bytes(), (ROOT / "tests/golden/megatron" / name).read_bytes(), name)

    @unittest.skipUnless(FULL, "builds, and takes minutes")
    def test_parity(self):
        said = self.run_line("./tests/parity/run.sh", "torch", "transformers", "peft", page="tests/parity/README.md", cwd=ROOT,
                             BUILD=os.environ["TRAINERD_BUILD"], PYTHON="python3")
        self.assertIn("| llama |", said)


if __name__ == "__main__":
    unittest.main()
