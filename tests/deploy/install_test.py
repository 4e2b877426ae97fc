"""`cmake --install` of the build tree: the installed files, and that the program starts from there."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from documents import documented
from slices import FULL, sliced

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ["TRAINERD_BUILD"]).resolve()


@sliced(4)
class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefix = pathlib.Path(tempfile.mkdtemp(prefix="trainerd-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.prefix, ignore_errors=True)
        done = subprocess.run(documented("deploy/README.md", "cmake --install", {"build/release": BUILD, "/usr/local": cls.prefix}), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_foreign_libraries_are_in_a_folder_of_their_own(self):
        own = {p.name for p in (self.prefix / "lib").iterdir()} - {"trainerd", "systemd", "libtrainerd_cuda.so"}
        self.assertEqual(own, set())
        self.assertGreater(len(list((self.prefix / "lib" / "trainerd").glob("lib*.so*"))), 10)

    def test_the_executable_takes_them_from_there(self):
        binary = self.prefix / "bin" / "trainerd"
        listed = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("not found", listed)
        self.assertIn(str(self.prefix / "lib" / "trainerd"), os.path.normpath(listed.replace("/bin/..", "")))
        version = subprocess.run([binary, "--version"], capture_output=True, text=True, cwd="/")
        self.assertEqual(version.returncode, 0, version.stderr)
        self.assertRegex(version.stdout, r"^trainerd \d")

    def test_the_sources_are_configured_without_tests(self):
        build = self.prefix / "build"
        words = documented("deploy/README.md", "cmake --preset release -DTRAINERD_TESTS=OFF")
        done = subprocess.run([*words, "-B", build], capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        executables = [set(re.findall(r"^build (\S+): CXX_EXECUTABLE_LINKER", (tree / "build.ninja").read_text(), re.M)) for tree in (build, BUILD)]
        self.assertEqual(executables[0], {"trainerd"})
        self.assertLess({"trainerd", "test_core"}, executables[1])

    @unittest.skipUnless(FULL, "compresses for minutes: tests/run.sh full")
    def test_the_package_trains_where_it_is_unpacked_below_a_path_with_blanks(self):
        before = set(BUILD.glob("trainerd-*.tar.gz"))
        begin = time.time()
        done = subprocess.run(documented("deploy/README.md", "cmake --build build/release --target package", {"build/release": BUILD}), capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr)
        [tarball] = [path for path in BUILD.glob("trainerd-*.tar.gz") if path not in before or path.stat().st_mtime >= begin]
        self.assertRegex(tarball.name, r"^trainerd-[\d.]+-.*-linux-x86_64\.tar\.gz$")
        self.assertLess(tarball.stat().st_size, 60 << 20)
        folder = self.prefix / "a path with blanks"
        folder.mkdir()
        subprocess.run(["tar", "-xzf", tarball, "-C", folder, "--strip-components=1"], check=True)
        for words in (["--version"], ["validate", folder / "share/trainerd/configs/tiny.yaml"],
                      ["run", folder / "share/trainerd/configs/tiny.yaml", "--set", "steps=2", "--set", "optimizer.schedule.warmup=0", "--set", f"output={folder}/out",
                       "--set", "metrics.listen=127.0.0.1:0"]):
            done = subprocess.run([folder / "bin/trainerd", *words], capture_output=True, text=True, cwd="/")
            self.assertEqual(done.returncode, 0, (words, done.stdout + done.stderr))
        self.assertTrue((folder / "out/checkpoints/step-00000002/COMPLETE").exists())

    def test_manual_completion_and_unit_are_there(self):
        binary, share = self.prefix / "bin" / "trainerd", self.prefix / "share"
        for words, file in ((["man", "run"], "man/man1/trainerd-run.1"), (["man", "job"], "man/man5/trainerd-job.5"),
                            (["completion", "bash"], "bash-completion/completions/trainerd"), (["completion", "zsh"], "zsh/site-functions/_trainerd"),
                            (["completion", "fish"], "fish/vendor_completions.d/trainerd.fish")):
            made = subprocess.run([binary, *words], capture_output=True, text=True, check=True).stdout
            self.assertEqual((share / file).read_text(), made)
        self.assertTrue((self.prefix / "lib/systemd/system/trainerd@.service").is_file())

    def test_links_between_the_pages_lead_somewhere(self):
        share = self.prefix / "share" / "trainerd"
        pages = sorted(share.rglob("*.md"))
        broken, seen = [], 0
        for page in pages:
            text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                path = target.split("#")[0]
                # Files other than pages (sources, workflows) are not installed.
                if not re.match(r"[a-z]+://", target) and path.endswith(".md"):
                    seen += 1
                    if not (page.parent / path).exists():
                        broken.append(f"{page.relative_to(share)}: {target}")
        self.assertGreater(len(pages), 15)
        self.assertGreater(seen, 50)
        self.assertEqual(broken, [])

    def test_the_licence_of_each_carried_library_is_there(self):
        licences = self.prefix / "share" / "doc" / "trainerd" / "licences"
        there = {path.name for path in licences.iterdir()}
        libraries = [library.name for library in (self.prefix / "lib" / "trainerd").glob("*.so*")]
        owned = subprocess.run(["dpkg-query", "--search", *(f"*/{name}" for name in libraries)], capture_output=True, text=True, check=True).stdout
        owners = {line.split("/")[-1]: line.split(":")[0] for line in owned.splitlines()}
        self.assertEqual({name for name in libraries if owners[name] not in there}, set())
        # Header-only libraries that are compiled in.
        self.assertLessEqual({"libcli11-dev", "nlohmann-json3-dev", "libspdlog-dev", "libfmt-dev"}, there)
        for path in licences.iterdir():
            if path.is_file():
                self.assertRegex(path.read_text(errors="replace"), r"(?i)copyright|licen[cs]e", path)
                for name in re.findall(r"/usr/share/common-licenses/([A-Za-z]+-[0-9.]*[0-9])", path.read_text(errors="replace")):
                    self.assertTrue((licences / "common-licenses" / name).is_file(), name)

    @unittest.skipUnless((BUILD / "test_cuda").exists(), "built without CUDA")
    def test_the_script_for_a_gpu_finds_all_it_runs(self):
        out = self.prefix / "results"
        done = subprocess.run([self.prefix / "tests" / "gpu" / "run.sh", "--out", out], capture_output=True, text=True, cwd="/", timeout=240)
        if "no GPU" not in done.stdout:
            self.skipTest("this machine has a GPU: the script runs there by itself")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^commit: ")
        sys.path.insert(0, str(self.prefix / "tests" / "gpu"))
        sys.dont_write_bytecode = True
        import machine
        import phases
        self.assertEqual(pathlib.Path(phases.__file__).parent, self.prefix / "tests" / "gpu")
        places = machine.Places()
        self.assertEqual(places.missing, [])
        self.assertTrue(places.plugin.exists())
        for name in ("a", "b", "c", "tiny"):
            self.assertTrue(phases.job_file(name).is_file(), name)
        self.assertTrue((phases.JOBS / "pytorch_train.py").is_file())
        self.assertTrue((places.share / "configs" / "quickstart.yaml").is_file())
        self.assertEqual([b for b, _ in phases.RANKS_TESTS if not places.binary(b).exists()], [])


if __name__ == "__main__":
    unittest.main()
