"""Runs the example of configs/examples/finetune as a new user does."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from documents import documented
from support import *


@sliced(6)
class FineTune(RunTest):
    def test_the_example_leaves_a_model_that_knows_the_cow(self):
        script, = documented("configs/examples/finetune/README.md", "configs/examples/finetune/run.sh")
        environment = {**os.environ, "PATH": f"{pathlib.Path(BINARY).resolve().parent}:{os.environ['PATH']}"}
        environment.pop("PYTHON", None)
        out = self.root / "runs" / "finetune-example"
        for again in (False, True):
            done = subprocess.run([ROOT / script], cwd=self.root, env=environment, capture_output=True, text=True, timeout=600 if SANITIZED else 240)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.splitlines()[-1], "The cow says moo.", done.stdout)
            self.assertEqual("tokens: complete already" in done.stdout, again, done.stdout)
        # The base was trained from scratch, and has the tokenizer of its data.
        config = json.loads((out / "base" / "config.json").read_text())
        self.assertEqual((out / "base" / "tokenizer.json").read_bytes(), (ROOT / "configs/examples/finetune/tokenizer/tokenizer.json").read_bytes())
        self.assertIsInstance(config["eos_token_id"], int)
        self.assertEqual(json.loads((out / "tokens" / "dataset.json").read_text())["loss_mask"], True)
        names = {p.name for p in (out / "adapter").iterdir()}
        self.assertLessEqual({"adapter_config.json", "adapter_model.safetensors"}, names)
        names = {p.name for p in (out / "model").iterdir()}
        self.assertLessEqual({"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}, names)
        steps = [json.loads(line) for line in (out / "run" / "steps.jsonl").read_text().splitlines()]
        self.assertLess(steps[-1]["loss"], 0.1)
        # The run's checkpoints contain only adapters.
        shards = list((out / "run" / "checkpoints").glob("step-*/*.safetensors"))
        self.assertTrue(shards)
        for shard in shards:
            content = shard.read_bytes()
            header = json.loads(content[8:8 + int.from_bytes(content[:8], "little")])
            header.pop("__metadata__", None)
            self.assertEqual([name for name in header if "lora_" not in name], [])
        # Training continues from there with preferences.
        script, = documented("configs/examples/finetune/README.md", "configs/examples/finetune/preferences.sh")
        done = subprocess.run([ROOT / script], cwd=self.root, env=environment, capture_output=True, text=True, timeout=600 if SANITIZED else 240)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("The cow says moo.", done.stdout)
        steps = [json.loads(line) for line in (out / "preferences" / "steps.jsonl").read_text().splitlines()]
        self.assertGreater(steps[-1]["rewards"]["margin"], 1)
        self.assertEqual(steps[-1]["rewards"]["accuracy"], 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
