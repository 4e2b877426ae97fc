"""Every C++ and CUDA source is formatted by clang-format 14 with .clang-format: `git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs
clang-format -i` formats the tree."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["kernels", "parallel", "io", "core", "apps", "tests"]
VERSION = 14


def formatter():
    for name in (f"clang-format-{VERSION}", "clang-format"):
        if path := shutil.which(name):
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
            version = int(re.search(r"version (\d+)", said)[1])
            if version == VERSION:
                return path
            raise unittest.SkipTest(f"clang-format {VERSION} formats this tree; {path} is version {version}")
    raise AssertionError("clang-format is missing: deploy/install-deps.sh --tests installs it")


def badly_formatted(files):
    command = [formatter(), f"--style=file:{ROOT / '.clang-format'}", "--dry-run", "-Werror", *map(str, files)]
    run = subprocess.run(command, capture_output=True, text=True)
    return sorted(set(re.findall(r"^(.*?):\d+:\d+: error", run.stderr, re.M)))


class Format(unittest.TestCase):
    def test_every_source_is_formatted(self):
        files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
                 if path.suffix in {".h", ".cpp", ".cu", ".cuh"}]
        self.assertGreater(len(files), 600)
        self.assertEqual(badly_formatted(files), [])

    def test_a_badly_formatted_source_is_found(self):
        with tempfile.TemporaryDirectory() as directory:
            source = pathlib.Path(directory) / "badly_formatted.cpp"
            source.write_text("int  f( ) ;\n")
            self.assertEqual(badly_formatted([source]), [str(source)])



if __name__ == "__main__":
    unittest.main(verbosity=2)
