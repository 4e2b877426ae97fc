"""Paths of the programs, and how to run one: with a time limit, monitored, and with results written at once."""

import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
# A phase must end by itself on machines that limit a command to ten minutes.
PHASE_SECONDS = 570
# Limit of programs that only report something.
SHORT_SECONDS = 60
# Reserved at the end of a phase for stopping programs and for the table.
RESERVE_SECONDS = 25


class Places:
    """Paths of the programs. In a package the binaries are beside tests/, in a source tree in the build folder."""

    def __init__(self, build=None):
        root = TESTS.parent
        if build is None:
            build = TESTS if (TESTS / "test_cuda").exists() else root / "build" / "release"
        self.binaries = pathlib.Path(build)
        packaged = self.binaries == TESTS
        self.trainerd = (root / "bin" if packaged else self.binaries) / "trainerd"
        self.plugin = (root / "lib" if packaged else self.binaries) / "libtrainerd_cuda.so"
        self.share = root / "share" / "trainerd" if packaged else root
        needed = [self.trainerd, *map(self.binary, ("test_cuda", "train_bench", "operators_bench", "device_bench"))]
        self.missing = [str(p) for p in needed if not p.exists()]

    def binary(self, name):
        return self.binaries / name

    def libraries(self):
        """LD_LIBRARY_PATH for our programs."""
        found, error = asked([self.share / "deploy" / "cuda-libraries.sh"])
        if error:
            print(error, file=sys.stderr)
        return ":".join(p for p in (found.strip(), os.environ.get("LD_LIBRARY_PATH", "")) if p)

    def build(self):
        """Version, commit and architectures, from the package or from git."""
        known = self.share / "BUILD"
        if known.exists():
            return dict(line.split(": ", 1) for line in known.read_text().splitlines())
        git = lambda *args: subprocess.run(["git", "-C", str(HERE), *args], capture_output=True, text=True).stdout.strip()
        commit = git("rev-parse", "--short=12", "HEAD")
        return {"commit": commit + ("-changed" if git("status", "--porcelain", "--untracked-files=no") else "") if commit else "unknown"}


class Watch(threading.Thread):
    """Clocks, power, memory and temperature during a step, from nvidia-smi if it exists."""

    QUERY = ("clocks.sm", "power.draw", "memory.used", "temperature.gpu")

    def __init__(self):
        super().__init__(daemon=True)
        self.samples, self.process = [], None
        if shutil.which("nvidia-smi"):
            self.process = subprocess.Popen(["nvidia-smi", "--query-gpu=" + ",".join(self.QUERY), "--format=csv,noheader,nounits",
                                             "--id=0", "--loop-ms=500"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.start()

    def run(self):
        for line in self.process.stdout:
            self.add(line)

    def add(self, line):
        try:
            sample = [float(x) for x in line.split(",")]
        except ValueError:
            return  # "[N/A]"
        if len(sample) == len(self.QUERY):  # the last line may be cut off
            self.samples.append(sample)

    def summary(self):
        if self.process is None:
            return None
        self.process.kill()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            pass  # it waits for the driver
        self.join(5)
        if not self.samples:
            return None
        columns = dict(zip(("sm_mhz", "watts", "memory_mib", "celsius"), zip(*self.samples)))
        return {name: {"median": statistics.median(v), "most": max(v)} for name, v in columns.items()}


class Run:
    """The results of all phases, and the clock of the current one."""

    def __init__(self, out, places, only=None):
        """`only`: a pattern. Steps whose names do not match are left out."""
        self.out, self.places, self.only = out, places, only
        out.mkdir(parents=True, exist_ok=True)
        self.results = open(out / "results.jsonl", "a", encoding="utf-8")
        self.log = open(out / "log.txt", "a", encoding="utf-8")
        self.records, self.phase, self.end = [], "", 0.0
        self.begun = time.monotonic()  # start of the phase; time before the first phase counts for it
        self.libraries = places.libraries()
        self.device = asked(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"])[0].strip()

    def begin(self, phase, seconds=PHASE_SECONDS):
        if self.phase:
            self.begun = time.monotonic()
        self.phase, self.end = phase, self.begun + seconds - RESERVE_SECONDS

    def left(self):
        return self.end - time.monotonic()

    def elapsed(self):
        return time.monotonic() - self.begun

    def wants(self, name):
        return self.only is None or re.search(self.only, name) is not None

    @staticmethod
    def read_lines(path):
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def record(self, **fields):
        record = {"phase": self.phase, **fields}
        self.records.append(record)
        self.results.write(json.dumps(record) + "\n")
        self.results.flush()
        os.fsync(self.results.fileno())
        return record

    def note(self, text):
        print(text, flush=True)
        self.log.write(text + "\n")
        self.log.flush()

    def ours(self, name):
        return str(self.places.binary(name))

    def step(self, name, command, limit, ours=True, watch=False, lines=False, fatal=True):
        """Runs a command for at most `limit` seconds. Returns (record, output). With `lines`, its JSON lines become records. A program
        that is not `ours`, or a step that is not `fatal`, fails without failing the run."""
        if not self.wants(name):
            return {"step": name, "outcome": "left out"}, ""
        limit = min(limit, self.left())
        if limit < 1:
            return self.record(step=name, outcome="not run: the phase's time was over"), ""
        self.note(f"== phase {self.phase}: {name} (at most {limit:.0f} s): {' '.join(map(str, command))}")
        env = dict(os.environ, PYTHONUNBUFFERED="1")
        if ours:
            env["LD_LIBRARY_PATH"] = self.libraries
        monitor = Watch() if watch else None
        begin = time.monotonic()
        output, outcome = run_limited(command, limit, env)
        took = time.monotonic() - begin
        self.log.write(output + "\n")
        found = json_lines(output)
        fields = {"step": name, "outcome": outcome, "ours": ours and fatal, "seconds": round(took, 3)}
        if outcome != "passed":
            fields["tail"] = output[-2000:]
        if monitor and (seen := monitor.summary()):
            fields["device"] = seen
        if lines:
            for line in found:
                self.record(measure=name, **line)
        elif found:
            fields["result"] = found[-1]
        self.note(f"   {outcome} in {took:.1f} s")
        return self.record(**fields), output

    def failed(self):
        return [r for r in self.records if r.get("outcome", "").startswith(("failed", "timed out")) and r.get("ours", True)]

    def close(self):
        self.results.close()
        self.log.close()


def asked(command, env=None):
    """(standard output, error) of a program that only reports something; the error is empty if it succeeded."""
    try:
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=env)
        out, err = process.communicate(timeout=SHORT_SECONDS)
    except OSError as error:
        return "", str(error)
    except subprocess.TimeoutExpired as error:
        process.kill()  # and not waited for: it may wait for the driver
        return "", str(error)
    return out, "" if process.returncode == 0 else err.strip() or f"status {process.returncode}"


def json_lines(output):
    """Complete JSON lines: a stopped program may leave an incomplete one."""
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def run_limited(command, limit, env):
    """Output (both streams) and outcome. A command over its limit is killed with its child processes."""
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        except OSError as error:
            return str(error), f"failed: {error.strerror}"
        try:
            code = process.wait(limit)
            outcome = "passed" if code == 0 else f"failed: status {code}"
        except subprocess.TimeoutExpired:
            outcome = f"timed out after {limit:.0f} s"
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            outcome += ", and could not be killed"  # it waits for the driver
        out.seek(0)
        return out.read(), outcome
