"""Runs the real binary on small jobs in a temporary directory."""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from slices import FULL, always, in_slice, sliced

BINARY = pathlib.Path(os.environ["TRAINERD_BINARY"]).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Sanitizers slow the program down several times and end it themselves if memory is short.
SANITIZED = b"__asan_init" in BINARY.read_bytes() or b"__tsan_init" in BINARY.read_bytes()

# Seconds that a test waits for something that is immediate on an idle machine.
PATIENCE = 300 if SANITIZED else 180

# A hanging disk: while the file named by the environment exists, fsync does not return for files whose path contains the file's
# text.
SLOW_DISK = r'''
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static int is_held(const char* hold, const char* path) {
  char part[256];
  const int fd = open(hold, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t n = read(fd, part, sizeof(part) - 1);
  close(fd);
  part[n < 0 ? 0 : n] = 0;
  return strstr(path, part) != NULL;
}
int fsync(int fd) {
  const char* hold = getenv("SLOW_DISK_HOLD");
  char name[64], path[4096];
  snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(name, path, sizeof(path) - 1);
  path[n < 0 ? 0 : n] = 0;
  while (hold && is_held(hold, path)) usleep(1000);
  return (int)syscall(SYS_fsync, fd);
}
'''

# A failing disk: the file named by the environment has lines "CALL ERRNO TEXT". A call of that kind on a path that contains TEXT
# fails with ERRNO and creates the file "NAME.failed" beside the file. Calls: look (stat, open to read, list), read, write (open to
# write, write, fsync, rename), remove.
FAILING_DISK = r'''
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails(const char* call, const char* path) {
  const char* rules = getenv("FAILING_DISK");
  const long fd = rules ? syscall(SYS_openat, AT_FDCWD, rules, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return 0;
  char text[4096], *line, *rest = text;
  const long n = syscall(SYS_read, (int)fd, text, sizeof(text) - 1);
  syscall(SYS_close, (int)fd);
  text[n < 0 ? 0 : n] = 0;
  while ((line = strsep(&rest, "\n"))) {
    char kind[16], part[256];
    int error;
    if (sscanf(line, "%15s %d %255s", kind, &error, part) == 3 && !strcmp(kind, call) && strstr(path, part)) {
      char failed[4096];
      snprintf(failed, sizeof(failed), "%s.failed", rules);
      const long mark = syscall(SYS_openat, AT_FDCWD, failed, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
      if (mark >= 0) syscall(SYS_close, (int)mark);
      return errno = error;
    }
  }
  return 0;
}
static int fd_fails(const char* call, int fd) {
  char name[64], path[4096];
  snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(name, path, sizeof(path) - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return fails(call, path);
}
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPEN(name) \
  int name(const char* path, int flags, ...) { \
    va_list list; va_start(list, flags); const mode_t mode = va_arg(list, mode_t); va_end(list); \
    return fails(flags & O_CREAT ? "write" : "look", path) ? -1 : NEXT(name)(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
int stat(const char* path, struct stat* out) { return fails("look", path) ? -1 : NEXT(stat)(path, out); }
DIR* opendir(const char* path) { return fails("look", path) ? NULL : NEXT(opendir)(path); }
ssize_t pread(int fd, void* to, size_t n, off_t at) { return fd_fails("read", fd) ? -1 : NEXT(pread)(fd, to, n, at); }
ssize_t pread64(int fd, void* to, size_t n, off64_t at) { return fd_fails("read", fd) ? -1 : NEXT(pread64)(fd, to, n, at); }
ssize_t write(int fd, const void* from, size_t n) { return fd_fails("write", fd) ? -1 : NEXT(write)(fd, from, n); }
int fsync(int fd) { return fd_fails("write", fd) ? -1 : NEXT(fsync)(fd); }
int rename(const char* from, const char* to) { return fails("write", to) ? -1 : NEXT(rename)(from, to); }
int rmdir(const char* path) { return fails("remove", path) ? -1 : NEXT(rmdir)(path); }
int unlink(const char* path) { return fails("remove", path) ? -1 : NEXT(unlink)(path); }
int remove(const char* path) { return fails("remove", path) ? -1 : NEXT(remove)(path); }
int unlinkat(int at, const char* path, int flags) { return fails("remove", path) ? -1 : NEXT(unlinkat)(at, path, flags); }
'''

JOB = """\
name: system
seed: 7
output: {output}
device: cpu
threads: 1
model: {{layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 176, vocab: 256, seq_len: 64}}
batch: {{global: 4, micro: 2}}
precision: bf16
optimizer: {{name: adamw, lr: {lr}, schedule: {schedule}}}
steps: 24
data: {{train: [{data}], valid: [{data}], format: text, tokenizer: bytes}}
checkpoint: {{every: 5, keep: 3}}
evaluate: {{every: 10, batches: 1}}
metrics: {{listen: "127.0.0.1:0"}}
"""


CONSTANT = "{kind: constant, warmup: 5}"


def make_text(size):
    """Words of a small fixed vocabulary, which a model can learn. Always the same text."""
    rng = random.Random(3)
    words = ["int", "float", "return", "while", "template", "class", "namespace", "{", "}", ";", "(", ")", "\n"]
    out = []
    while sum(map(len, out)) < size:
        out.extend(rng.choice(words) + " " for _ in range(500))
    return "".join(out)


class RunTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="trainerd-test-"))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.data = self.root / "data.txt"
        self.data.write_text(make_text(60_000))

    def job(self, name="a", extra="", lr="1.0e-3", schedule="{kind: cosine, warmup: 5, min_lr: 1.0e-4}"):
        path = self.root / f"{name}.yaml"
        # Replaced atomically: a process that was started before may be reading it.
        new = self.root / f".{name}.yaml"
        new.write_text(JOB.format(output=self.root / name, data=self.data, lr=lr, schedule=schedule) + extra)
        return new.replace(path)

    def start(self, job, *args, **kwargs):
        process = subprocess.Popen([BINARY, "run", job, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   **kwargs)
        self.addCleanup(self._end, process)
        return process

    @staticmethod
    def _end(process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()

    def run_job(self, job, *args, status=0, timeout=600 if SANITIZED else 120, **kwargs):
        """Runs the job to its end and checks the exit status. Returns the output."""
        process = self.start(job, *args, **kwargs)
        output, _ = process.communicate(timeout=timeout)
        self.assertEqual(process.returncode, status, output)
        return output

    def steps(self, name="a"):
        path = self.root / name / "steps.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def last_step(self, name="a"):
        """The newest logged step; 0 if there is none."""
        path = self.root / name / "steps.jsonl"
        if not path.exists():
            return 0
        with path.open("rb") as file:  # reads only its end, since tests call this often
            file.seek(max(0, path.stat().st_size - 16384))
            lines = file.read().split(b"\n")
        return json.loads(lines[-2])["step"] if len(lines) > 1 else 0

    def settled(self, name):
        """Waits until no further step is logged. Returns the last one."""
        last = -1
        while last != (last := self.last_step(name)):
            time.sleep(0.5)
        return last

    def assert_samples_once(self, name="a", first=0):
        """Checks that the ledger of the surviving history has every sample once and in order, despite failures."""
        lines = [json.loads(line) for line in (self.root / name / "samples.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], [s["step"] for s in self.steps(name)])
        self.assertEqual([line["step"] for line in lines], list(range(1, len(lines) + 1)))
        attempts = [line["attempt"] for line in lines]
        self.assertEqual(attempts, sorted(attempts))
        for line in lines:
            self.assertEqual(line["first"], first, line)
            self.assertGreater(line["count"], 0, line)
            first += line["count"]

    def losses(self, name="a"):
        """(step, loss as its exact text) of every step."""
        return [(s["step"], repr(s["loss"])) for s in self.steps(name)]

    def checkpoints(self, name="a"):
        """Complete checkpoints, oldest first."""
        folder = self.root / name / "checkpoints"

        def is_complete(path):
            try:
                return (path / "COMPLETE").stat().st_size > 0
            except (FileNotFoundError, NotADirectoryError):  # unfinished, or removed meanwhile
                return False

        return sorted(path for path in folder.glob("step-*") if is_complete(path))

    def events(self, name="a"):
        path = self.root / name / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def evaluations(self, name="a"):
        """Steps of the evaluations that were logged."""
        return [e["step"] for e in self.events(name) if e["event"] == "evaluation"]

    def saves(self, name="a"):
        """Steps of the checkpoints that were logged."""
        return [e["step"] for e in self.events(name) if e["event"] == "checkpoint"]

    def read_until(self, process, pattern):
        """Reads the output up to the first line that matches. Returns this line; earlier lines are consumed."""
        seen = []
        for line in process.stdout:
            if re.search(pattern, line):
                return line
            seen.append(line)
        self.fail(f"no line matches {pattern!r}:\n{''.join(seen)}")

    def wait_for(self, process, condition, what, timeout=PATIENCE):
        """Waits until `condition()` is true and returns its value. Fails after `timeout` or if the process ends before."""
        end = time.monotonic() + timeout
        while not (value := condition()):
            if process.poll() is not None:
                if value := condition():  # it became true at the end
                    return value
                output = process.stdout.read() if process.stdout else ""
                self.fail(f"ended with {process.returncode} before {what}\n{output}")
            if time.monotonic() > end:
                self.fail(f"not within {timeout} s: {what}")
            time.sleep(0.005)
        return value

    def wait_for_step(self, process, step, name="a", timeout=PATIENCE):
        """Waits until the log has `step`. Its checkpoint may still be in progress: see wait_for_checkpoint."""
        self.wait_for(process, lambda: self.last_step(name) >= step, f"step {step} of {name}", timeout)

    def wait_for_checkpoint(self, process, name="a"):
        """Waits until there is a complete checkpoint."""
        self.wait_for(process, lambda: self.checkpoints(name), f"a first checkpoint of {name}")

    @contextlib.contextmanager
    def promptly(self, seconds):
        """The body takes at most `seconds`, plus the time in which some process waited for a core, and at most 4 x `seconds`."""
        begin, waited = time.monotonic(), seconds_without_core()
        yield
        allowed = min(seconds + seconds_without_core() - waited, 4 * seconds) if waited is not None else 4 * seconds
        self.assertLess(time.monotonic() - begin, allowed, f"{seconds} s on an idle machine")

    def within_a_limit(self, attempt):
        """Calls attempt(name, seconds) until one takes less than its seconds: a busy machine may delay any."""
        for seconds in (4, 8, 16, 32):
            name = f"limit-{seconds}"
            begin = time.monotonic()
            result = attempt(name, seconds)
            if time.monotonic() - begin < seconds and self.last_step(name) > 3:
                return name, result
            shutil.rmtree(self.root / name, ignore_errors=True)  # no later run may resume from it
        self.fail("no run kept its time limit")

    def preloaded(self, name, source):
        """The environment of a process with a preloaded library, compiled from this C source."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None or SANITIZED:
            self.skipTest("needs a C compiler, and a program that no sanitizer was built into")
        file, library = self.root / f"{name}.c", self.root / f"{name}.so"
        file.write_text(source)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, file, "-ldl"], check=True)
        return {**os.environ, "LD_PRELOAD": str(library)}

    def slow_disk(self):
        """(a file, the environment of a process whose disk hangs while that file exists): see SLOW_DISK."""
        hold = self.root / "hold"
        return hold, {**self.preloaded("slow", SLOW_DISK), "SLOW_DISK_HOLD": str(hold)}

    def failing_disk(self):
        """(a file of rules, the environment of a process whose disk fails by these rules): see FAILING_DISK."""
        rules = self.root / "rules"
        return rules, {**self.preloaded("failing", FAILING_DISK), "FAILING_DISK": str(rules)}

    @staticmethod
    def children(pid):
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(p) for p in text.split()]


def seconds_without_core():
    """Total seconds in which some process of this machine was ready to run but had no core; None if the kernel does not report
    it."""
    try:
        text = pathlib.Path("/proc/pressure/cpu").read_text()
    except OSError:
        return None
    return int(re.search(r"some .*total=(\d+)", text).group(1)) / 1e6


def lower_priority(*pids):
    """Lets other programs have the cores first: for a run that only has to go on while something else is awaited."""
    for pid in pids:
        # The kernel may first share the cores among sessions, and within one by the priority of threads.
        shares = pathlib.Path(f"/proc/{pid}/autogroup")
        try:
            if shares.exists() and os.getsid(pid) != os.getsid(0):
                shares.write_text("10")
            for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 10)
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            pass


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def scrape(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as response:
        return response.read().decode()


__all__ = ["RunTest", "make_text", "BINARY", "CONSTANT", "ROOT", "SANITIZED", "alive", "lower_priority", "scrape", "FULL", "always", "in_slice", "sliced", "PATIENCE", "random", "signal", "time", "subprocess", "json", "os", "shutil"]
