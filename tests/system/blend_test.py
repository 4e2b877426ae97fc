"""Blends of several sources: the same global batches at any dp, and no sample of a source twice after a change of the blend."""

import array
import re
import struct
import unittest

from support import *

SEQ = 16
JOB = """\
name: blend
seed: 5
output: {output}
device: cpu
threads: 1
model: {{layers: 1, hidden: 32, heads: 2, ffn: 64, vocab: 256, seq_len: 16}}
batch: {{global: {batch}, micro: 1}}
optimizer: {{lr: 1.0e-3, schedule: {{kind: constant}}}}
steps: {steps}
data:
  format: tokens
  dtype: uint16
  sources:
{sources}
checkpoint: {{every: 4}}
metrics: {{listen: "off"}}
"""


@sliced(4)
class Blend(RunTest):
    def setUp(self):
        super().setUp()
        rng = random.Random(1)
        for name, samples in (("x", 200), ("y", 90), ("z", 60)):
            ids = [rng.randrange(256) for _ in range(SEQ * samples + 1)]
            (self.root / f"{name}.bin").write_bytes(array.array("H", ids).tobytes())

    def blend(self, name, shares, steps=8, batch=12):
        path = self.root / f"{name}.yaml"
        sources = "\n".join(f"    - {{path: {source}.bin, {share}}}" for source, share in shares.items())
        path.write_text(JOB.format(output=self.root / name, sources=sources, steps=steps, batch=batch))
        return path

    def manifest(self, name):
        return json.loads((self.checkpoints(name)[-1] / "manifest.json").read_text())

    def taken(self, name):
        return {s["name"].rsplit("/", 1)[-1][0]: s["taken"] for s in self.manifest(name)["sources"]}

    def ledger(self, name):
        return [json.loads(line) for line in (self.root / name / "samples.jsonl").read_text().splitlines()]

    def assert_once(self, name, steps, batch=12):
        """Every position in the order of samples is in the ledger once, in consecutive steps."""
        lines = self.ledger(name)
        self.assertEqual([line["step"] for line in lines], list(range(1, steps + 1)))
        places = [place for line in lines for place in range(line["first"], line["first"] + line["count"])]
        self.assertEqual(places, list(range(steps * batch)))
        return [line["attempt"] for line in lines]

    def assert_losses(self, name, reference):
        a, b = self.steps(name), self.steps(reference)
        self.assertEqual([s["step"] for s in a], [s["step"] for s in b])
        for x, y in zip(a, b):
            self.assertAlmostEqual(x["loss"], y["loss"], delta=2e-5 * y["loss"], msg=f"{name} step {x['step']}")

    def test_a_blend_resumed_at_another_dp_has_the_same_global_batches(self):
        """A batch of 10 sequences is divisible by neither 3 nor 4 ranks, so both pad their last microbatches."""
        shares = {"x": "weight: 0.5", "y": "weight: 0.3", "z": "weight: 0.2, epochs: 0.25"}
        self.run_job(self.blend("one", shares, batch=10))
        # z ends after 15 samples; the others share the rest 5 to 3.
        self.assertEqual(self.taken("one"), {"x": 41, "y": 24, "z": 15})
        for dp in (2, 3, 4):
            with self.subTest(dp=dp):
                name = f"dp{dp}"
                job = self.blend(name, shares, batch=10)
                self.run_job(job, "--set", "steps=4")
                self.run_job(job, "--set", f"parallel.dp={dp}")
                self.assert_losses(name, "one")
                self.assertEqual(self.taken(name), self.taken("one"))
                self.assertEqual([e for e in self.events(name) if e["event"] == "change" and "blend" in e["message"]], [])
                self.assertEqual(self.assert_once(name, 8, batch=10), 4 * [1] + 4 * [2])
                places = [[(x["step"], x["first"], x["count"], x["sources"]) for x in self.ledger(n)] for n in (name, "one")]
                self.assertEqual(*places)
                # The sums of the ledger equal the checkpoint's counts per source.
                sums = [sum(of_source) for of_source in zip(*(line["sources"] for line in self.ledger(name)))]
                self.assertEqual(dict(zip("xyz", sums)), self.taken(name))

    def test_a_source_added_or_weighed_anew_goes_on_after_what_was_taken_and_says_so(self):
        job = self.blend("a", {"x": "weight: 1", "y": "weight: 1"})
        self.run_job(job, "--set", "steps=4")
        self.assertEqual(self.taken("a"), {"x": 24, "y": 24})
        job = self.blend("a", {"y": "weight: 1", "z": "weight: 2", "x": "weight: 1"})
        output = self.run_job(job, "--set", "parallel.dp=2")
        self.assertEqual(self.taken("a"), {"x": 36, "y": 36, "z": 24})
        [change] = [e for e in self.events("a") if e["event"] == "change" and "blend" in e["message"]]
        self.assertEqual(change["step"], 4)
        self.assertRegex(change["details"][0], r"z\.bin: added, weight 2$")
        self.assertIn("the blend of the training data changed", output)
        # Same as without stops: the order after the change does not depend on how often the run stopped.
        again = self.blend("b", {"x": "weight: 1", "y": "weight: 1"})
        self.run_job(again, "--set", "steps=4")
        again = self.blend("b", {"x": "weight: 1", "z": "weight: 2", "y": "weight: 1"})
        self.run_job(again, "--set", "steps=6")
        self.run_job(again, "--set", "parallel.dp=3")
        self.assert_losses("b", "a")

    def test_every_sample_of_an_epoch_counts_once_also_after_a_kill_at_another_dp(self):
        """200 samples in batches of 12: the two epochs end in the middle of steps 17 and 34."""
        def job(name, steps):
            path = self.blend(name, {"x": "weight: 1"}, steps)
            text = path.read_text()
            path.write_text(re.sub(r"  sources:\n.*\n", "  train: x.bin\n", text))
            return path
        self.run_job(job("whole", 34))
        self.assertEqual(set(self.assert_once("whole", 34)), {1})
        process = self.start(job("a", 100_000))
        self.wait_for_checkpoint(process)
        process.kill()
        process.communicate()
        done = self.checkpoints("a")
        self.assertTrue(done)
        first = int(done[-1].name[5:])
        self.run_job(job("a", max(34, first + 3)), "--set", "parallel.dp=3")
        attempts = self.assert_once("a", max(34, first + 3))
        self.assertEqual(attempts, first * [1] + (len(attempts) - first) * [2])
        self.assertNotIn("sources", self.ledger("a")[0])
        for x, y in zip(self.steps("a"), self.steps("whole")):
            self.assertAlmostEqual(x["loss"], y["loss"], delta=2e-5 * y["loss"])

    def test_validation_documents_of_the_sources_are_evaluated_alike_at_any_dp(self):
        rng = random.Random(2)
        for name in ("m", "n"):
            self.write_documents(name, [rng.randrange(5, 60) for _ in range(200)])
        split = ["--set", "data.sources=[{path: m, weight: 1}, {path: n, weight: 2}]", "--set", "data.dtype=auto",
                 "--set", "evaluate={every: 4, batches: 2}"]
        losses = {}
        for dp in (1, 2):
            name = f"dp{dp}"
            self.run_job(self.blend(name, {"x": "weight: 1"}), *split, "--set", f"parallel.dp={dp}", "--set", "data.valid_fraction=0.2")
            losses[dp] = [e["loss"] for e in self.events(name) if e["event"] == "evaluation"]
            self.assertEqual(len(losses[dp]), 2)
        for x, y in zip(losses[1], losses[2]):
            self.assertAlmostEqual(x, y, delta=2e-5 * y)
        # Another split changes the training data.
        job = self.blend("dp1", {"x": "weight: 1"}, steps=12)
        output = self.run_job(job, *split, "--set", "data.valid_fraction=0.3", status=5)
        self.assertIn("training of valid_fraction 0.2", output)
        output = self.run_job(self.blend("b", {"x": "weight: 1"}), "--set", "data.valid_fraction=0.2", status=4)
        self.assertRegex(output, r"x\.bin: data\.valid_fraction chooses whole documents")
        output = self.run_job(self.blend("b", {"x": "weight: 1"}), *split, status=2)
        self.assertIn("data.valid_sets or data.valid_fraction", output)

    def test_packed_documents_are_complete_and_equal_at_any_dp(self):
        rng = random.Random(3)
        self.write_documents("m", [rng.randrange(2, 14) for _ in range(150)] + [40, 70])
        self.write_documents("n", [rng.randrange(2, 17) for _ in range(90)])
        packed = ["--set", "data.sources=[{path: m, weight: 1}, {path: n, weight: 2}]", "--set", "data.dtype=auto",
                  "--set", "data.packing=best_fit", "--set", "data.document_mask=true", "--set", "data.valid=n"]
        whole = ["--set", "evaluate={every: 4, batches: 1000}", "--set", "batch.global=1"]
        losses = []
        # Attention stays inside a document, so the mean over all documents does not depend on which ones share a sequence.
        for name, most in (("several", 16), ("alone", 1)):
            self.run_job(self.blend(name, {"x": "weight: 1"}, steps=4), *packed, *whole, "--set", f"data.max_documents={most}",
                         "--set", "optimizer.lr=1e-15")
            losses.append(next(e for e in self.events(name) if e["event"] == "evaluation"))
            self.assertEqual(most == 1, any("packed samples hold 1 documents" in e.get("message", "") for e in self.events(name)))
        self.assertLess(losses[0]["tokens"], 0.7 * losses[1]["tokens"])
        self.assertAlmostEqual(losses[0]["loss"], losses[1]["loss"], delta=1e-6 * losses[1]["loss"])
        # The same global batches, without a stop and resumed at another dp.
        self.run_job(self.blend("one", {"x": "weight: 1"}, batch=10), *packed)
        counted = [line["counted_tokens"] for line in self.ledger("one")]
        self.assertTrue(all(100 < count < 160 for count in counted), counted)
        for dp, zero in ((2, 3), (3, 0)):
            name = f"dp{dp}"
            job = self.blend(name, {"x": "weight: 1"}, batch=10)
            self.run_job(job, *packed, "--set", "steps=4")
            self.run_job(job, *packed, "--set", f"parallel={{dp: {dp}, zero: {zero}}}")
            self.assert_losses(name, "one")
            self.assertEqual([line["counted_tokens"] for line in self.ledger(name)], counted)
            self.assertEqual(self.taken_of(name), self.taken_of("one"))
        output = self.run_job(job, *packed, "--set", "data.packing=concatenate", "--set", "steps=12", status=5)
        self.assertIn("packed by best fit", output)
        output = self.run_job(self.blend("plain", {"x": "weight: 1"}), "--set", "data.packing=best_fit", status=4)
        self.assertIn("x.bin: data.packing: best_fit needs to know where documents begin", output)

    def taken_of(self, name):
        return [source["taken"] for source in self.manifest(name)["sources"]]

    def write_documents(self, name, lengths):
        """A Megatron data set of random tokens."""
        rng, count = random.Random(name), len(lengths)
        offsets = [2 * sum(lengths[:i]) for i in range(count)]
        (self.root / f"{name}.bin").write_bytes(array.array("H", [rng.randrange(256) for _ in range(sum(lengths))]).tobytes())
        (self.root / f"{name}.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1)
                                                + struct.pack(f"<{count}i{count}q{count + 1}q", *lengths, *offsets, *range(count + 1)))

    def test_sources_that_hold_too_little_are_refused_before_the_first_step(self):
        output = self.run_job(self.blend("a", {"x": "weight: 1, epochs: 0.1", "y": f"weight: 3, tokens: {30 * SEQ}"}), status=4)
        self.assertIn("50 samples more, and the job's steps take 96", output)
        self.assertEqual(self.steps("a"), [])

    def test_a_changed_file_of_a_blend_is_refused_by_name(self):
        shares = {"x": "weight: 1", "y": "weight: 1"}
        job = self.blend("a", shares)
        self.run_job(job, "--set", "steps=4")
        data = bytearray((self.root / "y.bin").read_bytes())
        data[100] ^= 1
        (self.root / "y.bin").write_bytes(data)
        output = self.run_job(job, status=5)
        self.assertRegex(output, "data: the checkpoint has content [0-9a-f]{32}, the job [0-9a-f]{32}")
        self.run_job(job, "--set", "data.on_change=continue")
        self.assertEqual([(s["weight"], s["taken"]) for s in self.manifest("a")["sources"]], [(1.0, 48), (1.0, 24), (0.0, 24)])


class Verify(RunTest):
    """`data inspect` and `data verify` of Megatron data sets, intact and truncated."""

    FIXTURE = ROOT / "tests/golden/megatron"

    def data_command(self, command, *args, status=0):
        done = subprocess.run([BINARY, "data", command, *args], capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_the_documents_of_a_data_set_are_counted_exactly_by_each_of_its_names(self):
        documents = json.loads((self.FIXTURE / "documents.json").read_text())
        for name in ("narrow", "wide"):
            for ending in ("", ".bin", ".idx"):
                output = self.data_command("inspect", self.FIXTURE / (name + ending))
                self.assertRegex(output, rf"(?m)^  tokens +{sum(map(len, documents[name]))}$")
                self.assertRegex(output, rf"(?m)^  documents +{len(documents[name])}$")
                self.assertIn(" 60 (5 empty)", self.data_command("verify", self.FIXTURE / (name + ending), "--vocab", "151936"))
        self.assertIn("no problems", self.data_command("verify", *self.FIXTURE.glob("*.bin")))

    def test_torn_files_other_formats_and_ids_are_named_with_status_4(self):
        for ending in (".bin", ".idx"):
            shutil.copy(self.FIXTURE / f"narrow{ending}", self.root)
        data, index = self.root / "narrow.bin", self.root / "narrow.idx"
        whole, whole_index = data.read_bytes(), index.read_bytes()
        self.assertIn("no problems", self.data_command("verify", self.root / "narrow"))
        self.assertRegex(self.data_command("verify", data, "--vocab", "50000", status=4), r"narrow\.bin: token \d+ at position \d+ .*vocabulary of 50000")
        data.write_bytes(whole[:-2])
        self.assertRegex(self.data_command("verify", self.root / "narrow", status=4), r"narrow\.bin: its index .* says 3958 bytes, but the file has 3956")
        data.write_bytes(whole)
        for wrong, message in ((whole_index[:-8], "cut short"), (b"TNTIDX\0\0" + whole_index[8:], "TNTIDX"),
                               (whole_index[:17] + b"\7" + whole_index[18:], "float32"), (whole_index[:17] + b"\6" + whole_index[18:], "float64")):
            index.write_bytes(wrong)
            for command in ("inspect", "verify"):
                self.assertRegex(self.data_command(command, self.root / "narrow", status=4), rf"narrow\.idx: .*{message}.*make")


if __name__ == "__main__":
    unittest.main(verbosity=2)
