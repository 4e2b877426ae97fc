"""The ladder of folders: each includes those to its left, never right. And no file is longer than a reader can hold."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
LADDER = ["kernels", "parallel", "io", "core", "apps"]


def sources():
    for folder in LADDER:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
                yield LADDER.index(folder), path


class Structure(unittest.TestCase):
    def test_includes_point_down_the_ladder(self):
        wrong, seen = [], 0
        for rung, path in sources():
            for included in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.M):
                seen += 1
                top = included.split("/")[0]
                if top not in LADDER:
                    wrong.append(f"{path.relative_to(ROOT)} includes {included}: not from the root of the tree")
                elif LADDER.index(top) > rung:
                    wrong.append(f"{path.relative_to(ROOT)} includes {included}: up the ladder")
        self.assertGreater(seen, 100)
        self.assertEqual(wrong, [])

    def test_base_includes_only_itself(self):
        for path in (ROOT / "kernels" / "base").iterdir():
            for included in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.M):
                self.assertTrue(included.startswith("kernels/base/"), f"{path.name} includes {included}")

    def test_no_source_file_is_longer_than_600_lines(self):
        long = {str(p.relative_to(ROOT)): n for _, p in sources() if (n := len(p.read_text().splitlines())) > 600}
        self.assertEqual(long, {})

    def test_environment_variables_are_read_in_apps_alone(self):
        found = [str(p.relative_to(ROOT)) for rung, p in sources()
                 if rung < LADDER.index("apps") and re.search(r"\bgetenv\s*\(", p.read_text())]
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
