"""A Prometheus process for tests, with the configuration of deploy/prometheus/."""

import http.client
import pathlib
import re
import socket
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in ("", "system")]
from documents import documented
from support import *

FOLDER = ROOT / "deploy" / "prometheus"
RULES = sorted((FOLDER / "rules").glob("*.yml"))
MISSING = [p for p in ("prometheus", "promtool") if shutil.which(p) is None]
WAIT_SECONDS = 120 if SANITIZED else 60


def metrics_named(text):
    """Names of metrics in expressions, without the suffixes of a histogram's series."""
    names = re.findall(r"\btrainerd_[a-z_]+", text)
    return {re.sub(r"_(bucket|sum|count)$", "", n) if n.startswith(("trainerd_step_seconds", "trainerd_checkpoint_seconds")) else n
            for n in names}


def records_named(text):
    return set(re.findall(r"\btrainerd:[\w:]+", text))


def documented_metrics():
    """The metrics in the table of io/README.md."""
    return metrics_named("\n".join(re.findall(r"^\| (`trainerd_.*?) \|", (ROOT / "io" / "README.md").read_text(), re.M)))


def recorded():
    return set(re.findall(r"record: (\S+)", (FOLDER / "rules" / "recording.yml").read_text()))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class PrometheusTest(RunTest):
    def setUp(self):
        super().setUp()
        self.assertEqual(MISSING, [], "there is no Prometheus here: deploy/install-deps.sh --tests installs it")
        self.discovery = self.root / "discovery"
        self.burn_energy()
        # The deployed configuration, except for its intervals and the directory of targets.
        config = (FOLDER / "prometheus.yml").read_text()
        config = re.sub(r"(scrape_interval|evaluation_interval): \w+", r"\1: 250ms", config)
        config = re.sub(r"refresh_interval: \w+", "refresh_interval: 1s", config)
        config = config.replace("/var/lib/trainerd/discovery", str(self.discovery))
        self.assertIn(str(self.discovery), config)
        (self.root / "prometheus.yml").write_text(config)
        (self.root / "rules").mkdir()
        for page in RULES:
            (self.root / "rules" / page.name).write_text(re.sub(r"for: \w+", "for: 1s", page.read_text()))
        self.port = free_port()
        log = open(self.root / "prometheus.log", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen([*documented("deploy/prometheus/README.md", "prometheus --config.file", {"deploy/prometheus": self.root}), f"--storage.tsdb.path={self.root}/tsdb",
                                    f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.wait_until("Prometheus is ready", self.is_ready)

    def burn_energy(self):
        """Simulates the kernel's energy counter of a CPU that uses about 50 W."""
        self.powercap = self.root / "powercap"
        zone = self.powercap / "intel-rapl:0"
        zone.mkdir(parents=True)
        (zone / "name").write_text("package-0\n")
        (zone / "max_energy_range_uj").write_text("262143328850\n")

        def write(microjoules):
            (zone / "new").write_text(f"{microjoules}\n")
            (zone / "new").replace(zone / "energy_uj")

        def burn():
            microjoules = 0
            while not over.wait(0.02):
                write(microjoules := microjoules + 1_000_000)

        write(0)
        over = threading.Event()
        thread = threading.Thread(target=burn)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(over.set)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as response:
                return response.status == 200
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError):
            return False

    def wait_until(self, what, condition):
        end = time.monotonic() + WAIT_SECONDS
        while not (value := condition()):
            if time.monotonic() > end:
                self.fail(f"not in {WAIT_SECONDS} s: {what}\n{(self.root / 'prometheus.log').read_text()[-3000:]}")
            time.sleep(0.1)
        return value

    def api(self, path, **query):
        text = urllib.parse.urlencode(query)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{text}", timeout=10) as response:
                reply = json.load(response)
        except urllib.error.HTTPError as error:
            self.fail(f"{path} {query}: {error.read().decode()}")
        self.assertEqual(reply["status"], "success", reply)
        return reply["data"]

    def query(self, expression):
        """Result of an instant query: [(labels, value)]."""
        return [(sample["metric"], float(sample["value"][1])) for sample in self.api("query", query=expression)["result"]]

    def up(self, run):
        return [value for _, value in self.query(f'up{{job="trainerd", run="{run}"}}')]

    def rules(self):
        return [rule for group in self.api("rules")["groups"] for rule in group["rules"]]

    def alert(self, name, run):
        """State, labels and annotations of an alert of a run; None if it is inactive."""
        for alert in self.api("alerts")["alerts"]:
            if alert["labels"]["alertname"] == name and alert["labels"]["run"] == run:
                return alert
        return None

    def fires(self, name, run):
        self.wait_until(f"{name} of {run} fires", lambda: (self.alert(name, run) or {}).get("state") == "firing")
        alert = self.alert(name, run)
        for text in alert["annotations"].values():
            self.assertNotRegex(text, "error expanding|<no value>")
        self.assertIn(f"Run {run}", alert["annotations"]["summary"])
        return alert

    def targets(self):
        return sorted(self.discovery.glob("*")) if self.discovery.exists() else []

    def long_job(self, name):
        job = self.job(name, schedule=CONSTANT)
        job.write_text(job.read_text().replace("name: system", f"name: {name}").replace(
            'listen: "127.0.0.1:0"', f'listen: "127.0.0.1:0", discovery: {self.discovery}, powercap: {self.powercap}').replace("steps: 24", "steps: 10000000"))
        return job


__all__ = ["PrometheusTest", "FOLDER", "RULES", "MISSING", "WAIT_SECONDS", "metrics_named", "records_named", "documented_metrics",
           "recorded", "free_port", "re", "pathlib"]
