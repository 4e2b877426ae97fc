"""Outputs for trackers: starts.jsonl, TensorBoard event files, and runs on a real MLflow server, each read back by its own reader
or server."""

import http.server
import pathlib
import socket
import struct
import tempfile
import threading
import unittest
import urllib.parse
import urllib.request

from support import *

# Has packages that Debian lacks, from deploy/install-deps.sh --tests.
PYTHON = pathlib.Path.home() / ".cache/trainerd/tests-python/bin/python"
WAIT_SECONDS = 240 if SANITIZED else 90
NO_PROXY = {**os.environ, "NO_PROXY": "127.0.0.1"}

READ_EVENTS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
reader = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
reader.Reload()
json.dump({tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}, sys.stdout)
"""

MLFLOW_METRICS = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "validation_loss", "time/compute")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def as_float32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


class TrackingTest(RunTest):
    def setUp(self):
        super().setUp()
        self.assertTrue(PYTHON.exists(), "there is no TensorBoard and no MLflow here: deploy/install-deps.sh --tests installs them")

    def read(self, script, *args):
        done = subprocess.run([PYTHON, "-c", script, *args], capture_output=True, text=True, timeout=WAIT_SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def kill_after(self, job, step, *args, name="a"):
        process = self.start(job, *args)
        self.wait_for_step(process, step, name)
        process.kill()
        process.wait()

    def files_with(self, text, name="a"):
        return [p for p in (self.root / name).rglob("*") if p.is_file() and text.encode() in p.read_bytes()]


class Starts(RunTest):
    def starts(self):
        return [json.loads(line) for line in (self.root / "a" / "starts.jsonl").read_text().splitlines()]

    def git(self, *args):
        subprocess.run(["git", "-C", self.root, "-c", "user.name=t", "-c", "user.email=t@t", *args], check=True, capture_output=True)

    def test_each_start_is_recorded_with_git_data_and_no_secret(self):
        job = self.job()
        environment = {**os.environ, "SLURM_JOB_ID": "4711", "OMP_NUM_THREADS": "1", "SLURM_JWT": "hidden-1", "NCCL_AUTH_TOKEN": "hidden-2",
                       "AWS_SECRET_ACCESS_KEY": "hidden-3", "MLFLOW_TRACKING_PASSWORD": "hidden-4", "UNRELATED": "hidden-5",
                       "SLURM_FOO_PASS": "hidden-6", "SLURM_JOB_PWD": "hidden-7", "CUDA_pAssword": "hidden-8", "GIT_TRACE": "1"}
        self.run_job(job, "--set", "steps=5", env=environment)
        [first] = self.starts()
        self.assertIsNone(first["job_git"])
        self.git("init", "-q", "-b", "trunk")
        self.git("add", "a.yaml")
        self.git("commit", "-q", "-m", "a job")
        # Like inside a hook of another repository.
        self.run_job(job, "--set", "steps=10", env={**environment, "GIT_DIR": str(ROOT / ".git"), "GIT_WORK_TREE": str(ROOT)})
        job.write_text(job.read_text() + "# changed\n")
        self.run_job(job, "--set", "steps=15", env={**environment, "PATH": "/nowhere"})
        self.run_job(job, "--set", "steps=20", env=environment)
        starts = self.starts()
        commit = subprocess.run(["git", "-C", self.root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        self.assertEqual([s["step"] for s in starts], [0, 5, 10, 15])
        self.assertEqual(starts[1]["job_git"], {"commit": commit, "branch": "trunk", "dirty": False, "changed": []})
        self.assertEqual(starts[2]["job_git"], {"error": "git is not installed"})
        self.assertEqual(starts[3]["job_git"], {"commit": commit, "branch": "trunk", "dirty": True, "changed": [" M a.yaml"]})
        self.assertEqual(first["arguments"][1:], ["run", str(job), "--set", "steps=5"])
        self.assertEqual(first["job_file"], str(job))
        self.assertEqual(first["environment"]["SLURM_JOB_ID"], "4711")
        self.assertEqual(first["environment"]["OMP_NUM_THREADS"], "1")
        self.assertEqual(first["hosts"], [socket.gethostname()])
        self.assertEqual(first["version"] + " (" + first["commit"] + ")",
                         subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout.split(" ", 1)[1].strip())
        self.assertIn("60620 tokens, xxh3 ", first["data"]["files"])
        self.assertNotEqual(first["data"]["content"], "")
        self.assertEqual(first["data"], starts[3]["data"])
        hidden = [p for p in (self.root / "a").rglob("*") if p.is_file() and b"hidden-" in p.read_bytes()]
        self.assertEqual(hidden, [])

    def test_a_git_that_hangs_delays_the_start_by_two_seconds_at_most(self):
        job = self.job()
        self.git("init", "-q")
        (self.root / "bin").mkdir()
        git = self.root / "bin" / "git"
        git.write_text("#!/bin/sh\nexec sleep 100\n")
        git.chmod(0o755)
        begin = time.monotonic()
        self.run_job(job, "--set", "steps=5", env={**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"})
        self.assertLess(time.monotonic() - begin, 60 if SANITIZED else 15)
        self.assertEqual(self.starts()[0]["job_git"], {"error": "git did not answer in time"})


class Tensorboard(TrackingTest):
    def test_a_killed_and_resumed_run_has_each_step_once(self):
        job = self.job()
        tensorboard = ["--set", "metrics.tensorboard=true", "--set", "steps=60"]
        self.kill_after(job, 23, *tensorboard)
        [before] = (self.root / "a" / "tensorboard").iterdir()
        self.run_job(job, *tensorboard)
        files = sorted((self.root / "a" / "tensorboard").iterdir())
        self.assertEqual(len(files), 2)
        self.assertEqual(files[0], before)
        # The first attempt has steps that the second repeated.
        [resume] = [e for e in self.events() if e["event"] == "resume"]
        self.assertLess(resume["step"], 23)
        scalars = self.read(READ_EVENTS, str(self.root / "a" / "tensorboard"))
        steps = self.steps()
        self.assertEqual([s["step"] for s in steps], list(range(1, 61)))
        for tag, key in {"loss": "loss", "learning_rate": "learning_rate", "grad_norm": "grad_norm", "step_seconds": "step_seconds",
                         "tokens_per_second": "tokens_per_second", "tokens": "tokens", "mfu": "mfu"}.items():
            self.assertEqual(scalars[tag], [[s["step"], as_float32(s[key])] for s in steps], tag)
        for part in steps[0]["time"]:
            self.assertEqual(scalars["time/" + part], [[s["step"], as_float32(s["time"][part])] for s in steps], part)
        evaluations = [e for e in self.events() if e["event"] == "evaluation"]
        self.assertEqual(scalars["validation_loss"], [[e["step"], as_float32(e["loss"])] for e in evaluations])
        self.assertEqual(scalars["validation_bits_per_byte"], [[e["step"], as_float32(e["bits_per_byte"])] for e in evaluations])
        self.assertEqual(scalars["validation_perplexity"], [[e["step"], as_float32(e["perplexity"])] for e in evaluations])
        self.assertEqual(len(scalars), 10 + len(steps[0]["time"]))


class Proxy:
    """A proxy between trainerd and the server that can drop data."""

    def __init__(self, to):
        self.to, self.port, self.heads, self.listener = to, free_port(), b"", None

    def start(self):
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.connections = []
        threading.Thread(target=self.accept, args=[self.listener], daemon=True).start()

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has already ended
            connection.close()

    def accept(self, listener):
        while True:
            try:
                near = listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            self.connections += [near, far]
            threading.Thread(target=self.pump, args=[near, far, True], daemon=True).start()
            threading.Thread(target=self.pump, args=[far, near, False], daemon=True).start()

    def pump(self, source, sink, keep):
        try:
            while data := source.recv(65536):
                if keep:
                    self.heads += data
                sink.sendall(data)
        except OSError:
            pass
        for connection in (source, sink):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other direction was faster


class RefusingServer(http.server.BaseHTTPRequestHandler):
    """The part of MLflow's API that a run calls. Refuses requests with a value of step 7."""

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer(200, {"experiment": {"experiment_id": "1"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        metrics = [m for m in body.get("metrics", []) if m["key"] == "loss"]
        if any(m["step"] == 7 for m in metrics):
            return self.answer(400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "no sevens here"})
        self.server.steps.update(m["step"] for m in metrics)
        if self.path.endswith("runs/update"):
            self.server.statuses.append(body.get("status"))
        self.answer(200, {"run": {"info": {"run_id": "r"}}})

    def log_message(self, *args):
        pass


class Refusals(TrackingTest):
    def test_a_refused_value_is_reported_and_the_others_are_logged(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RefusingServer)
        server.steps, server.statuses = set(), []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        output = self.run_job(self.job(), "--set", f"metrics.mlflow.uri=http://127.0.0.1:{server.server_port}", env=NO_PROXY)
        steps = {s["step"] for s in self.steps()}
        self.assertIn(7, steps)
        self.assertEqual(server.steps, steps - {7})
        self.assertEqual(server.statuses[-1], "FINISHED")
        self.assertIn("does not have values of 1 steps or evaluations; it refused some: ", output)
        self.assertIn("no sevens here", output)
        self.assertNotIn("does not have the end of the run", output)


@sliced(6)
class Mlflow(TrackingTest):
    """One server for all tests, since its start takes seconds."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="trainerd-mlflow-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.port = free_port()
        cls.log = open(cls.folder / "log", "w")
        cls.addClassCleanup(cls.log.close)
        # Disables MLflow's background jobs and telemetry. `mlflow server` would import all of MLflow twice, in itself and in this program.
        environment = {**NO_PROXY, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true",
                       "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{cls.folder}/mlflow.db", "_MLFLOW_SERVER_ARTIFACT_ROOT": f"{cls.folder}/artifacts"}
        if not PYTHON.exists():
            return  # each test reports that
        cls.server = subprocess.Popen(
            [PYTHON, "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(cls.port), "mlflow.server.fastapi_app:app"],
            stdout=cls.log, stderr=cls.log, env=environment, start_new_session=True)
        cls.addClassCleanup(cls.end_server)

    @classmethod
    def end_server(cls):
        try:
            os.killpg(cls.server.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        cls.server.wait()

    def setUp(self):
        super().setUp()
        self.wait_until("MLflow answers", self.is_up)
        self.proxy = Proxy(self.port)
        self.proxy.start()
        self.addCleanup(self.proxy.stop)

    def is_up(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False

    def wait_until(self, what, condition):
        end = time.monotonic() + WAIT_SECONDS
        while not (value := condition()):
            if time.monotonic() > end:
                self.fail(f"not in {WAIT_SECONDS} s: {what}\n{(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.1)
        return value

    def options(self, experiment, *more):
        return ["--set", f"metrics.mlflow={{uri: 'http://127.0.0.1:{self.proxy.port}', experiment: {experiment}}}", *more]

    def ask(self, path, body=None, **query):
        """MLflow's answer to a request."""
        url = f"http://127.0.0.1:{self.port}/api/2.0/mlflow/{path}" + ("?" + urllib.parse.urlencode(query) if query else "")
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=WAIT_SECONDS) as response:
            return json.load(response)

    def runs(self, experiment):
        id = self.ask("experiments/get-by-name", experiment_name=experiment)["experiment"]["experiment_id"]
        runs = []
        for run in self.ask("runs/search", {"experiment_ids": [id]})["runs"]:
            info, data = run["info"], run["data"]
            histories = {key: self.ask("metrics/get-history", run_id=info["run_id"], metric_key=key).get("metrics", []) for key in MLFLOW_METRICS}
            runs.append({"id": info["run_id"], "name": info["run_name"], "status": info["status"],
                         **{kind: {entry["key"]: entry["value"] for entry in data.get(kind, [])} for kind in ("params", "tags")},
                         "metrics": {key: sorted((int(m["step"]), m["value"]) for m in history) for key, history in histories.items()}})
        return runs

    def check_curves(self, run, name="a"):
        steps = self.steps(name)
        for key in ("loss", "learning_rate", "grad_norm", "tokens_per_second"):
            self.assertEqual([step for step, _ in run["metrics"][key]], [s["step"] for s in steps], key)
        self.assertEqual([tuple(value) for value in run["metrics"]["loss"]], [(s["step"], s["loss"]) for s in steps])
        self.assertEqual([step for step, _ in run["metrics"]["time/compute"]], [s["step"] for s in steps])

    def test_a_killed_and_resumed_run_is_one_run_with_each_step_once(self):
        job = self.job()
        options = self.options("resumed", "--set", "steps=300", "--set", "batch.global=32")
        environment = {**NO_PROXY, "MLFLOW_TRACKING_TOKEN": "secret-token"}
        process = self.start(job, *options, env=environment)
        self.wait_until("values are sent", lambda: b"time/compute" in self.proxy.heads)
        self.wait_for_step(process, 23)
        process.kill()
        process.wait()
        [before] = self.runs("resumed")
        self.assertEqual(before["status"], "RUNNING")
        output = self.run_job(job, *options, "--set", "checkpoint.keep=4", env=environment)
        self.assertNotIn("does not have the end of the run", output)
        [run] = self.runs("resumed")
        self.assertEqual((run["id"], run["name"], run["status"]), (before["id"], "system", "FINISHED"))
        self.check_curves(run)
        self.assertEqual([step for step, _ in run["metrics"]["validation_loss"]], self.evaluations())
        self.assertEqual(run["params"]["optimizer.lr"], "0.001")
        self.assertEqual(run["params"]["model.hidden"], "64")
        self.assertEqual(run["params"]["checkpoint.keep"], "3")
        self.assertEqual(run["tags"]["changed.checkpoint.keep"], "4")
        self.assertEqual(run["tags"]["trainerd.output"], str(self.root / "a"))
        self.assertIn("60620 tokens, xxh3 ", run["tags"]["trainerd.data_fingerprint"])
        self.assertIn(b"Authorization: Bearer secret-token\r\n", self.proxy.heads)
        self.assertEqual(self.files_with("secret-token"), [])

    def test_a_run_that_was_killed_after_its_last_checkpoint_is_finished_by_the_next_start(self):
        job = self.job()
        self.run_job(job, *self.options("unfinished"))
        [run] = self.runs("unfinished")
        self.ask("runs/update", {"run_id": run["id"], "status": "RUNNING"})
        events = self.root / "a" / "events.jsonl"
        lines = events.read_text().splitlines(keepends=True)
        self.assertEqual(json.loads(lines[-1])["event"], "finish")
        events.write_text("".join(lines[:-1]))
        for _ in range(2):  # the second run adds nothing
            self.assertIn("all 24 steps are done already", self.run_job(job, *self.options("unfinished")))
            now = events.read_text().splitlines()
            self.assertEqual((len(now), json.loads(now[-1])["message"]), (len(lines), json.loads(lines[-1])["message"]))
        [run] = self.runs("unfinished")
        self.assertEqual(run["status"], "FINISHED")
        self.check_curves(run)

    def test_a_server_that_is_away_for_a_while_misses_nothing(self):
        job = self.job()
        process = self.start(job, *self.options("away", "--set", "steps=100000", "--set", "batch.global=64"), env=NO_PROXY)
        self.wait_until("values are sent", lambda: b"time/compute" in self.proxy.heads)
        self.proxy.stop()
        self.wait_until("the run says so", lambda: "mlflow cannot be written" in (self.root / "a" / "run.log").read_text())
        self.proxy.start()
        self.wait_until("the run says so", lambda: "mlflow is written again; nothing lost" in (self.root / "a" / "run.log").read_text())
        process.terminate()
        process.communicate(timeout=WAIT_SECONDS)
        self.assertEqual(process.returncode, 143)
        [run] = self.runs("away")
        self.assertEqual(run["status"], "KILLED")
        self.check_curves(run)
        self.assertEqual((self.root / "a" / "run.log").read_text().count("mlflow cannot be written"), 1)

    def test_a_failed_run_is_failed_there(self):
        job = self.job()
        self.run_job(job, *self.options("failed"), "--set", "optimizer.lr=1.0e+30", "--set", "optimizer.schedule={kind: constant}", status=6,
                     env=NO_PROXY)
        [run] = self.runs("failed")
        self.assertEqual(run["status"], "FAILED")

    def test_a_server_that_is_down_or_hangs_never_disturbs_the_run(self):
        job = self.job("plain")
        self.run_job(job)
        hanging = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(hanging.close)
        for name, port in {"down": free_port(), "hanging": hanging.getsockname()[1]}.items():
            with self.subTest(name):
                begin = time.monotonic()
                output = self.run_job(self.job(name), "--set", f"metrics.mlflow.uri=http://127.0.0.1:{port}", env=NO_PROXY)
                self.assertLess(time.monotonic() - begin, 90)
                self.assertEqual(self.losses(name), self.losses("plain"))
                self.assertEqual(output.count("does not have the end of the run"), 1, output)
                self.assertFalse((self.root / name / "mlflow.json").exists())

    # Named to run last: it ends the server.
    def test_z_a_server_that_is_killed_in_mid_run_leaves_the_run_alone(self):
        self.run_job(self.job("plain"), "--set", "steps=300")
        job = self.job()
        process = self.start(job, *self.options("killed", "--set", "steps=300"), env=NO_PROXY)
        self.wait_until("the run is made there", (self.root / "a" / "mlflow.json").exists)
        self.end_server()
        output, _ = process.communicate(timeout=WAIT_SECONDS)
        self.assertEqual(process.returncode, 0, output)
        self.assertEqual(self.losses(), self.losses("plain"))
        self.assertEqual(output.count("does not have the end of the run"), 1, output)


if __name__ == "__main__":
    unittest.main()
