"""The scripts of a clone (quickstart, tests/run.sh, install-deps.sh) and the commands that configure and build, as the pages write them, in a
copy of the sources. What takes minutes or changes the machine is a stand-in that writes down how it was called: the compiler's and the
tests' work, apt. What CMake makes of the presets is real."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from documents import documented, documented_line
from slices import sliced

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = pathlib.Path(os.environ["TRAINERD_BINARY"]).resolve()
FOLDERS = ["apps", "configs", "core", "deploy", "io", "kernels", "parallel", "tests"]
SHORTER = "--set steps=3 --set optimizer.schedule.warmup=0 --set batch.global=2 --set batch.micro=1 --set evaluate.batches=1"
# By name: what runs in its place, after its words were written down.
STAND_INS = {
    # A build is there already; of the fuzzers one, which says how it was called.
    "cmake": r'if [ "$*" = "--build --preset fuzz" ]; then mkdir -p build/fuzz; printf "#!/bin/sh\\necho fuzz_lines \$* >>\$CALLS\\n" >build/fuzz/fuzz_lines; chmod +x build/fuzz/fuzz_lines; fi',
    # Where the test says so, some tests fail, and pass or fail when they run alone.
    "ctest": 'echo slice ${TRAINERD_TEST_SLICE-all} >>"$CALLS"; for status in $CTEST; do case "$status:$*" in first:*--rerun-failed*) ;; first:* | both:*) mkdir -p "$2/Testing/Temporary"; echo 1:test_core >"$2/Testing/Temporary/LastTestsFailed.log"; exit 8 ;; esac; done',
    "apt-get": "", "clang++": "", "nvcc": "", "sudo": 'exec "$@"',
}


@sliced(6)
class Clone(unittest.TestCase):
    ran = {}

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="trainerd-clone-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.clone, cls.bin, cls.calls = cls.folder / "clone", cls.folder / "bin", cls.folder / "calls"
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, cls.clone / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CMakeLists.txt", "CMakePresets.json"):
            shutil.copy(ROOT / file, cls.clone)
        cls.bin.mkdir()
        for name, does in STAND_INS.items():
            (cls.bin / name).write_text(f'#!/bin/bash\necho {name} "$@" >>"$CALLS"\n{does}\n')
            (cls.bin / name).chmod(0o755)
        # What install-cuda-deps.sh would fetch.
        deps = cls.clone / "build/cuda-deps"
        (deps / "nccl/include").mkdir(parents=True)
        (deps / "nccl/include/nccl.h").touch()
        (deps / "version").write_text(re.search(r"(?m)^version=(.*)$", (ROOT / "deploy/install-cuda-deps.sh").read_text())[1] + "\n")
        # What install-deps.sh --tests would fetch by pip.
        home = cls.folder / "home"
        python = home / ".cache/trainerd/tests-python"
        python.mkdir(parents=True)
        listed = re.search(r"(?ms)^python_packages=\(.*?^\)$", (ROOT / "deploy/install-deps.sh").read_text())[0]
        packages = subprocess.run(["bash", "-c", listed + '\nprintf "%s\\n" "${python_packages[@]}"'], capture_output=True, text=True, check=True).stdout
        (python / "installed").write_text(packages)
        inherited = {name: value for name, value in os.environ.items() if name != "TRAINERD_TEST_SLICE"}
        cls.environment = {**inherited, "PATH": f"{cls.bin}:{os.environ['PATH']}", "CALLS": str(cls.calls), "HOME": str(home), "CUDA_VISIBLE_DEVICES": ""}
        # Where a build puts it.
        release = cls.clone / "build/release"
        release.mkdir(parents=True)
        (release / "trainerd").write_text(f'#!/bin/sh\nif [ "$1" = run ]; then exec {shlex.quote(str(BINARY))} "$@" {SHORTER}; fi\nexec {shlex.quote(str(BINARY))} "$@"\n')
        (release / "trainerd").chmod(0o755)

    def run_line(self, page, beginning, status=0, **environment):
        """What the command prints, and how it called others, without apt's. The same command of two pages runs once."""
        line = documented_line(page, beginning).split(" #")[0].rstrip()
        key = (line, status, *environment.items())
        if key not in self.ran:
            self.ran[key] = self.run_now(line, status, environment)
        return self.ran[key]

    def run_now(self, line, status, environment):
        self.calls.write_text("")
        done = subprocess.run(["bash", "-c", line], cwd=self.clone, env={**self.environment, **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr, [call for call in self.calls.read_text().splitlines() if not call.startswith(("apt-get", "sudo"))]

    def test_the_quickstart_trains(self):
        _, calls = self.run_line("README.md", "./deploy/quickstart.sh")
        self.assertEqual(len(calls), 2, calls)
        self.assertRegex(calls[0], r"^cmake --preset release -DTRAINERD_TESTS=OFF -DTRAINERD_UNITY=ON -DTRAINERD_CUDA=(OFF|AUTO)$")
        self.assertEqual(calls[1], "cmake --build --preset release")
        self.assertEqual(len((self.clone / "runs/quickstart/steps.jsonl").read_text().splitlines()), 3)

    def test_what_is_missing_is_installed(self):
        # No package is there.
        (self.bin / "dpkg-query").write_text("#!/bin/sh\nexit 1\n")
        (self.bin / "dpkg-query").chmod(0o755)
        self.addCleanup((self.bin / "dpkg-query").unlink)
        installed = {}
        for page, beginning in (("deploy/README.md", "./deploy/install-deps.sh"), ("CONTRIBUTING.md", "./deploy/install-deps.sh --tests")):
            self.run_now(documented_line(page, beginning), 0, {})
            *_, update, install = [call for call in self.calls.read_text().splitlines() if call.startswith("apt-get")]
            self.assertEqual(update, "apt-get update -q")
            self.assertTrue(install.startswith("apt-get install -y -q --no-install-recommends build-essential cmake "), install)
            installed[page] = set(install.split())
        self.assertLess(installed["deploy/README.md"], installed["CONTRIBUTING.md"])
        self.assertLessEqual({"catch2", "slurm-wlm", "prometheus", "chromium"}, installed["CONTRIBUTING.md"] - installed["deploy/README.md"])

    def calls_of(self, page, beginning, status=0, **environment):
        said, calls = self.run_line(page, beginning, status, **environment)
        return said, [call for call in calls if call.startswith("ctest")], [call for call in calls if call.startswith("cmake")]

    def test_every_test_is_built_and_run(self):
        for page, beginning, preset in (("README.md", "./tests/run.sh", "release"), ("tests/README.md", "./tests/run.sh   ", "release"),
                                        ("CONTRIBUTING.md", "./tests/run.sh   ", "release"), ("tests/README.md", "./tests/run.sh full", "release"),
                                        ("CONTRIBUTING.md", "./tests/run.sh full", "release"), ("tests/README.md", "./tests/run.sh asan", "asan"),
                                        ("CONTRIBUTING.md", "./tests/run.sh asan", "asan"), ("CONTRIBUTING.md", "./tests/run.sh tsan", "tsan")):
            with self.subTest(f"{page}: {beginning}"):
                _, tests, builds = self.calls_of(page, beginning)
                self.assertIn("slice all" if beginning.endswith("full") else "slice 0", self.run_line(page, beginning)[1])  # 0: no commit is known
                limit = 900 if beginning.rstrip() == "./tests/run.sh" else 7200
                self.assertEqual(tests, [f"ctest --test-dir build/{preset} --output-on-failure --timeout {limit} -j 100"])
                unity = "ON" if preset == "release" else "OFF"
                self.assertEqual(builds, [f"cmake --preset {preset} -DTRAINERD_TESTS=ON -DTRAINERD_WERROR=ON -DTRAINERD_UNITY={unity} -DTRAINERD_CUDA=AUTO",
                                          f"cmake --build --preset {preset}"])

    def test_tests_that_fail_beside_others_run_once_more_alone(self):
        said, tests, _ = self.calls_of("README.md", "./tests/run.sh", CTEST="first")
        self.assertEqual(tests[1], "ctest --test-dir build/release --output-on-failure --timeout 900 --rerun-failed")
        self.assertIn("they passed alone", said)
        self.assertEqual(len(self.calls_of("README.md", "./tests/run.sh", status=8, CTEST="both")[1]), 2)
        # What a sanitizer finds is not asked again.
        self.assertEqual(len(self.calls_of("tests/README.md", "./tests/run.sh asan", status=1, CTEST="first")[1]), 1)

    def test_every_fuzz_target_runs_for_its_time(self):
        for page, beginning, seconds in (("CONTRIBUTING.md", "./tests/run.sh fuzz", 60), ("tests/README.md", "./tests/run.sh fuzz", 600)):
            _, calls = self.run_line(page, beginning)
            self.assertEqual(calls[:2], ["cmake --preset fuzz", "cmake --build --preset fuzz"])
            [run] = calls[2:]
            self.assertIn(f"fuzz_lines -max_total_time={seconds} ", run + " ")

    def test_the_presets_configure_and_build_all_that_the_pages_name(self):
        """CMake and Ninja are real. Ninja says what it would do: that takes minutes, and made the tree of this test."""
        tree = self.folder / "configured"
        shutil.copytree(self.clone, tree, ignore=shutil.ignore_patterns("build"))
        (tree / "build").mkdir()
        os.symlink(self.clone / "build/cuda-deps", tree / "build/cuda-deps")
        said = []
        for page, beginning, more in (("CONTRIBUTING.md", "cmake --preset release", []), ("deploy/README.md", "cmake --preset release   ", []),
                                      ("CONTRIBUTING.md", "cmake --build", ["--", "-t", "commands"]), ("deploy/README.md", "cmake --build --preset", ["--", "-t", "commands"])):
            done = subprocess.run([*documented(page, beginning), *more], cwd=tree, capture_output=True, text=True, timeout=240)
            self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr)
            said.append(done.stdout)
        for configured in said[:2]:
            self.assertRegex(configured, "Build files have been written to: .*build/release")
        for built in said[2:]:
            for executable in ("trainerd", "test_core"):
                self.assertRegex(built, rf" -o {executable} ")
        # Sanitizer builds leave out some tests.
        done = subprocess.run(["cmake", "--preset", "asan", "-DTRAINERD_TESTS=ON", "-DTRAINERD_CUDA=OFF"], cwd=tree, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr)

    def test_the_pages_are_tested_as_their_page_says(self):
        line = documented_line("tests/README.md", "TRAINERD_BINARY=build/release/trainerd python3 tests/docs_test.py")
        done = subprocess.run(["bash", "-c", f"{line} Pages.test_the_readme_is_short"], cwd=self.clone, env=self.environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Ran 1 test", done.stderr)


if __name__ == "__main__":
    unittest.main()
