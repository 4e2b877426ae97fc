"""deploy/prometheus/ checked by promtool and by a real Prometheus that finds, scrapes and loses real runs."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
from prometheus_support import *
from support import *

ALERTS = (FOLDER / "rules" / "alerts.yml").read_text()
# Metrics that a CPU run does not have.
OF_GPUS = "trainerd_device_"
# Metrics of differing ranks and lost nodes, which a healthy run on one node does not have.
OF_FAILURES = ("trainerd_corruptions_", "trainerd_nodes_lost_", "trainerd_straggler")


def same_words(text):
    return " ".join(text.split())


def alert_texts():
    """Name of each alert -> its lines."""
    parts = re.split(r"^ +- alert: (\w+)\n", ALERTS, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


class Promtool(unittest.TestCase):
    def setUp(self):
        self.assertEqual(MISSING, [], "there is no Prometheus here: deploy/install-deps.sh --tests installs it")

    def promtool(self, *args):
        done = subprocess.run(["promtool", *args], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_the_configuration_and_the_rules_are_valid(self):
        self.assertIn("SUCCESS: 2 rule files found", self.promtool("check", "config", FOLDER / "prometheus.yml"))
        self.promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)

    def test_each_alert_fires_where_it_should_and_nowhere_else(self):
        pages = sorted((FOLDER / "tests").glob("*.yml"))
        self.promtool("test", "rules", *pages)
        cases = "".join(p.read_text() for p in pages)
        fires, is_silent = set(), set()
        for name, rest in re.findall(r'alertname="(\w+)", alertstate="firing"}\'\n +eval_time: \w+\n( +exp_samples:)?', cases):
            (fires if rest else is_silent).add(name)
        self.assertEqual(fires, set(alert_texts()), "alerts that no case makes fire")
        self.assertEqual(is_silent, set(alert_texts()), "alerts that no case leaves silent")


class Texts(unittest.TestCase):
    def test_the_rules_use_metrics_and_records_that_exist(self):
        self.assertGreater(len(documented_metrics()), 40)
        for page in [*RULES, FOLDER / "README.md"]:
            text = page.read_text()
            self.assertEqual(metrics_named(text) - documented_metrics(), set(), page)
            self.assertEqual(records_named(text) - recorded(), set(), page)

    def test_rule_files_are_in_block_style(self):
        for page in [*FOLDER.rglob("*.yml")]:
            for line in page.read_text().splitlines():
                self.assertNotRegex(line, r"^ *(- )?([\w-]+: )?(\[|\{(?!\{))", page)

    def test_each_alert_says_what_to_look_at_and_the_page_says_the_same(self):
        page = (FOLDER / "README.md").read_text()
        sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", page, re.M | re.S))
        self.assertGreaterEqual(len(alert_texts()), 9)
        self.assertEqual(list(sections), list(alert_texts()))
        for name, text in alert_texts().items():
            with self.subTest(name):
                for key in ("severity: ", "summary: ", "description: ", "runbook: "):
                    self.assertIn(key, text)
                runbook = same_words(text[text.index("runbook: |") + len("runbook: |"):])
                self.assertTrue(runbook.startswith("1. "), runbook)
                self.assertIn(runbook, same_words(sections[name]))
                self.assertIn(f"[{name}](#{name.lower()})", page)


@sliced(6)
class RealPrometheus(PrometheusTest):
    def every_query_answers(self, run):
        rules = self.wait_until("every rule was evaluated", lambda: [r for r in self.rules() if all(r["health"] == "ok" for r in self.rules())])
        records = [r["name"] for r in rules if r["type"] == "recording"]
        alerts = [r for r in rules if r["type"] == "alerting"]
        self.assertEqual(set(records), recorded())
        self.assertEqual([r["name"] for r in alerts], list(alert_texts()))
        used = re.findall(r"\btrainerd_[a-z_]+", " ".join(r["query"] for r in rules))
        for name in sorted({*records, *(n for n in used if not n.startswith((OF_GPUS, *OF_FAILURES)))}):
            labels = self.wait_until(f"{name} has samples", lambda: self.query(f'{name}{{run="{run}"}}'))[0][0]
            self.assertEqual(labels["job"], "trainerd", name)
            # Energy is summed over a run's nodes.
            self.assertEqual(labels.get("node"), None if name.startswith("trainerd:energy") else "0", name)
        [(_, watts)] = self.query(f'trainerd:energy_joules:rate5m{{run="{run}"}}')
        self.assertGreater(watts, 0)
        for rule in rules:
            self.assertEqual((rule["health"], rule.get("lastError", "")), ("ok", ""), rule["name"])
            self.query(rule["query"])

    def test_a_run_is_found_scraped_and_missed(self):
        process = self.start(self.long_job("first"), "--set", "parallel.dp=2", "--set", "batch.micro=1", "--set",
                             f"checkpoint.durable.to={self.root}/safe")
        self.wait_until("the run is found and answers", lambda: self.up("first") == [1])
        lower_priority(process.pid, *self.children(process.pid))
        [target] = self.targets()
        [group] = json.loads(target.read_text())
        self.assertEqual((group["labels"]["run"], group["labels"]["node"]), ("first", "0"))
        self.every_query_answers("first")
        self.assertIsNone(self.alert("TrainerdRunDown", "first"))
        # A worker is killed: the run continues, and an alert fires.
        os.kill(self.children(process.pid)[-1], signal.SIGKILL)
        self.assertEqual(self.fires("TrainerdWorkersRestarted", "first")["labels"]["severity"], "warning")
        self.assertEqual(self.up("first"), [1])

        process.kill()
        process.wait()
        self.assertEqual(self.targets(), [target], "a killed run leaves its target")
        # Another run on the same port reports only itself.
        second = self.start(self.long_job("second"), "--set", f"metrics.listen={group['targets'][0]}")
        self.wait_until("the second run answers", lambda: self.up("second") == [1])
        lower_priority(second.pid, *self.children(second.pid))
        self.assertEqual({json.loads(t.read_text())[0]["targets"][0] for t in self.targets()}, {group["targets"][0]})
        alert = self.fires("TrainerdRunDown", "first")
        self.assertEqual(alert["labels"]["severity"], "critical")
        self.assertIn("trainerd run", alert["annotations"]["runbook"])
        self.assertEqual(self.up("first"), [0])
        second.send_signal(signal.SIGTERM)
        second.communicate(timeout=60)
        self.assertEqual(second.returncode, 143)
        self.assertEqual(self.targets(), [target], "a run that was stopped has no target any more")

        # The run continues: its new process removes the old one's target.
        process = self.start(self.long_job("first"), "--set", "parallel.dp=2", "--set", "batch.micro=1")
        self.wait_until("the run answers again", lambda: self.up("first") == [1])
        self.assertEqual(len(self.targets()), 1)
        self.assertNotEqual(self.targets(), [target])
        self.wait_until("the alert is over", lambda: self.alert("TrainerdRunDown", "first") is None)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(self.targets(), [])
        self.assertEqual(list((self.root / "first").glob(".discovery*")), [])
        self.wait_until("nothing is scraped", lambda: self.api("targets")["activeTargets"] == [])

    def test_a_diverging_run_raises_its_alert(self):
        output = self.run_job(self.long_job("diverged"), "--set", "optimizer.lr=1.0e+30", status=6)
        self.assertIn("is not finite", output)
        alert = self.fires("TrainerdLossNotFinite", "diverged")
        self.assertEqual(alert["labels"]["ended"], "diverged")
        self.assertIsNone(self.alert("TrainerdRunDown", "diverged"))


if __name__ == "__main__":
    unittest.main()
