"""A durable tier in moto's S3 server, which checks signatures and permissions as AWS does, behind a proxy that delays, truncates,
answers 500 and 503, and expires credentials. Training never waits for it, and a restore gives the saved state."""

import hashlib
import pathlib
import unittest
import urllib.request

from support import *

PYTHON = pathlib.Path.home() / ".cache/trainerd/tests-python/bin/python"
SCRIPT = pathlib.Path(__file__).resolve().parent / "moto_store.py"
PREFIX = "s3://safe/runs/a"
# 31 MB of state in one shard: four parts.
WIDE = "model={layers: 2, hidden: 320, heads: 4, kv_heads: 2, ffn: 880, vocab: 256, seq_len: 64}"


@sliced(6)
class Moto(RunTest):
    LIFETIME = 3  # lifetime of credentials in seconds

    def setUp(self):
        super().setUp()
        self.assertTrue(PYTHON.exists(), "run deploy/install-deps.sh --tests")
        log = open(self.root / "moto.log", "w")
        self.addCleanup(log.close)
        store = subprocess.Popen([PYTHON, SCRIPT, str(self.LIFETIME)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                 env={k: v for k, v in os.environ.items() if not k.startswith("AWS_")})
        self.addCleanup(store.wait)
        self.addCleanup(store.stdin.close)
        self.addCleanup(store.stdout.close)
        line = store.stdout.readline()
        self.assertTrue(line, (self.root / "moto.log").read_text())
        self.store = json.loads(line)
        self.url = self.store["url"]
        self.environment = {**{k: v for k, v in os.environ.items() if not k.startswith("AWS_")},
                            "AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
                            "AWS_SHARED_CREDENTIALS_FILE": "/none", "AWS_CONFIG_FILE": "/none",
                            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.url}/-/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN": self.store["token"]}

    def ask(self, what):
        with urllib.request.urlopen(f"{self.url}/-/{what}", timeout=PATIENCE) as answer:
            return json.loads(answer.read())

    def checkpoint(self, *args, environment=None):
        return subprocess.run([BINARY, "checkpoint", *args], env=environment or self.environment, capture_output=True, text=True, timeout=PATIENCE)

    def test_a_run_goes_on_from_a_real_store_that_fails_and_never_waits_for_it(self):
        settings = [f"--set={WIDE}", "--set=evaluate.every=0"]
        self.run_job(self.job("whole"), *settings)
        output = self.run_job(self.job(), *settings, "--stop-after", "12", f"--set=checkpoint.durable.to={PREFIX}", "--set=checkpoint.durable.keep=2",
                              env=self.environment)
        self.assertNotIn(self.store["secret"], output)
        # Training stopped only for its snapshots.
        self.assertEqual(self.losses(), self.losses("whole")[: self.last_step()])
        counts = self.ask("counts")
        for fault in ("503", "500", "cut", "delay", "drop", "expired", "issued"):
            self.assertGreater(counts.get(fault, 0), 0, counts)
        # Another client finds the files of the disk, uploaded in parts.
        stored = self.ask("keys")
        [newest] = [k for k in stored if k.endswith("/COMPLETE")][-1:]
        folder = newest.split("/")[-2]
        local = self.root / "a" / "checkpoints" / folder
        self.assertTrue(local.is_dir(), stored)
        shards = 0
        for file in local.iterdir():
            if file.name.endswith(".safetensors"):
                there = stored[f"runs/a/{folder}/{file.name}"]
                self.assertEqual(there["sha256"], hashlib.sha256(file.read_bytes()).hexdigest())
                self.assertGreaterEqual(there["parts"], 3, there)
                shards += 1
        self.assertGreater(shards, 0)
        self.assertEqual(self.ask("uploads"), [])
        self.assertIn("checksums OK", self.checkpoint("verify", PREFIX).stdout)
        # A client without permission gets an error.
        wrong = {k: v for k, v in self.environment.items() if "CONTAINER" not in k} | {"AWS_ACCESS_KEY_ID": self.store["key"], "AWS_SECRET_ACCESS_KEY": "wrong"}
        refused = self.checkpoint("list", PREFIX, environment=wrong)
        self.assertEqual(refused.returncode, 5, refused.stdout + refused.stderr)
        self.assertIn("the credentials do not allow it", refused.stderr)
        # The disk is lost.
        last = self.last_step()
        shutil.rmtree(self.root / "a")
        output = self.run_job(self.job(), *settings, f"--set=checkpoint.durable.to={PREFIX}", "--set=checkpoint.durable.keep=2", env=self.environment)
        self.assertIn(f"resuming from {PREFIX}/{folder}", output)
        self.assertEqual(self.losses(), self.losses("whole")[last:])
        self.assertIn("runs/a/step-00000024/COMPLETE", self.ask("keys"))


if __name__ == "__main__":
    unittest.main()
