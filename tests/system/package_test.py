#!/usr/bin/env python3
"""Unpacks the package in a minimal root of a distribution, starts it and runs a short job. Run by hand, as root:

    cmake --build build/release --target package
    debootstrap --variant=minbase trixie /tmp/bare http://deb.debian.org/debian
    tests/system/package_test.py build/release/trainerd-*.tar.gz /tmp/bare
"""

import pathlib
import re
import subprocess
import sys
import tarfile
import unittest

MOST_MIB = 60  # compressed, with sm_90a alone
JOB = """\
name: bare
output: /tmp/bare
model: {layers: 2, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 64}
batch: {global: 4, micro: 2}
precision: bf16
parallel: {dp: 2}
threads: 1
steps: 3
data: {format: synthetic}
metrics: {listen: "127.0.0.1:0"}
"""


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tarfile.open(cls.tarball) as tar:
            cls.folder = "/opt/" + tar.getnames()[0].split("/")[0]
            tar.extractall(cls.root / "opt", filter="fully_trusted")
        (cls.root / "opt" / "job.yaml").write_text(JOB)

    def in_root(self, command):
        return subprocess.run(["unshare", "--mount", "--pid", "--fork", f"--root={self.root}", "--mount-proc", "/bin/sh", "-c",
                               f"cd {self.folder} && {command}"], capture_output=True, text=True, timeout=120)

    def works(self, command):
        done = self.in_root(command)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_it_is_small(self):
        mib = self.tarball.stat().st_size / 2**20
        print(f"{self.tarball.name}: {mib:.1f} MiB")
        self.assertLess(mib, MOST_MIB)

    def test_it_says_what_it_is(self):
        build = dict(line.split(": ") for line in (self.root / self.folder[1:] / "share/trainerd/BUILD").read_text().splitlines())
        self.assertIn(build["commit"], self.tarball.name)
        self.assertIn(build["version"], self.tarball.name)
        self.assertEqual(self.works("bin/trainerd --version"), f"trainerd {build['version']}\n")

    def test_every_library_but_cudas_is_found_in_the_package_or_is_glibcs(self):
        listed = self.works("for f in bin/trainerd lib/*.so* lib/trainerd/*.so* $(find tests -type f -perm -1 ! -name '*.sh' ! -name '*.py'); do "
                            "echo \"== $f\"; /lib64/ld-linux-x86-64.so.2 --list $f; done")
        missing = set(re.findall(r"(\S+) => not found", listed))
        self.assertEqual({m for m in missing if not re.match(r"lib(cublasLt|cudnn|nccl)\.so", m)}, set())
        self.assertGreater(listed.count(f"=> {self.folder}/"), 20)

    def test_a_job_is_validated_planned_and_trained(self):
        self.works("bin/trainerd validate /opt/job.yaml")
        self.assertIn("H200", self.works("bin/trainerd plan /opt/job.yaml --cluster dgx-h200"))
        self.works("rm -rf /tmp/bare && bin/trainerd run /opt/job.yaml")
        self.assertIn("ok", self.works("bin/trainerd checkpoint verify /tmp/bare/checkpoints/step-00000003 && echo ok"))
        # Started from another directory, through a link.
        self.works("ln -sf $PWD/bin/trainerd /usr/local/bin/trainerd && cd / && trainerd validate /opt/job.yaml")

    def test_a_gpu_that_is_not_there_is_refused_in_one_line(self):
        done = self.in_root("bin/trainerd run /opt/job.yaml --set device=cuda --set parallel.dp=1 --set output=/tmp/cuda")
        self.assertEqual(done.returncode, 8, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertRegex(done.stderr, "no CUDA here: .*LD_LIBRARY_PATH.*device: cpu")
        self.assertIn("no GPU: no test was run", self.works("tests/test_cuda"))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    Package.root, Package.tarball = pathlib.Path(sys.argv.pop()), pathlib.Path(sys.argv.pop())
    unittest.main()
