"""The dashboards of deploy/grafana/: their form, and every query against a real Prometheus with real runs. Grafana is not in
Debian, so drawing is not tested."""

import http.server
import math
import pathlib
import sys
import tempfile
import threading
import unittest

try:
    import yaml
except ModuleNotFoundError:
    raise SystemExit("python3-yaml is missing: deploy/install-deps.sh --tests installs it")

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in ("", "system")]
from documents import documented_line
from prometheus_support import *
from slices import sliced
from support import *

GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = {page.stem: json.loads(page.read_text()) for page in sorted((GRAFANA / "dashboards").glob("*.json"))}
# Built-in panels of Grafana 10 and 11 that are not deprecated.
PANELS = {"barchart", "bargauge", "heatmap", "piechart", "row", "stat", "state-timeline", "status-history", "table", "timeseries"}
# Grafana's built-in variables.
BUILT_IN = {"__rate_interval": "5s"}
WIDTH = 24


def panels_of(dashboard):
    return [p for p in dashboard["panels"] if p["type"] != "row"]


def expressions(dashboard):
    """(title, expression) of the queries of all panels and annotations."""
    for panel in panels_of(dashboard):
        for target in panel["targets"]:
            yield f"{dashboard['title']}: {panel['title']}", target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        if "expr" in annotation:
            yield f"{dashboard['title']}: {annotation['name']}", annotation["expr"]


class Form(unittest.TestCase):
    def test_there_is_a_file_for_each_dashboard_and_each_names_itself(self):
        self.assertEqual(set(DASHBOARDS), {"run", "fleet", "time", "state"})
        for name, dashboard in DASHBOARDS.items():
            self.assertEqual((dashboard["uid"], dashboard["schemaVersion"], dashboard["tags"]), (f"trainerd-{name}", 39, ["trainerd"]))
            self.assertNotIn("id", dashboard, "Grafana gives it")
            self.assertGreaterEqual(len(panels_of(dashboard)), 8)
        self.assertEqual(len({d["title"] for d in DASHBOARDS.values()}), len(DASHBOARDS))

    def test_the_provisioning_reads_the_dashboards_where_the_page_puts_them(self):
        page = "deploy/grafana/README.md"
        with tempfile.TemporaryDirectory(prefix="trainerd-grafana-") as folder:
            etc = pathlib.Path(folder) / "etc"
            for kind in ("datasources", "dashboards"):
                (etc / "grafana" / "provisioning" / kind).mkdir(parents=True)
            for beginning in ("mkdir -p /etc/trainerd/grafana", "cp deploy/grafana/provisioning/datasources", "cp deploy/grafana/provisioning/dashboards"):
                subprocess.run(["bash", "-ec", documented_line(page, beginning, {"/etc/": f"{etc}/"})], check=True, cwd=ROOT)
            [provider] = yaml.safe_load((etc / "grafana/provisioning/dashboards/trainerd.yml").read_text())["providers"]
            read = pathlib.Path(provider["options"]["path"].replace("/etc/", f"{etc}/", 1))
            self.assertEqual({p.stem for p in read.glob("*.json")}, set(DASHBOARDS))
            self.assertTrue((etc / "grafana/provisioning/datasources/prometheus.yml").is_file())

    def test_panels_have_numbers_of_their_own_and_do_not_overlap(self):
        for name, dashboard in DASHBOARDS.items():
            ids = [p["id"] for p in dashboard["panels"]]
            self.assertEqual(len(ids), len(set(ids)), name)
            taken = {}
            for panel in dashboard["panels"]:
                grid = panel["gridPos"]
                self.assertLessEqual(grid["x"] + grid["w"], WIDTH, panel["title"])
                for x in range(grid["x"], grid["x"] + grid["w"]):
                    for y in range(grid["y"], grid["y"] + grid["h"]):
                        self.assertEqual(taken.setdefault((x, y), panel["title"]), panel["title"], f"{name}: two panels at {x}, {y}")

    def test_each_panel_says_what_it_shows_and_in_which_unit(self):
        for name, dashboard in DASHBOARDS.items():
            for panel in panels_of(dashboard):
                with self.subTest(f"{name}: {panel['title']}"):
                    self.assertIn(panel["type"], PANELS)
                    self.assertTrue(panel["title"] and panel["description"].endswith((".", ").")))
                    self.assertEqual(panel["datasource"], {"type": "prometheus", "uid": "${datasource}"})
                    if panel["type"] not in ("table", "heatmap"):
                        self.assertIn("unit", panel["fieldConfig"]["defaults"])
                    references = [t["refId"] for t in panel["targets"]]
                    self.assertEqual(len(references), len(set(references)))
                    for target in panel["targets"]:
                        self.assertEqual(target["datasource"], panel["datasource"])
                        self.assertEqual(target.get("instant", False) + target.get("range", False), 1)
                        self.assertTrue(target.get("format") == "table" or target.get("legendFormat") or panel["type"] == "stat")

    def test_queries_use_metrics_that_are_documented_and_variables_that_are_defined(self):
        for name, dashboard in DASHBOARDS.items():
            variables = {v["name"] for v in dashboard["templating"]["list"]}
            self.assertEqual(variables, {"datasource", "run", "node"})
            for where, expression in expressions(dashboard):
                with self.subTest(where):
                    self.assertEqual(metrics_named(expression) - documented_metrics(), set())
                    self.assertEqual(records_named(expression) - recorded(), set())
                    used = set(re.findall(r"\$\{?([A-Za-z_]\w*)", expression)) - {"1"}
                    self.assertEqual(used - variables - set(BUILT_IN), set())
                    self.assertIn('run=~"$run"', expression)

    def test_the_dashboards_show_what_the_alerts_are_about(self):
        shown = set().union(*({*metrics_named(e), *records_named(e)} for d in DASHBOARDS.values() for _, e in expressions(d)))
        rules = (FOLDER / "rules" / "alerts.yml").read_text()
        alerts = set().union(*(metrics_named(e) | records_named(e) for e in re.findall(r"expr: \|\n(.*?)\n +(?:for|labels):", rules, re.S)))
        # Shown over a longer or shorter time.
        otherwise = {"trainerd:steps:increase10m", "trainerd:mfu_ratio:mean6h", "trainerd:loss:mean5m", "trainerd:loss:mean1h"}
        self.assertEqual(alerts - shown - otherwise, set())

    def test_provisioning_names_the_data_source_and_the_directory(self):
        [source] = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
        self.assertEqual((source["type"], source["access"], source["isDefault"]), ("prometheus", "proxy", True))
        interval = re.search(r"scrape_interval: (\w+)", (FOLDER / "prometheus.yml").read_text()).group(1)
        self.assertEqual(source["jsonData"]["timeInterval"], interval)
        [provider] = yaml.safe_load((GRAFANA / "provisioning/dashboards/trainerd.yml").read_text())["providers"]
        self.assertEqual((provider["type"], pathlib.Path(provider["options"]["path"]).name), ("file", "dashboards"))


# A simulated node whose ranks have GPUs: metrics that runs on this machine do not have, with the names of io/metrics.
GPU_NODE = "".join(f'{name}{{rank="{rank}",pci_bus_id="0000:6{rank}:00.0",UUID="GPU-{rank}",modelName="NVIDIA H200"}} {value}\n'
                   for rank in (2, 3) for name, value in {
                       "trainerd_device_memory_used_bytes": 120e9, "trainerd_device_memory_total_bytes": 150e9,
                       "trainerd_device_power_watts": 600.5, "trainerd_device_energy_joules_total": 9e6,
                       "trainerd_device_sm_clock_hertz": 1.98e9, "trainerd_device_temperature_celsius": 61,
                       "trainerd_device_ecc_errors": 0}.items()) + "".join(
    f'trainerd_device_throttled{{rank="2",reason="{reason}"}} 0\n' for reason in ("thermal", "power", "power_cap"))


@sliced(3)
class Queries(PrometheusTest):
    def serve_gpus(self, run):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(GPU_NODE.encode())

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever).start()
        self.discovery.mkdir(exist_ok=True)
        (self.discovery / "gpus.json").write_text(json.dumps(
            [{"targets": [f"127.0.0.1:{server.server_address[1]}"], "labels": {"run": run, "node": "1"}}]))

    def rates(self):
        """A file for `run --rates` with invented rates: `trainerd calibrate` takes too long for a test."""
        curve, shape = "[1, 1.0e-6, 1.0e+6, 1.0e-4]", "[1.0e-6, 0, 0, 0, 0, 0]"
        operators = re.findall(r"^TRAINERD_OPERATOR\((\w+)", (ROOT / "kernels/ops/operators.def").read_text(), re.M)
        times = {name: shape if name.startswith(("linear", "attention")) else curve for name in [*operators, "other"]}
        collectives = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier", "message")
        path = self.root / "machine.yaml"
        path.write_text("kind: cpu\ndevice: any processor\ndevices_per_node: 2\nnode_memory_gib: 8\n"
                        "peak_tflops: {fp32: 0.05, bf16: 0.05}\nmeasured:\n  operator_seconds: 1.0e-6\n  alone:\n" +
                        "".join(f"    {name}: {{fp32: {points}, bf16: {points}}}\n" for name, points in times.items()) +
                        f"  collectives: {{{', '.join(f'{name}: {curve}' for name in collectives)}}}\n")
        return path

    @staticmethod
    def filled_in(expression, variables):
        """Replaces variables as Grafana does before a query; `$1` is no variable and stays."""
        for name, value in {**BUILT_IN, **variables}.items():
            expression = re.sub(rf"\$\{{?{name}\b\}}?", value, expression)
        return expression

    def answer(self, target, variables):
        """Labels of the series that have a number."""
        expression = self.filled_in(target["expr"], variables)
        if target.get("instant"):
            result = [(s["metric"], [s["value"]]) for s in self.api("query", query=expression)["result"]]
        else:
            now = time.time()
            result = [(s["metric"], s["values"]) for s in self.api("query_range", query=expression, start=now - 60, end=now, step=1)["result"]]
        return [labels for labels, values in result if any(not math.isnan(float(value)) for _, value in values)]

    def values_of(self, query, variables):
        """The values that Grafana offers for a variable."""
        metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()
        return self.api(f"label/{label}/values", **{"match[]": self.filled_in(metric, variables)})

    def test_every_query_of_a_panel_answers_for_a_run_that_was_killed_and_resumed(self):
        options = ("--set", "parallel.dp=2", "--set", "batch.micro=1", "--set", f"checkpoint.durable.to={self.root}/safe",
                   "--set", "model.experts={count: 4, per_token: 2}", "--set", "loss.expert_balance=0.01", "--rates", self.rates())
        self.serve_gpus("first")
        process = self.start(self.long_job("first"), *options)
        self.wait_until("the run is found and answers", lambda: self.up("first") == [1, 1])
        self.wait_until("the run has saved", lambda: self.saves("first"))
        os.kill(self.children(process.pid)[-1], signal.SIGKILL)
        self.wait_until("the workers started again", lambda: [v for _, v in self.query('trainerd_attempt{run="first"}')] == [2])
        process.kill()
        process.wait()
        process = self.start(self.long_job("first"), *options)
        self.wait_until("the run goes on", lambda: [v for _, v in self.query('trainerd_attempt{run="first"}')] == [3])

        for name, dashboard in DASHBOARDS.items():
            variables = {}
            for variable in dashboard["templating"]["list"]:
                if variable["type"] == "datasource":
                    continue
                offered = self.values_of(variable["query"]["query"], variables)
                self.assertEqual(offered, {"run": ["first"], "node": ["0", "1"]}[variable["name"]], name)
                variables[variable["name"]] = variable.get("allValue", offered[0])
            for annotation in dashboard["annotations"]["list"]:
                if "expr" in annotation:
                    self.query(self.filled_in(annotation["expr"], variables))
            for panel in panels_of(dashboard):
                for target in panel["targets"]:
                    what = f"{name}: {panel['title']}: {target['expr']} answers"
                    series = self.wait_until(what, lambda: self.answer(target, variables))
                    for label in re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")):
                        for labels in series:
                            self.assertIn(label, labels, what)
        # Panels of single values must have one series per run.
        for panel in panels_of(DASHBOARDS["run"]):
            if panel["type"] == "stat":
                self.assertEqual(len(self.answer(panel["targets"][0], {"run": "first", "node": ".*"})), 1, panel["title"])
        # Two ranks of node 0 in the map of ranks, near their median.
        [heat] = [p for p in panels_of(DASHBOARDS["fleet"]) if p["type"] == "status-history" and "median" in p["title"]]
        self.wait_until("both ranks are in the map",
                        lambda: {labels["rank"] for labels in self.answer(heat["targets"][0], {"run": ".*", "node": ".*"})} == {"0", "1"})
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


if __name__ == "__main__":
    unittest.main()
