"""Loss masks and document masks: means over counted tokens, also in evaluations, and errors for wrong masks."""

import array
import json
import random
import unittest

from support import *

SEQ = 16
SAMPLES = 60
JOB = """\
name: masks
seed: 5
output: {output}
device: cpu
threads: 1
model: {{layers: 1, hidden: 32, heads: 2, ffn: 64, vocab: 256, seq_len: 16}}
batch: {{global: 6, micro: 1}}
optimizer: {{lr: 1.0e-3, schedule: {{kind: constant}}}}
steps: 6
data: {data}
evaluate: {{every: 3, batches: 2}}
checkpoint: {{every: 2}}
metrics: {{listen: "off"}}
"""


class Masks(RunTest):
    def setUp(self):
        super().setUp()
        rng = random.Random(1)
        self.data = self.root / "data"
        self.data.mkdir()
        ids = [rng.randrange(200) for _ in range(SEQ * SAMPLES + 1)]
        (self.data / "x.bin").write_bytes(array.array("H", ids).tobytes())
        self.write_mask([rng.random() < 0.3 for _ in ids])

    def write_mask(self, counts):
        (self.data / "x.mask").write_bytes(bytes(counts))

    def declare(self, counts=True):
        (self.data / "dataset.json").write_text(json.dumps({"tokenizer": {"hash": "h", "vocab": 200}, "loss_mask": counts}))

    def job(self, name, data="{format: tokens, dtype: uint16, train: data/x.bin, valid: data/x.bin}"):
        path = self.root / f"{name}.yaml"
        path.write_text(JOB.format(output=self.root / name, data=data))
        return path

    def loss_values(self, name):
        return [step["loss"] for step in self.steps(name)]

    def evaluated(self, name):
        return [e["loss"] for e in self.events(name) if e["event"] == "evaluation"]

    def test_a_declared_mask_is_that_of_data_mask_on_every_layout(self):
        self.assertIn("no dataset.json says whether it counts", self.run_job(self.job("plain"), status=4))
        self.declare(False)
        self.run_job(self.job("plain"))
        (self.data / "dataset.json").unlink()
        named = ("--set", "data.mask=data/x.mask", "--set", "data.valid_mask=data/x.mask")
        self.run_job(self.job("named"), *named)
        self.assertNotEqual(self.loss_values("named"), self.loss_values("plain"))
        counted = [json.loads(line).get("counted_tokens") for line in (self.root / "named/samples.jsonl").read_text().splitlines()]
        self.assertTrue(all(0 < c < 6 * SEQ for c in counted), counted)
        self.assertNotIn("counted_tokens", (self.root / "plain/samples.jsonl").read_text())
        self.assertNotEqual(self.evaluated("named"), self.evaluated("plain"))
        self.declare()
        self.run_job(self.job("declared"))
        self.assertEqual(self.loss_values("declared"), self.loss_values("named"))
        self.assertEqual(self.evaluated("declared"), self.evaluated("named"))
        self.run_job(self.job("dp"), "--set", "parallel.dp=3", "--set", "steps=2")
        self.run_job(self.job("dp"), "--set", "parallel.dp=2")
        for got, expected in ((self.loss_values("dp"), self.loss_values("named")), (self.evaluated("dp")[-2:], self.evaluated("named"))):
            self.assertEqual(len(got), len(expected))
            for a, b in zip(got, expected):
                self.assertAlmostEqual(a, b, delta=2e-5 * b)

    def test_another_mask_after_a_resume_is_refused(self):
        self.declare()
        self.run_job(self.job("a"), "--set", "steps=4")
        mask = bytearray((self.data / "x.mask").read_bytes())
        mask[7] ^= 1
        (self.data / "x.mask").write_bytes(mask)
        self.assertIn("the checkpoint has content", self.run_job(self.job("a"), status=5))
        mask[7] = 9
        (self.data / "x.mask").write_bytes(mask)
        self.assertIn("x.mask: byte 9 at position 7 is neither", self.run_job(self.job("b"), status=4))
        (self.data / "x.mask").write_bytes(mask[:-1])
        self.assertIn("x.mask: a loss mask has a byte for each token", self.run_job(self.job("b"), status=4))

    def test_documents_of_a_text_on_every_layout(self):
        """Lines are documents: attention and positions restart with each."""
        rng = random.Random(2)
        lines = ["".join(rng.choice("abcdefgh ") for _ in range(rng.randrange(2, 25))) for _ in range(120)]
        (self.data / "lines.txt").write_text("\n".join(lines))
        text = "format: text, train: data/lines.txt, valid: data/lines.txt"
        masked = f"{{{text}, document_mask: true}}"
        ends = f"{{{text}, document_mask: true, end_token: 10}}"
        self.assertIn("a text does not say where its documents begin", self.run_job(self.job("a", masked), status=2))
        output = self.run_job(self.job("few", ends), "--set", "data.max_documents=1", status=4)
        self.assertRegex(output, r"lines.txt: the sample from position \d+ on has \d+ documents, and data.max_documents allows 1")
        self.run_job(self.job("one", ends))
        resolved = (self.root / "one/job.yaml").read_text()
        self.assertRegex(resolved, r"max_documents: 16")
        self.assertRegex(resolved, r"reset_positions: true")
        self.run_job(self.job("whole", f"{{{text}, reset_positions: true, end_token: 10}}"))
        self.assertNotEqual(self.loss_values("one"), self.loss_values("whole"))
        self.run_job(self.job("ranks", ends), "--set", "steps=3", "--set", "parallel={tp: 2, dp: 2, zero: 3}")
        self.run_job(self.job("ranks", ends), "--set", "parallel={dp: 3}")
        for a, b in zip(self.loss_values("ranks"), self.loss_values("one")):
            self.assertAlmostEqual(a, b, delta=2e-5 * b)
        for a, b in zip(self.evaluated("ranks")[-2:], self.evaluated("one")):
            self.assertAlmostEqual(a, b, delta=2e-5 * b)

    def test_a_batch_of_which_nothing_counts_ends_the_run(self):
        self.declare()
        self.write_mask([False] * (SEQ * SAMPLES + 1))
        output = self.run_job(self.job("a"), status=4)
        self.assertIn("step 1: no token of its global batch (6 samples from number 0) counts in the loss", output)
        output = self.run_job(self.job("b"), "--set", "data.mask=data/ones.mask", status=4)
        self.assertIn("ones.mask", output)
        (self.data / "ones.mask").write_bytes(b"\1" * (SEQ * SAMPLES + 1))
        output = self.run_job(self.job("c"), "--set", "data.mask=data/ones.mask", status=4)
        self.assertIn("no token of an evaluation's global batches counts", output)


if __name__ == "__main__":
    unittest.main()
