"""`cmake --install` of the build tree: what it puts where, and that it starts there."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["TRAINERD_BUILD"]).resolve()


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefix = pathlib.Path(tempfile.mkdtemp(prefix="trainerd-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.prefix, ignore_errors=True)
        done = subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix, "--strip"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_foreign_libraries_are_in_a_folder_of_their_own(self):
        own = {p.name for p in (self.prefix / "lib").iterdir()} - {"trainerd", "libtrainerd_cuda.so"}
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


if __name__ == "__main__":
    unittest.main()
