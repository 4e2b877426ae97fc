"""metrics.otlp: metrics of real runs, decoded by the published schema, and runs whose receiver is down."""

import collections
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
from prometheus_support import free_port
from support import *

# Has packages that Debian lacks, from deploy/install-deps.sh --tests.
PYTHON = pathlib.Path.home() / ".cache/trainerd/tests-python/bin/python"
WAIT_SECONDS = 120 if SANITIZED else 60


def attributes(items):
    return {item["key"]: item["value"]["stringValue"] for item in items}


class Post:
    def __init__(self, line):
        self.path, self.type, self.unknown, self.at = line["path"], line["type"], line["unknown"], line["at"]
        [resource] = line["request"]["resourceMetrics"]
        self.resource = attributes(resource["resource"]["attributes"])
        [scope] = resource["scopeMetrics"]
        self.scope = scope["scope"]
        self.metrics = {m["name"]: m for m in scope["metrics"]}
        if len(self.metrics) != len(scope["metrics"]):
            raise AssertionError("a metric is there twice")

    def points(self):
        """(name, labels) -> data point."""
        found = {}
        for name, metric in self.metrics.items():
            for kind in ("gauge", "sum", "histogram"):
                for point in metric.get(kind, {}).get("dataPoints", []):
                    key = name, frozenset(attributes(point["attributes"]).items())
                    if key in found:
                        raise AssertionError(f"{key} is there twice")
                    found[key] = point
        return found

    def value(self, name, **labels):
        values = [p["asDouble"] for (n, l), p in self.points().items() if n == name and labels.items() <= dict(l).items()]
        if len(values) != 1:
            raise AssertionError(f"{name} {labels}: {values}")
        return values[0]


@sliced(4)
class Otlp(RunTest):
    def setUp(self):
        super().setUp()
        self.assertTrue(PYTHON.exists(), "there is no decoder of OTLP here: deploy/install-deps.sh --tests installs it")

    def start_receiver(self, *port):
        folder = self.root / "receiver"
        folder.mkdir(exist_ok=True)
        (folder / "port").unlink(missing_ok=True)
        log = open(self.root / "receiver.log", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen([PYTHON, pathlib.Path(__file__).with_name("otlp_receiver.py"), folder, *map(str, port)], stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.wait_until("the receiver listens", (folder / "port").exists)
        return int((folder / "port").read_text())

    def wait_until(self, what, condition):
        end = time.monotonic() + WAIT_SECONDS
        while not (value := condition()):
            if time.monotonic() > end:
                self.fail(f"not in {WAIT_SECONDS} s: {what}\n{(self.root / 'receiver.log').read_text()[-2000:]}")
            time.sleep(0.05)
        return value

    def posts(self):
        path = self.root / "receiver" / "posts.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [Post(json.loads(line)) for line in lines if line.endswith("\n")]

    def job_with(self, port, name="a", steps=24, every="100ms", **kwargs):
        job = self.job(name, **kwargs)
        job.write_text(job.read_text().replace('{listen: "127.0.0.1:0"}', '{listen: "127.0.0.1:0", otlp: {endpoint: "http://127.0.0.1:'
                                               f'{port}", every: {every}}}}}').replace("steps: 24", f"steps: {steps}"))
        return job

    def test_the_last_post_of_a_run_has_all_that_it_did(self):
        job = self.job_with(self.start_receiver(), every="1h")
        output = self.run_job(job, "--set", "parallel.dp=2", "--set", "batch.micro=1")
        self.assertIn("/v1/metrics every 1h00m", output)
        [post] = self.posts()
        self.assertEqual((post.path, post.type, post.unknown), ("/v1/metrics", "application/x-protobuf", []))
        self.assertEqual(post.resource["service.name"], "trainerd")
        self.assertEqual(post.scope, {"name": "trainerd", "version": post.resource["service.version"]})
        self.assertIn("system-node0-", post.resource["service.instance.id"])
        self.assertTrue(post.resource["host.name"])
        last = self.steps()[-1]
        same = {"run": "system", "node": "0"}
        for name, key in {"trainerd_step": "step", "trainerd_loss": "loss", "trainerd_grad_norm": "grad_norm", "trainerd_run_tokens": "tokens",
                          "trainerd_learning_rate": "learning_rate"}.items():
            self.assertEqual(post.value(name, **same), last[key], name)
        self.assertEqual(post.value("trainerd_job_steps"), 24)
        for rank in "01":
            self.assertEqual(post.value("trainerd_rank_steps_total", rank=rank, **same), 24)
            self.assertGreater(post.value("trainerd_rank_time_seconds_total", rank=rank, part="compute"), 0)
        # Kinds, units and times.
        tokens = post.metrics["trainerd_tokens_total"]["sum"]
        self.assertEqual((tokens["aggregationTemporality"], tokens["isMonotonic"]), ("AGGREGATION_TEMPORALITY_CUMULATIVE", True))
        self.assertIn("gauge", post.metrics["trainerd_loss"])
        units = {n: m.get("unit") for n, m in post.metrics.items()}
        self.assertEqual((units["trainerd_step_seconds"], units["trainerd_time_seconds_total"], units["trainerd_checkpoint_bytes"],
                          units["trainerd_goodput_ratio"], units["trainerd_loss"]), ("s", "s", "By", "1", None))
        for metric in post.metrics.values():
            self.assertTrue(metric["description"])
        for point in post.points().values():
            self.assertLess(int(point["startTimeUnixNano"]), int(point["timeUnixNano"]))
            self.assertLess(abs(int(point["timeUnixNano"]) / 1e9 - post.at), 60)
        # A histogram's buckets are not cumulative, and the last one is unbounded.
        [point] = post.metrics["trainerd_step_seconds"]["histogram"]["dataPoints"]
        counts, bounds = [int(c) for c in point["bucketCounts"]], point["explicitBounds"]
        self.assertEqual((sum(counts), int(point["count"])), (24, 24))
        self.assertEqual(len(counts), len(bounds) + 1)
        self.assertEqual(bounds, sorted(bounds))
        seconds = [s["step_seconds"] for s in self.steps()]
        self.assertAlmostEqual(point["sum"], sum(seconds), places=9)
        self.assertEqual(counts[0], sum(s <= bounds[0] for s in seconds))

    def test_it_sends_what_a_scrape_shows(self):
        process = self.start(self.job_with(self.start_receiver(), steps=10_000_000))
        url = re.search(r"http://(\S+)/metrics", self.read_until(process, "metrics at ")).group(1)
        self.wait_for_step(process, 30)  # by now evaluated, saved and compared with the plan
        self.wait_until("a checkpoint is there", lambda: "trainerd_checkpoint_bytes " in scrape(url))
        text = scrape(url)
        end = time.time()
        post = self.wait_until("a post after the scrape", lambda: [p for p in self.posts() if p.at > end + 0.5])[0]
        scraped = collections.defaultdict(set)
        everywhere = {("run", "system"), ("node", "0")}  # trainerd_run_info has them as its own labels
        for name, labels in re.findall(r"^(trainerd_\w+?)(?:\{(.*)\})? ", text, re.M):
            histogram = re.fullmatch(r"(trainerd_(?:step|checkpoint)_seconds)_(bucket|sum|count)", name)
            labels = {k: v for k, v in re.findall(r'(\w+)="([^"]*)"', labels) if k != "le"}
            scraped[histogram.group(1) if histogram else name].add(frozenset(labels.items()) - everywhere)
        sent = collections.defaultdict(set)
        for name, labels in post.points():
            self.assertLessEqual(everywhere, labels)
            sent[name].add(labels - everywhere)
        self.assertEqual(sent, scraped)
        # Counters continue from post to post.
        steps = [p.value("trainerd_rank_steps_total", rank="0") for p in self.posts()[-5:]]
        self.assertEqual(steps, sorted(steps))
        starts = {q["startTimeUnixNano"] for p in self.posts()[-5:] for q in p.points().values()}
        self.assertEqual(len(starts), 1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143)

    def test_every_node_sends_its_own_ranks(self):
        job, port = self.job_with(self.start_receiver(), every="1h"), free_port()
        agents = [self.start(job, "--set", "parallel.dp=2", "--set", "batch.micro=1", "--nodes", "2", "--node", str(node), "--rendezvous",
                             f"127.0.0.1:{port}") for node in range(2)]
        for agent in agents:
            output, _ = agent.communicate(timeout=WAIT_SECONDS * 4)
            self.assertEqual(agent.returncode, 0, output)
        self.assertEqual(len({p.resource["service.instance.id"] for p in self.posts()}), 2)
        by_node = {dict(next(iter(p.points()))[1])["node"]: p for p in self.posts()}
        self.assertEqual(set(by_node), {"0", "1"})
        for node, post in by_node.items():
            ranks = {dict(labels)["rank"] for name, labels in post.points() if name == "trainerd_rank_steps_total"}
            self.assertEqual(ranks, {node})
        self.assertEqual(by_node["0"].value("trainerd_step"), 24)
        self.assertEqual(by_node["0"].value("trainerd_tokens_total"), self.steps()[-1]["tokens"])

    def test_a_receiver_that_is_down_is_one_warning_and_gets_what_waited_when_it_is_back(self):
        port = free_port()
        process = self.start(self.job_with(port, steps=10_000_000))
        self.wait_for_step(process, 20)
        warned = lambda text: [e for e in self.events() if e["event"] == "warning" and text in e["message"]]
        self.wait_until("it says so", lambda: warned("otlp cannot be written"))
        time.sleep(1.5)
        self.assertEqual(len(warned("otlp cannot be written")), 1)
        self.assertIn(f"http://127.0.0.1:{port}/v1/metrics: ", warned("otlp cannot be written")[0]["message"])
        self.start_receiver(port)
        first = self.wait_until("posts arrive", self.posts)[0]
        self.wait_until("it says so", lambda: warned("otlp is written again"))
        self.assertLess(int(next(iter(first.points().values()))["timeUnixNano"]) / 1e9, first.at - 1, "it waited")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143)

    def test_a_run_without_its_receiver_trains_as_ever_and_ends_at_once(self):
        self.run_job(self.job("plain"))
        begin = time.monotonic()
        self.run_job(self.job_with(free_port(), name="alone"))
        alone = time.monotonic() - begin
        self.assertEqual(self.losses("alone"), self.losses("plain"))
        self.assertLess(alone, WAIT_SECONDS)


if __name__ == "__main__":
    unittest.main()
