"""Man pages and shell completion. The binary generates both from its command line and the table of keys, so they are compared with
`--help` and the reference. Real shells complete real lines."""

import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import tempfile
import time
import unittest

BINARY = pathlib.Path(os.environ["TRAINERD_BINARY"]).resolve()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def trainerd(*words):
    done = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def names_in_help(*command):
    """(subcommands, options) that --help lists."""
    text = trainerd(*command, "--help")
    subcommands = re.findall(r"^  ([a-z][\w-]*)  ", text.split("Subcommands:")[1], re.M) if "Subcommands:" in text else []
    options = set()
    for line in re.findall(r"^  (-[^ ]*)", text, re.M):
        options |= {re.sub(r"\{.*", "", name) for name in line.split(",")}
    return subcommands, options


def commands(*command):
    """Every command with the subcommands and options in its --help."""
    subcommands, options = names_in_help(*command)
    yield command, subcommands, options
    for name in subcommands:
        yield from commands(*command, name)


COMMANDS = list(commands())


def complete(*words):
    """(files, prefix, candidates)"""
    first, *lines = trainerd("__complete", *words).splitlines()
    files, _, prefix = first.split(" ", 2)
    return files, prefix, [line.split("\t")[0] for line in lines]


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="trainerd-man-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        trainerd("man", "--out", cls.folder)
        cls.pages = {page.name: page for page in cls.folder.rglob("*.[15]")}

    def shown(self, page):
        """The page as displayed, in one line per paragraph."""
        text = subprocess.run(["mandoc", "-T", "ascii", "-O", "width=1000", page], capture_output=True, text=True, check=True).stdout
        return re.sub(r".\x08", "", text)

    def test_there_is_a_page_of_each_command_and_of_the_job(self):
        top = COMMANDS[0][1]
        self.assertGreater(len(top), 7)
        self.assertEqual(set(self.pages), {"trainerd.1", "trainerd-job.5", *(f"trainerd-{name}.1" for name in top)})
        for name in ("", "run", "job"):
            page = f"trainerd-{name}".rstrip("-") + (".5" if name == "job" else ".1")
            self.assertEqual(trainerd("man", *filter(None, [name])), self.pages[page].read_text())

    def test_they_are_accepted_without_a_warning(self):
        for page in self.pages.values():
            # Pages have no date but a version.
            found = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True).stdout
            self.assertEqual([line for line in found.splitlines() if "missing date" not in line], [], page.name)
            if shutil.which("groff"):
                done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", page], capture_output=True, text=True)
                self.assertEqual(done.stderr, "", page.name)

    def test_every_subcommand_and_option_of_the_command_line_is_on_its_page(self):
        seen = 0
        for command, subcommands, options in COMMANDS:
            text = self.shown(self.pages["-".join(["trainerd", *command[:1]]) + ".1"])
            if len(command) > 1:
                text = text[text.index(" ".join(["trainerd", *command])):]
            for name in options:
                seen += 1
                self.assertRegex(text, rf"(?m)^ +(.*, )?{re.escape(name)}(,| |$)", command)
            for name in subcommands:
                self.assertRegex(text, rf"(?m)^ +{re.escape('-'.join(['trainerd', *command, name]))}\(1\)|"
                                       rf"trainerd {re.escape(' '.join([*command, name]))}$", command)
        self.assertGreater(seen, 60)

    def test_every_key_of_the_reference_is_on_the_page_of_the_job(self):
        text = self.shown(self.pages["trainerd-job.5"])
        keys = reference()
        self.assertGreater(len(keys), 75)
        for key, words in keys.items():
            self.assertRegex(text, rf"(?m)^ +{re.escape(key)}( |$)")
        self.assertEqual(len(re.findall(r"(?m)^ +Type: ", text)), len(keys))

    def test_exit_statuses_are_those_of_the_documentation(self):
        table = dict(re.findall(r"^\| (\d)(?:, \d+)? \| (.*?)(?:;.*)? \|$", (ROOT / "core/run/README.md").read_text(), re.M))
        self.assertGreater(len(table), 7)
        text = self.shown(self.pages["trainerd-run.1"])
        for status, what in table.items():
            self.assertRegex(text, rf"(?m)^ +{status} +{re.escape(re.sub('`', '', what))}$")

    def test_a_page_that_is_not_there_and_a_folder_that_cannot_be_written_are_errors(self):
        for words, message in ((["man", "none"], "none not in"), (["man", "run", "--out", "x"], "excludes"), (["completion", "tcsh"], "tcsh not in"),
                               (["man", "--out", self.pages["trainerd.1"]], "cannot make")):
            done = subprocess.run([BINARY, *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr + done.stdout)


def reference():
    """Key -> the words that it accepts."""
    page = (ROOT / "configs" / "README.md").read_text()
    keys, section = {}, ""
    for line in page[page.index("spec-reference:begin"):page.index("spec-reference:end")].splitlines():
        if title := re.fullmatch(r"`([\w.]+)`", line):
            section = title.group(1) + "."
        elif row := re.match(r"\| `([\w.\[\]]+)` \| (.*?) \|", line):
            key = row.group(1) if row.group(1) == section[:-1] else section + row.group(1)
            keys[key] = [] if "only" in row.group(2) else re.findall(r"`([\w-]+)`", row.group(2))
    return keys


def settable():
    """Keys that --set can set: a list of maps is set as a whole."""
    return {key: words for key, words in reference().items() if "[]" not in key}


class Answers(unittest.TestCase):
    """The binary's answers to the completion scripts."""

    def test_every_subcommand_and_option_of_the_command_line_is_offered(self):
        for command, subcommands, options in COMMANDS:
            with self.subTest(command):
                if subcommands:
                    self.assertEqual(complete(*command, "")[2], subcommands)
                # Short names of options with a long name are not listed.
                self.assertEqual(set(complete(*command, "-")[2]), {name for name in options if name.startswith("--")})

    def test_keys_and_their_words_follow_set(self):
        keys = settable()
        self.assertEqual(complete("run", "job.yaml", "--set", ""), ("none", "", [key + "=" for key in keys]))
        self.assertEqual(complete("run", "--set=optimizer.l")[2], ["--set=optimizer.lr="])
        asked = 0
        for key, words in keys.items():
            if words:
                asked += 1
                self.assertEqual(complete("plan", "--set", key + "=")[2], [f"{key}={word}" for word in words], key)
        self.assertGreater(asked, 15)
        models = sorted(path.stem for path in (ROOT / "configs/models").glob("*.yaml"))
        clusters = sorted(path.stem for path in (ROOT / "configs/clusters").glob("*.yaml"))
        self.assertEqual(sorted(complete("run", "--set", "model.preset=")[2]), [f"model.preset={name}" for name in models])
        self.assertEqual(sorted(complete("run", "--set", "cluster.preset=")[2]), [f"cluster.preset={name}" for name in [*clusters, "local"]])
        self.assertEqual(complete("run", "--set", "output=runs/"), ("files", "output=", []))
        self.assertEqual(complete("run", "--set", "none=")[2], [])

    def test_values_follow_their_option(self):
        clusters = sorted(path.stem for path in (ROOT / "configs/clusters").glob("*.yaml"))
        self.assertEqual(complete("plan", "job.yaml", "--cluster", "")[0], "yaml")
        self.assertEqual(sorted(complete("plan", "job.yaml", "--cluster", "")[2]), clusters)
        self.assertEqual(complete("calibrate", "--device=")[2], ["--device=cpu", "--device=cuda"])
        self.assertEqual(complete("data", "inspect", "x", "--format", "t")[2], ["text", "tokens"])
        self.assertEqual(complete("validate", "job.yaml", "--svg=gr"), ("files", "--svg=", []))
        self.assertEqual(complete("man", "--out", ""), ("directories", "", []))
        self.assertEqual(complete("man", "va")[2], ["validate"])
        self.assertEqual(complete("run", "--nodes", ""), ("none", "", []))

    def test_a_job_comes_once_and_then_options(self):
        self.assertEqual(complete("run", ""), ("yaml", "", []))
        self.assertEqual(complete("run", "--set", "seed=1", "--fresh", "")[0], "yaml")
        self.assertIn("--fresh", complete("run", "job.yaml", "")[2])
        self.assertEqual(complete("simulate", "--costs", "1", "2", "3", "4", "")[0], "yaml")
        self.assertEqual(complete("checkpoint", "list", "")[0], "files")

    def test_what_is_hidden_stays_hidden(self):
        self.assertNotIn("worker", complete("")[2])
        self.assertEqual(complete("worker", "")[2], [])
        self.assertEqual(complete()[2], COMMANDS[0][1])


class Shell:
    """An interactive shell on a terminal, in a folder with a few files."""

    def __init__(self, test, command, setup, environment):
        folder = tempfile.TemporaryDirectory(prefix="trainerd-shell-")
        test.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("job.yaml", "notes.txt", "jam.yml"):
            (self.folder / name).touch()
        (self.folder / "jobs").mkdir()
        (self.folder / "jobs" / "big.yaml").touch()
        link = self.folder / "bin"
        link.mkdir()
        (link / "trainerd").symlink_to(BINARY)
        variables = {"PATH": f"{link}:{os.environ['PATH']}", "HOME": folder.name, "TERM": "dumb", "LC_ALL": "C.UTF-8", **environment}
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execvpe(command[0], command, variables)
        test.addCleanup(self.close, pid)
        for line in setup:
            self.type(line + "\n")

    def close(self, pid):
        os.close(self.terminal)  # closes the terminal
        os.waitpid(pid, 0)

    def type(self, text):
        os.write(self.terminal, text.encode())

    def until(self, pattern, seconds=30):
        """Waits for `pattern` in the shell's output. Returns the match."""
        end, text = time.monotonic() + seconds, ""
        while time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.2)[0]:
                text += os.read(self.terminal, 65536).decode(errors="replace")
                if found := re.search(pattern, text, re.S):
                    return found
        raise AssertionError(f"{pattern} does not appear in: {text!r}")


class Bash(unittest.TestCase):
    def setUp(self):
        self.shell = Shell(self, ["bash", "--norc", "--noprofile", "-i"],
                           ["PS1='$ '; bind 'set bell-style none' 'set show-all-if-ambiguous off'; bind '\"\\C-x\\C-a\": insert-completions'",
                            "source <(trainerd completion bash)", "shown() { printf '\\002'; printf '<%s>' \"$@\"; printf '\\003'; }"], {})

    def words(self, typed, key="\t"):
        """The words of the line after `key` has completed it."""
        self.shell.type(f"{typed}{key}\x01shown \n")
        return re.findall(r"<(.*?)>", self.shell.until("\x02(.*?)\x03").group(1))[1:]

    def test_a_line_is_completed(self):
        for typed, words in {"trainerd val": ["validate"],
                             "trainerd run jo": ["run", "job"],  # job.yaml and jobs/
                             "trainerd run job.": ["run", "job.yaml"],
                             "trainerd run jobs/": ["run", "jobs/big.yaml"],
                             "trainerd run n": ["run", "n"],
                             "trainerd run job.yaml --fr": ["run", "job.yaml", "--fresh"],
                             "trainerd run job.yaml --set optimizer.schedule.ki": ["run", "job.yaml", "--set", "optimizer.schedule.kind="],
                             "trainerd run --set optimizer.schedule.kind=cosi": ["run", "--set", "optimizer.schedule.kind=cosine"],
                             "trainerd run --set=model.preset=llama-3-40": ["run", "--set=model.preset=llama-3-405b"],
                             "trainerd run --set data.train=no": ["run", "--set", "data.train=notes.txt"],
                             "trainerd plan --cluster=dgx-h1": ["plan", "--cluster=dgx-h100"],
                             "trainerd checkpoint ver": ["checkpoint", "verify"],
                             "trainerd man --out jo": ["man", "--out", "jobs/"]}.items():
            with self.subTest(typed):
                self.assertEqual(self.words(typed), words)

    def test_all_that_may_follow_is_offered(self):
        self.assertEqual(self.words("trainerd ", "\x18\x01"), sorted(COMMANDS[0][1]))
        self.assertEqual(self.words("trainerd run j", "\x18\x01"), ["run", "jam.yml", "job.yaml", "jobs"])
        self.assertEqual(set(self.words("trainerd run job.yaml --set ", "\x18\x01")[3:]), {key + "=" for key in settable()})


class Zsh(unittest.TestCase):
    def test_a_line_is_completed(self):
        shell = Shell(self, ["zsh", "-f", "-i"],
                      ["PS1='$ '; unsetopt beep zle_bracketed_paste; bindkey -e; autoload -U compinit; compinit -u -D",
                       "source <(trainerd completion zsh)", "shown() { printf '\\002'; printf '<%s>' \"$@\"; printf '\\003'; }"], {})
        for typed, words in {"trainerd val": ["validate"],
                             "trainerd run job.": ["run", "job.yaml"],
                             "trainerd run job.yaml --fr": ["run", "job.yaml", "--fresh"],
                             "trainerd run --set optimizer.schedule.ki": ["run", "--set", "optimizer.schedule.kind="],
                             "trainerd run --set optimizer.schedule.kind=cosi": ["run", "--set", "optimizer.schedule.kind=cosine"],
                             "trainerd run --set data.train=no": ["run", "--set", "data.train=notes.txt"],
                             "trainerd validate --svg=no": ["validate", "--svg=notes.txt"],
                             "trainerd checkpoint ver": ["checkpoint", "verify"]}.items():
            with self.subTest(typed):
                shell.type(f"{typed}\t\x01shown \n")
                self.assertEqual(re.findall(r"<(.*?)>", shell.until("\x02(.*?)\x03").group(1))[1:], words)


class Fish(unittest.TestCase):
    def offered(self, line):
        folder = tempfile.TemporaryDirectory(prefix="trainerd-fish-")
        self.addCleanup(folder.cleanup)
        home = pathlib.Path(folder.name)
        (home / "trainerd").symlink_to(BINARY)
        for name in ("job.yaml", "notes.txt"):
            (home / name).touch()
        done = subprocess.run(["fish", "--no-config", "-c", f"trainerd completion fish | source; complete -C '{line}'"], cwd=home, text=True,
                              capture_output=True, timeout=60, env={"PATH": f"{home}:{os.environ['PATH']}", "HOME": folder.name, "LC_ALL": "C.UTF-8"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [found.split("\t")[0] for found in done.stdout.splitlines()]

    def test_what_may_follow_is_offered(self):
        self.assertEqual(sorted(self.offered("trainerd ")), sorted(COMMANDS[0][1]))
        for line, words in {"trainerd val": ["validate"],
                            "trainerd run jo": ["job.yaml"],
                            "trainerd run n": [],
                            "trainerd run job.yaml --fr": ["--fresh"],
                            "trainerd run --set optimizer.schedule.ki": ["optimizer.schedule.kind="],
                            "trainerd run --set optimizer.schedule.kind=cosi": ["optimizer.schedule.kind=cosine"],
                            "trainerd run --set data.train=no": ["data.train=notes.txt"],
                            "trainerd checkpoint ver": ["verify"]}.items():
            with self.subTest(line):
                self.assertEqual(self.offered(line), words)


if __name__ == "__main__":
    unittest.main()
