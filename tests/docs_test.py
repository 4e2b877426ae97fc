"""README.md and the pages beside the code: their commands run, and their options, files, links and metrics exist.

TRAINERD_BINARY is the executable under test. tests/README.md ("The pages") describes the checks of each kind of block and why
`trainerd run` is shortened in blocks.
"""

import ast
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import unittest

from slices import in_slice

BINARY = pathlib.Path(os.environ["TRAINERD_BINARY"]).resolve()
ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["apps", "configs", "core", "deploy", "io", "kernels", "parallel", "tests"]
SANITIZED = b"__asan_init" in BINARY.read_bytes() or b"__tsan_init" in BINARY.read_bytes()
BLOCK_SECONDS = 600 if SANITIZED else 120
MAX_README_LINES = 150
# Languages that fenced blocks of the pages may have.
LANGUAGES = {"sh", "console", "yaml", "text"}

# Commands of `console` blocks that no test runs as they are, by how they begin, and why.
NOT_RUN = {
    r"ctest": "they run this test; test_ctest_commands_select_tests asks what they select",
    r"podman build": "needs an engine for containers and a base image from a registry",
    r"python3 tests/bench/gpu/": "needs PyTorch on a GPU: tests/gpu/run.sh runs it",
}

# Proof of a reason, by a part of its pattern: texts that files must contain. Reasons without an entry depend on the machine (an
# engine, a GPU).
REASONS_IN_FILES = {
    "ctest": {"tests/CMakeLists.txt": ["docs_test.py"]},
    "podman": {"tests/deploy/debian_test.py": ["test_the_steps_of_the_container_file"]},
    "python3 tests/bench/gpu/": {"tests/gpu/phases.py": ["pytorch_train.py"], "tests/gpu/run.sh": ["run.py"]},
}

# Appended to every `trainerd run`: a test has no time for the hundreds of steps of a user's command.
SHORTER = "--set steps=3 --set optimizer.schedule.warmup=0"
WRAPPER = f"""#!/bin/sh
if [ "$1" = run ]; then exec {shlex.quote(str(BINARY))} "$@" {SHORTER}; fi
exec {shlex.quote(str(BINARY))} "$@"
"""


def pages():
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    for folder in FOLDERS:
        found += sorted((ROOT / folder).rglob("*.md"))
    return found


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page):
    """(language, first line number, text) of each fenced block."""
    language, begin, lines = None, 0, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.match(r"```(.*)$", line)
        if fence and language is None:
            language, begin, lines = fence.group(1).strip(), number, []
        elif fence:
            yield language, begin, "\n".join(lines) + "\n"
            language = None
        elif language is not None:
            lines.append(line)
    assert language is None, f"{name_of(page)}: the block of line {begin} has no end"


def prose(page):
    """The text of a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def headings(page):
    """The anchors of a page, as GitHub generates them."""
    anchors = set()
    for title in re.findall(r"^#+ +(.*?) *$", prose(page), re.M):
        anchors.add(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"))
    return anchors


def copy_sources(to):
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for name in ["README.md", "CMakeLists.txt", "CMakePresets.json"]:
        shutil.copy(ROOT / name, to / name)
    bin_folder = to / "build" / "release"
    bin_folder.mkdir(parents=True)
    (bin_folder / "trainerd").write_text(WRAPPER)
    (bin_folder / "trainerd").chmod(0o755)


@functools.cache
def help_of(subcommand):
    """The --help text of a subcommand, given as a tuple of words; None if it does not exist."""
    done = subprocess.run([BINARY, *subcommand, "--help"], capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else None


@functools.cache
def build_targets():
    text = "".join(p.read_text() for p in [ROOT / "CMakeLists.txt", *(ROOT / "apps").rglob("CMakeLists.txt"), *(ROOT / "tests").rglob("CMakeLists.txt")])
    names = set(re.findall(r"add_executable\(([\w]+)", text))
    for loop in re.findall(r"foreach\(bench ([^)]*)\)", text):
        names |= set(loop.split())
    return names | {f"test_{folder}" for folder in re.findall(r"^add_folder_tests\((\w+)", text, re.M)}


def words_of(line):
    """The simple commands of a shell line, each as a list of words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    command = []
    for word in lexer:
        if re.fullmatch(r"[;&|()]+", word):
            if command:
                yield command
            command = []
        elif word not in ("$", "<", ">"):
            command.append(word)
    if command:
        yield command


def wrong_in_command(words):
    """Parts of a command that do not exist, as texts. For commands that are not run."""
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        yield from wrong_path(words[0].split("=", 1)[1].lstrip("$"))
        words = words[1:]
    for at, word in enumerate(words):
        if pathlib.PurePath(word).name == "trainerd" and (at == 0 or words[0] == "srun"):
            yield from wrong_in_trainerd(words[at + 1:])
            return
        yield from wrong_path(word)
    if not words:
        return
    options = [w.split("=")[0] for w in words[1:] if re.match(r"--?[A-Za-z]", w)]
    script = ROOT / words[0]
    if words[0].startswith("python3"):
        script = ROOT / next((w for w in words[1:] if w.endswith(".py")), "none")
    target = re.fullmatch(r"(?:\./)?build/release/(\w+)", words[0])
    if target:
        script = next((ROOT / "tests").rglob(f"{target.group(1)}.cpp"), None)
    if script is not None and script.is_file():
        text = script.read_text()
        yield from (f"{words[0]} has no option {o}" for o in options if o not in text)
        if script == ROOT / "tests/run.sh" and len(words) > 1 and words[1] not in text:
            yield f"tests/run.sh has no {words[1]}"
    if words[0] == "cmake":
        presets = {p["name"] for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
        for flag, value in zip(words, words[1:]):
            if flag == "--preset" and value not in presets:
                yield f"there is no preset {value}"
        cmake = (ROOT / "CMakeLists.txt").read_text()
        for variable in re.findall(r"-D(TRAINERD_\w+)", " ".join(words)):
            if variable not in cmake:
                yield f"there is no CMake option {variable}"


def wrong_path(word):
    path = word.removeprefix("./")
    first = path.split("/")[0]
    if "/" not in path or "*" in path:
        return
    if first in FOLDERS and not (ROOT / path).exists():
        yield f"{path} does not exist"
    target = re.fullmatch(r"build/release/(\w+)", path)
    if target and target.group(1) not in build_targets():
        yield f"{path} is not built"


def wrong_in_trainerd(words):
    subcommand = []
    for word in words:
        if word.startswith("-") or help_of(tuple([*subcommand, word])) is None or len(subcommand) == 2:
            break
        subcommand.append(word)
        if "Subcommands:" not in help_of(tuple(subcommand)):
            break
    text = help_of(tuple(subcommand))
    if words and not words[0].startswith("-") and not subcommand:
        yield f"trainerd has no subcommand {words[0]}"
    for word in words:
        if word == "--":  # the rest belongs to another program
            break
        option = word.split("=")[0]
        if option.startswith("--") and not re.search(re.escape(option) + r"(?![\w-])", text):
            yield f"trainerd {' '.join(subcommand)} has no option {option}"
        elif not word.startswith("-"):
            yield from wrong_path(word)


class Pages(unittest.TestCase):
    def test_the_readme_is_short(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text().splitlines()), MAX_README_LINES)

    def test_every_block_says_what_it_is(self):
        wrong = [f"{name_of(p)}:{line}: a block is marked `{language}`, not one of {sorted(LANGUAGES)}"
                 for p in pages() for language, line, _ in blocks(p) if language not in LANGUAGES]
        # Commands outside of blocks are an error: they would not be checked.
        wrong += [f"{name_of(p)}: an indented command: {line.strip()}" for p in pages()
                  for line in prose(p).splitlines() if re.match(r" {4}(\$ |\./|trainerd )", line)]
        self.assertEqual(wrong, [])

    def test_shell_blocks_run(self):
        seen = 0
        base = pathlib.Path(tempfile.mkdtemp(prefix="trainerd-docs-"))
        self.addCleanup(shutil.rmtree, base)
        copy_sources(base / "clean")
        of_pages = {page: [(line, text) for language, line, text in blocks(page) if language == "sh"] for page in pages()}
        for part, (page, scripts) in enumerate((page, scripts) for page, scripts in of_pages.items() if scripts):
            if name_of(page) != "README.md" and not in_slice(part, 3):
                continue
            with tempfile.TemporaryDirectory(dir=base) as folder:
                copy = pathlib.Path(folder)
                shutil.copytree(base / "clean", copy, copy_function=os.link, dirs_exist_ok=True)  # links: copies of all files take long
                environment = {**os.environ, "PATH": f"{copy / 'build' / 'release'}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
                for line, text in scripts:
                    seen += 1
                    with self.subTest(f"{name_of(page)}:{line}"):
                        self.run_script(text, copy, environment)
        self.assertGreater(seen, 3)
        self.assertGreater(sum(map(len, of_pages.values())), 10)

    def run_script(self, text, folder, environment):
        process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=BLOCK_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            self.fail(f"not done in {BLOCK_SECONDS} s:\n{text}\n{output}")
        self.assertEqual(process.returncode, 0, f"{text}\n{output}")

    def test_console_blocks_name_what_exists(self):
        wrong, seen = [], 0
        for page in pages():
            for language, line, text in blocks(page):
                if language != "console":
                    continue
                for at, command in enumerate(text.splitlines(), line + 1):
                    where = f"{name_of(page)}:{at}"
                    if not command.startswith("$ "):
                        wrong.append(f"{where}: no command after `$ `: {command}")
                        continue
                    for words in words_of(command[2:]):
                        seen += 1
                        wrong += [f"{where}: {problem}" for problem in wrong_in_command(words)]
        self.assertGreater(seen, 20)
        self.assertEqual(wrong, [])

    def test_console_commands_are_run_by_tests(self):
        # Commands of pages that each test requests.
        asked = {}
        for test in (ROOT / "tests").rglob("*.py"):
            if "from documents import" in (text := test.read_text()):
                words = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
                for page in (word for word in words if word.endswith(".md")):
                    asked.setdefault(page, set()).update(words)
        wrong, unused = [], set(NOT_RUN)
        for page in pages():
            commands = [c.removeprefix("$ ") for language, _, text in blocks(page) if language == "console" for c in text.splitlines()]
            # A test requests the one command with this beginning: documented() fails if there are several.
            run = set()
            for beginning in asked.get(name_of(page), ()):
                begun = [command for command in commands if len(beginning) > 3 and command.startswith(beginning)]
                run |= set(begun) if len(begun) == 1 else set()
            for command in commands:
                reasons = {pattern for pattern in NOT_RUN if re.match(pattern, command.split(" #")[0].rstrip())}
                unused -= reasons
                if not reasons and command not in run:
                    wrong.append(f"{name_of(page)}: no test runs: {command}")
        self.assertEqual(wrong, [])
        self.assertEqual(unused, set())

    def test_the_reasons_of_commands_that_no_test_runs_are_true(self):
        for part, files in REASONS_IN_FILES.items():
            self.assertEqual(len([pattern for pattern in NOT_RUN if part in pattern]), 1, part)
            for name, texts in files.items():
                for text in texts:
                    self.assertIn(text, (ROOT / name).read_text(), f"{part}: {name}")

    @unittest.skipUnless((BINARY.parent / "CTestTestfile.cmake").exists(), "the binary is in no build tree")
    def test_ctest_commands_select_tests(self):
        commands = [c[2:] for page in pages() for language, _, text in blocks(page) if language == "console" for c in text.splitlines() if c.startswith("$ ctest")]
        self.assertGreater(len(commands), 2)
        for command in commands:
            words = [str(BINARY.parent) if word == "build/release" else word for word in shlex.split(command, comments=True)]
            shown = subprocess.run([*words, "--show-only"], capture_output=True, text=True, timeout=60).stdout
            self.assertGreater(int(re.search(r"Total Tests: (\d+)", shown)[1]), 0, f"{command}\n{shown}")

    def test_what_does_not_exist_is_found(self):
        for command, problem in {"trainerd train job.yaml": "no subcommand train",
                                 "trainerd run job.yaml --nodez 2": "no option --nodez",
                                 "trainerd checkpoint list runs/x --jason": "no option --jason",
                                 "srun --ntasks-per-node=1 trainerd run job.yaml --no": "no option --no",
                                 "trainerd plan tests/none.yaml": "tests/none.yaml does not exist",
                                 "./tests/run.sh msan": "no msan",
                                 "tests/gone.sh": "does not exist",
                                 "cmake --preset debug": "no preset debug",
                                 "cmake --preset release -DTRAINERD_NONE=ON": "no CMake option",
                                 "build/release/test_none": "is not built"}.items():
            with self.subTest(command):
                found = [p for words in words_of(command) for p in wrong_in_command(words)]
                self.assertRegex("\n".join(found), re.escape(problem))

    def test_links_lead_to_files_and_headings(self):
        wrong, seen = [], 0
        for page in pages():
            for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
                if re.match(r"[a-z]+://", target):
                    continue
                seen += 1
                path, _, anchor = target.partition("#")
                file = (page.parent / path).resolve() if path else page
                if not file.exists():
                    wrong.append(f"{name_of(page)}: {target} is not there")
                elif anchor and anchor not in headings(file):
                    wrong.append(f"{name_of(page)}: {target}: no such heading")
        self.assertGreater(seen, 30)
        self.assertEqual(wrong, [])

    def test_every_page_is_reached_from_the_readme(self):
        reached, next_pages = set(), [ROOT / "README.md"]
        while next_pages:
            page = next_pages.pop()
            if page in reached:
                continue
            reached.add(page)
            for target in re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", prose(page)):
                next_pages.append((page.parent / target).resolve())
        self.assertEqual([name_of(p) for p in pages() if p not in reached], [])

    def test_paths_in_the_text_exist(self):
        wrong, seen = [], 0
        for page in pages():
            for path in re.findall(r"`([\w.+-]+(?:/[\w.+-]+)+/?)`", prose(page)):
                if path.split("/")[0] not in FOLDERS:
                    continue
                seen += 1
                if not (ROOT / path).exists():
                    wrong.append(f"{name_of(page)}: {path} does not exist")
        self.assertGreater(seen, 50)
        self.assertEqual(wrong, [])

    def test_job_keys_in_the_text_exist(self):
        page = (ROOT / "configs" / "README.md").read_text()
        reference = page[page.index("spec-reference:begin"):page.index("spec-reference:end")]
        # Reserved keys have no row in the reference.
        keys, section = set(re.findall(r"`([\w.]+)`", re.search(r"^\| (.*) \| reserved ", page, re.M).group(1))), ""
        for line in reference.splitlines():
            if title := re.fullmatch(r"`([\w.]+)`", line):
                section = title.group(1) + "."
                keys.add(title.group(1))
            elif row := re.match(r"\| `(\w+)` \|", line):
                keys.add(section + row.group(1))
        sections = {key.split(".")[0] for key in keys if "." in key}
        self.assertGreater(len(keys), 60)
        wrong = []
        for page in pages():
            text = prose(page)
            if page.name == "other-trainers.md":  # trainerd's keys are in the last column
                text = "\n".join(row.split(" | ")[-1] for row in text.splitlines())
            for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)\b[^`]*`", text):
                # cluster.failures is also a section of cluster files.
                if key.split(".")[0] in sections and key not in keys and not key.startswith("cluster.failures") and not key.endswith((".json", ".py")):
                    wrong.append(f"{name_of(page)}: {key}")
        self.assertEqual(wrong, [])

    def test_metrics_are_those_that_the_code_exports(self):
        exported = set()
        for source in [s for kind in ("*.cpp", "*.h") for s in (ROOT / "io" / "metrics").rglob(kind)]:
            exported |= set(re.findall(r'"(trainerd_[a-z_]+)"', source.read_text()))
        cmake = "".join(p.read_text() for p in [ROOT / "CMakeLists.txt", *ROOT.glob("*/CMakeLists.txt"), *(ROOT / "kernels").rglob("*.cmake")])
        named, wrong = set(), []
        for page in pages():
            # A name that ends in _ is a prefix of several (`trainerd_device_*`).
            for name, star in re.findall(r"\b(?<!lib)(trainerd_[a-z_]+)(\*?)", page.read_text()):
                if star:
                    if not any(metric.startswith(name) for metric in exported) and name != "trainerd_":
                        wrong.append(f"{name_of(page)}: no metric begins with {name}")
                elif name in exported:
                    named.add(name)
                elif not re.search(rf"\b{name}\b", cmake):
                    wrong.append(f"{name_of(page)}: {name} is not exported")
        self.assertGreater(len(exported), 20)
        self.assertEqual(wrong, [])
        self.assertEqual(sorted(exported - named), [], "exported, and on no page")


if __name__ == "__main__":
    unittest.main()
