"""deploy/cuda-libraries.sh with generated folders."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from documents import documented_line

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "cuda-libraries.sh"
CUBLAS, CUDNN, NCCL = "libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2"


class CudaLibraries(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.site = self.root / "site-packages"
        self.site.mkdir()
        self.known = ""  # libraries that the loader knows
        (self.root / "bin").mkdir()

    def put(self, folder, *libraries):
        path = self.root / folder
        path.mkdir(parents=True, exist_ok=True)
        for library in libraries:
            (path / library).touch()
        return str(path)

    def wheel(self, folder, version, *libraries):
        if folder != "cu13":
            (self.site / f"nvidia_{folder}_{version}-9.1.0.dist-info").mkdir()
        return self.put(f"site-packages/nvidia/{folder}/lib", *libraries)

    def environment(self, toolkit):
        ldconfig = self.root / "bin" / "ldconfig"
        ldconfig.write_text(f"#!/bin/sh\necho '\t{self.known} (libc6,x86-64) => /lib/{self.known}'\n")
        ldconfig.chmod(0o755)
        return {"PATH": f"{ldconfig.parent}:{os.environ['PATH']}", "PYTHON": sys.executable, "PYTHONPATH": str(self.site),
                "CUDA_ROOTS": str(toolkit or "")}

    def run_script(self, *folders, toolkit=None):
        return subprocess.run([SCRIPT, *folders], env=self.environment(toolkit), capture_output=True, text=True)

    def found(self, *folders, **kwargs):
        done = self.run_script(*folders, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.rstrip("\n").split(":")

    def test_a_toolkit_that_has_all(self):
        folder = self.put("cuda/lib64", CUBLAS, CUDNN, NCCL)
        self.assertEqual(self.found(toolkit=self.root / "cuda"), [folder])

    def test_wheels(self):
        folders = [self.wheel("cu13", "", CUBLAS), self.wheel("cudnn", "cu13", CUDNN), self.wheel("nccl", "cu13", NCCL)]
        self.assertEqual(self.found(), folders)

    def test_a_toolkit_without_cudnn_and_wheels_with_it(self):
        toolkit = self.put("cuda/lib64", CUBLAS)
        self.wheel("cu13", "", CUBLAS)
        cudnn = self.wheel("cudnn", "cu13", CUDNN)
        self.assertEqual(self.found(toolkit=self.root / "cuda"), [toolkit, cudnn])

    def test_the_line_of_the_page_puts_them_where_the_loader_looks(self):
        folder = self.put("cuda/lib64", CUBLAS, CUDNN, NCCL)
        line = documented_line("deploy/README.md", "folders=$(share/trainerd/deploy/cuda-libraries.sh)", {"share/trainerd/deploy/cuda-libraries.sh": SCRIPT})
        for before, after in (("", folder), ("/mine", f"{folder}:/mine")):
            done = subprocess.run(["bash", "-c", f'{line} && echo "$LD_LIBRARY_PATH"'], capture_output=True, text=True,
                                  env={**self.environment(self.root / "cuda"), **({"LD_LIBRARY_PATH": before} if before else {})})
            self.assertEqual(done.stdout, f"{after}\n", done.stderr)

    def test_folders_given_go_first(self):
        given = self.put("mine", CUBLAS, CUDNN)
        nccl = self.wheel("nccl", "cu13", NCCL)
        self.put("cuda/lib64", CUBLAS, CUDNN)
        self.assertEqual(self.found(given, toolkit=self.root / "cuda"), [given, nccl])

    def test_libraries_for_another_major_version_do_not_count(self):
        self.wheel("cu13", "", CUBLAS)
        self.wheel("cudnn", "cu12", CUDNN)
        self.put("cuda/lib64", "libcublasLt.so.12", CUDNN)
        done = self.run_script(toolkit=self.root / "cuda")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, "")
        self.assertIn(f"not found: {CUDNN}\n", done.stderr)

    def test_what_is_nowhere_is_named_with_the_places(self):
        given = self.put("empty")
        done = self.run_script(given)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"not found: {CUBLAS} {CUDNN}", done.stderr)
        self.assertIn(given, done.stderr)

    def test_what_the_loader_knows_need_not_be_found(self):
        folder = self.put("cuda/lib64", CUBLAS)
        self.assertEqual(self.run_script(toolkit=self.root / "cuda").returncode, 1)
        self.known = CUDNN
        self.assertEqual(self.found(toolkit=self.root / "cuda"), [folder])

    def test_nccl_alone_may_be_missing(self):
        folder = self.put("cuda/lib64", CUBLAS, CUDNN)
        done = self.run_script(toolkit=self.root / "cuda")
        self.assertEqual((done.returncode, done.stdout), (0, folder + "\n"))
        self.assertEqual(done.stderr, f"cuda-libraries.sh: {NCCL} not found: a trainerd that was built with it cannot load its CUDA world\n")
        self.put("cuda/lib64", NCCL)
        self.assertEqual(self.run_script(toolkit=self.root / "cuda").stderr, "")


if __name__ == "__main__":
    unittest.main()
