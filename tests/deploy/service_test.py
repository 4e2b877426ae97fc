"""The systemd unit and the container file: checked by systemd-analyze if it is installed, and against the files and options that
they name."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from documents import documented, documented_line

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
UNIT = ROOT / "deploy/systemd/trainerd@.service"
CONTAINER = ROOT / "deploy/Containerfile"


class Unit(unittest.TestCase):
    def setUp(self):
        self.text = UNIT.read_text()
        self.values = {}
        for line in self.text.splitlines():
            if found := re.fullmatch(r"(\w+)=(.*)", line):
                self.assertNotIn(found.group(1), self.values)
                self.values[found.group(1)] = found.group(2)
        codes = (ROOT / "apps/exit_codes.h").read_text()
        self.codes = {kind: int(code) for kind, code in re.findall(r"ErrorKind::(\w+): return (\d)", codes)}
        self.codes["spec"] = int(re.search(r"kExitUsage = (\d)", codes).group(1))

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze")
    def test_systemd_takes_it(self):
        with tempfile.TemporaryDirectory(prefix="trainerd-unit-") as folder:
            unit = pathlib.Path(folder) / "trainerd@job.service"

            def complaints(text):
                unit.write_text(text.replace("ExecStart=trainerd", "ExecStart=true"))
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit], capture_output=True, text=True)
                return [line for line in (done.stdout + done.stderr).splitlines() if "trainerd" in line] + ([f"status {done.returncode}"] if done.returncode else [])

            self.assertEqual(complaints(self.text), [])
            self.assertNotEqual(complaints(self.text.replace("RestartSec=30s", "RestartSecs=30s")), [])

    def test_the_job_of_an_instance_is_put_where_the_unit_reads_it(self):
        with tempfile.TemporaryDirectory(prefix="trainerd-unit-") as folder:
            for beginning in ("install -D", "cp -r configs"):
                subprocess.run(documented("deploy/README.md", beginning, {"/etc/": f"{folder}/etc/"}), check=True, cwd=ROOT)
            self.assertIn("/etc/trainerd/%i.yaml", self.values["ExecStart"])
            self.assertEqual((pathlib.Path(folder) / "etc/trainerd/tiny.yaml").read_bytes(), (ROOT / "configs/tiny.yaml").read_bytes())

    def test_what_a_restart_cannot_mend_is_not_restarted(self):
        stays = {self.codes[kind] for kind in ("spec", "capacity", "data", "checkpoint", "diverged")}
        self.assertEqual({int(code) for code in self.values["RestartPreventExitStatus"].split()}, stays)
        self.assertEqual(self.values["Restart"], "on-failure")
        # The remaining kinds of errors are retried.
        self.assertEqual(set(self.codes) - {"comm", "device"}, {"spec", "capacity", "data", "checkpoint", "diverged"})
        self.assertEqual(self.values["SuccessExitStatus"], "143 130")
        self.assertIn("| 143, 130 | stopped by a signal, after saving", (ROOT / "core/run/README.md").read_text())

    def test_it_hides_no_device_and_no_memory(self):
        for key in ("PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock", "MemoryDenyWriteExecute", "PrivateNetwork", "PrivateUsers"):
            self.assertNotIn(key, self.values)
        self.assertEqual(self.values["LimitMEMLOCK"], "infinity")


# Runs under systemd: the page's commands, and a kill. Each line of the log is a name and its value.
INSIDE = """
cd /files
cp trainerd /usr/local/bin/ && cp trainerd@.service /etc/systemd/system/
mkdir -p /etc/systemd/system/trainerd@.service.d && printf '[Service]\\nRestartSec=1s\\n' > /etc/systemd/system/trainerd@.service.d/short.conf
say() { echo "$@" >> /outside/log; }
until_true() { for i in $(seq 300); do eval "$1" && return; sleep 0.1; done; say timeout "$1"; journalctl --no-pager | tail -40 >> /outside/log; exit 1; }
show() { systemctl show "trainerd@$1" -p "$2" --value; }
trained() { journalctl -u trainerd@tiny --no-pager | grep -c "step 3/"; }
say booted
INSTALL
COPY
sed -i 's/^steps: .*/steps: 1000000/' /etc/trainerd/tiny.yaml
START
until_true '[ "$(trained)" = 1 ]'
say user $(ps -o user= -p $(show tiny MainPID))
kill -KILL $(show tiny MainPID)
until_true '[ "$(trained)" = 2 ]'
say restarts $(show tiny NRestarts)
say followed $(timeout 2 FOLLOW -n 5 | wc -l)
STOP
say stopped $(show tiny Result) $(show tiny ActiveState) $(ls /var/lib/trainerd/runs/tiny/checkpoints | wc -l)
sed 's/^steps: .*/steps: none/' /etc/trainerd/tiny.yaml > /etc/trainerd/wrong.yaml
systemctl start trainerd@wrong
until_true '[ "$(show wrong ActiveState)" = failed ]'
sleep 2
say wrong $(show wrong ExecMainStatus) $(show wrong NRestarts)
for name in node0 node1 spare; do
  sed 's/^steps: .*/steps: 1000000/' /files/configs/tiny.yaml > /etc/trainerd/$name.yaml
  printf 'output: runs/nodes\nthreads: 1\nparallel: {dp: 2}\ncluster: {nodes: 2, failures: {spares: 1}}\n' >> /etc/trainerd/$name.yaml
done
NODE0
NODE1
SPARE
sed -i 's/--node 1/--node 0/' /etc/trainerd/node0.env
sed -i 's/10.0.0.1/127.0.0.1/; s/^TRAINERD_OPTIONS=.*/& --metrics-listen 127.0.0.1:0/' /etc/trainerd/{node0,node1,spare}.env
systemctl start trainerd@spare trainerd@node0 trainerd@node1
until_true 'journalctl -u trainerd@node0 --no-pager | grep -q "waits as a spare"'
until_true '[ -s /var/lib/trainerd/runs/nodes/steps.jsonl ]'
systemctl stop trainerd@node0 trainerd@node1 trainerd@spare
for name in node0 node1 spare; do say $name $(show $name Result) $(show $name ActiveState) $(show $name NRestarts); done
say end
"""


@unittest.skipUnless(os.geteuid() == 0 and pathlib.Path("/lib/systemd/systemd").exists() and shutil.which("unshare"), "needs root and systemd")
class Systemd(unittest.TestCase):
    def test_a_service_trains_comes_back_after_a_kill_and_saves_when_it_is_stopped(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="trainerd-systemd-"))
        self.addCleanup(shutil.rmtree, folder)
        for name in ("mnt", "files"):
            (folder / name).mkdir()
        shutil.copy(os.environ["TRAINERD_BINARY"], folder / "files" / "trainerd")
        shutil.copy(UNIT, folder / "files")
        shutil.copytree(ROOT / "configs", folder / "files" / "configs")
        shutil.copytree(ROOT / "deploy/systemd", folder / "files" / "deploy/systemd")
        script = INSIDE
        for word, beginning in {"INSTALL": "install -D", "COPY": "cp -r configs", "START": "systemctl enable", "FOLLOW": "journalctl -u",
                                "STOP": "systemctl stop"}.items():
            script = script.replace(word, documented_line("deploy/README.md", beginning))
        for word, beginning, name in (("NODE0", "cp deploy/systemd/node.env", "node0"), ("NODE1", "cp deploy/systemd/node.env", "node1"),
                                 ("SPARE", "cp deploy/systemd/spare.env", "spare")):
            script = script.replace(word, documented_line("deploy/README.md", beginning, {"tiny.env": f"{name}.env"}))
        (folder / "inside.sh").write_text(script)
        log = folder / "log"
        with open(folder / "console", "w") as console:
            process = subprocess.Popen(["unshare", "-m", "-p", "-u", "-i", "-C", "--fork", "--kill-child", "bash", ROOT / "tests/deploy/boot_systemd.sh", folder],
                                       stdout=console, stderr=console)
        said = {}
        begin = time.monotonic()
        while time.monotonic() - begin < 180 and process.poll() is None and not {"end", "timeout"} & set(said):
            time.sleep(0.2)
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            said = {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}
            if "booted" not in said and time.monotonic() - begin > 30:
                break
        process.kill()
        process.wait()
        text = "\n".join(f"{p.name}:\n{p.read_text(errors='replace')}" for p in (log, folder / "console") if p.exists())
        if "booted" not in said:
            self.skipTest(f"no systemd in namespaces here: {text[-1000:]}")
        self.assertIn("end", said, text)
        self.assertEqual({key: said[key] for key in ("user", "restarts", "stopped", "wrong")},
                         {"user": "trainerd", "restarts": "1", "stopped": "success inactive 1", "wrong": "2 0"}, text)
        self.assertGreater(int(said["followed"]), 0)
        # Two nodes trained, a spare waited, and all were stopped.
        self.assertEqual({name: said[name] for name in ("node0", "node1", "spare")}, dict.fromkeys(("node0", "node1", "spare"), "success inactive 0"), text)


class Container(unittest.TestCase):
    """Checks the text of the file: the image is not built here."""

    def setUp(self):
        self.steps = []
        for line in CONTAINER.read_text().splitlines():
            if line and not line.startswith("#"):
                self.steps.append(tuple(line.split(" ", 1)))

    def test_it_builds_by_the_commands_of_the_quickstart(self):
        runs = [rest for step, rest in self.steps if step == "RUN"]
        quickstart = (ROOT / "deploy/quickstart.sh").read_text().replace("$cuda", "OFF").splitlines()
        self.assertIn("./deploy/install-deps.sh", quickstart)
        builds = [line for line in quickstart if line.startswith("cmake")]
        self.assertEqual(len(builds), 2)
        self.assertEqual([run for run in runs if run.startswith(("./", "cmake"))], ["./deploy/install-deps.sh", *builds])
        for run in runs:
            subprocess.run(["sh", "-n", "-c", run], check=True)

    def test_its_steps_are_known_and_what_they_copy_is_there(self):
        stages = []
        for step, rest in self.steps:
            self.assertIn(step, {"FROM", "RUN", "COPY", "WORKDIR", "USER", "ENTRYPOINT", "CMD"})
            if step == "FROM":
                stages.append(rest.partition(" AS ")[2])
                self.assertTrue(rest.startswith("debian:12-slim"), rest)
            if step == "COPY":
                words = shlex.split(rest)
                if words[0].startswith("--from="):
                    self.assertIn(words[0].removeprefix("--from="), stages[:-1])
                else:
                    for source in words[:-1]:
                        self.assertTrue((ROOT / source).exists(), source)
        self.assertEqual(len(stages), 2)
        self.assertEqual(self.steps[-2], ("ENTRYPOINT", '["trainerd"]'))


if __name__ == "__main__":
    unittest.main()
