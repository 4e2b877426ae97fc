"""Every text with which a run reports a failure is asserted in a test that causes the failure.

Texts are string literals of core/run with at least three words, except those of log::info only. A text counts as asserted if five
consecutive words of it (all of a shorter one), in any literal of its statement, are somewhere in the tests. So this test fails for
new and changed texts, whose author must write a test. Texts that no test can cause are listed with a reason."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORDS = 5
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')

# Files whose texts concern data, tokenizers, weights and records at the start, not a failing run.
OTHERS = ("agent/git_state.cpp", "agent/start_record.cpp", "worker/batches.cpp", "worker/evaluator.cpp", "worker/reference.cpp",
          "worker/resume_check.cpp", "worker/run_tokenizer.cpp")

KERNEL = "the kernel has no descriptor, process or memory left"
BUG = "a bug of the program alone brings it about"
PART = "a key, a command, a name or a title; or a part of a text whose other parts are asserted"
UNASSERTED = {
    "cannot make an eventfd": KERNEL,
    "cannot make an event descriptor": KERNEL,
    "cannot make a timer to watch the ranks": KERNEL,
    "cannot listen for signals": KERNEL,
    "cannot make a socket pair": KERNEL,
    "cannot hand a descriptor to the worker": KERNEL,
    "cannot start the worker": KERNEL,
    "cannot watch the worker pidfd open": KERNEL,
    "no thread can be started": KERNEL,
    "its worker ran out of host memory": KERNEL,
    "planning it takes more memory than this host has": KERNEL,
    "itself before it was done": BUG,
    "a rank whose results differ goes on": BUG,
    "onednn computes some matrix products by its reference": BUG,
    "against each other": PART,
    "exit status 1": PART,
    "hang minimum seconds": PART,
    "the cluster s failures": PART,
    "learned from the run s history": PART,
    "the tag of step": PART,
    "the state that ranks hold is corrupt": PART,
    "its state was not compared": PART,
    "a newer snapshot takes its place": PART,
    "a node is lost": PART,
    "a node that has come": PART,
    "goes on with another number of nodes": PART,
    "goes on with another leader": PART,
    "goes on without this node": PART,
    "the leader s message": PART,
    "no agent has all of": BUG,
    "lines more in": PART,
    "training starts from the weights of": PART,
    "steps are done the last checkpoint is": PART,
    "an attempt to go on": PART,
    "wait as spare": PART,
    "v3 lease": PART,
    "loss over all ranks": PART,
}


def words_of(text):
    return re.findall(r"[a-z0-9]+", re.sub(r"\\(.)", lambda m: " " if m.group(1) in "nt" else m.group(1), text).lower())


def without_comments(source):
    source = re.sub(r"^\s*#.*$", "", source, flags=re.M)
    return re.sub(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', lambda m: m.group(1) or " ", source, flags=re.S)


def statements(source):
    """Per statement the lists of words of its literals, without placeholders."""
    for statement in re.split(r"[;{}]\s*\n", without_comments(source)):
        told = re.search(r"\blog::(warn|error)\(|\bnotify\(", statement)
        if "base::check(" in statement or (re.search(r"\blog::info\(", statement) and not told):
            continue
        literals = LITERAL.findall(re.sub(r'"\s*"', "", statement))
        fragments = [words_of(part) for literal in literals for part in re.split(r"\{[^}]*\}", literal)]
        fragments = [words for words in fragments if len(words) >= 3 and sum(map(len, words)) >= 10]
        if fragments:
            yield fragments


def without_python_comments(source):
    return re.sub(r"^\s*#.*$|\s{2}# .*$", "", source, flags=re.M)


def tests_text():
    """All words of the tests, without those of comments and names of C++ test cases, which assert nothing."""
    text = []
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix in (".py", ".cpp", ".h") and path.name != pathlib.Path(__file__).name:
            source = path.read_text(errors="replace")
            if path.suffix == ".py":
                source = without_python_comments(source)
            else:
                source = re.sub(r"^\s*(TEST_CASE|SECTION)\(.*?\) \{$", "", without_comments(source), flags=re.M | re.S)
            text += words_of(re.sub(r'"\s*[fr]*"', "", source))
    return " " + " ".join(text) + " "


def unasserted():
    """(file, words) of statements that no test asserts."""
    text = tests_text()

    def is_asserted(words):
        count = min(len(words), WORDS)
        return any(" " + " ".join(words[i:i + count]) + " " in text for i in range(len(words) - count + 1))

    for path in sorted((ROOT / "core" / "run").rglob("*")):
        if path.suffix in (".cpp", ".h") and not str(path).endswith(OTHERS):
            for fragments in statements(path.read_text()):
                if not any(map(is_asserted, fragments)):
                    yield path.relative_to(ROOT), " / ".join(" ".join(words) for words in fragments)


class FailureTexts(unittest.TestCase):
    def test_every_text_of_a_failure_is_asserted_or_listed_with_its_reason(self):
        used, found = set(), []
        for path, text in unasserted():
            reasons = [part for part in UNASSERTED if part in text]
            used.update(reasons)
            if not reasons:
                found.append(f"{path}: {text}")
        self.assertEqual(found, [], "no test has these texts:\n" + "\n".join(found))
        self.assertEqual(sorted(set(UNASSERTED) - used), [], "these are asserted, or gone")

    def test_a_text_that_no_test_has_is_found(self):
        found = list(statements('void f() {\n  if (x)\n    fail({kind, "the ranks of " + name + " went " "home at {} o\'clock"});\n'
                                '  log::info("a line that is logged alone");\n  g("two words");  // "no text of a failure"\n}\n'))
        self.assertEqual(found, [[["the", "ranks", "of"], ["went", "home", "at"]]])


if __name__ == "__main__":
    unittest.main(verbosity=2)
