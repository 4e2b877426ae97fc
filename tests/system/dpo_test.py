"""Direct preference optimisation: pairs become data, a reference is kept with the run, and every layout has the same losses."""

import json
import math
import random
import re
import struct
import unittest

from hf_support import *
from nodes_test import NodesTest
from s3_server import Store
from support import *

JOB = """\
name: pairs
seed: 7
output: {output}
device: cpu
threads: 1
model: {{from: {base}, seq_len: 96}}
lora: {lora}
loss: {{dpo: {{beta: 0.3}}}}
batch: {{global: 6, micro: 1}}
precision: fp32
optimizer: {{name: adamw, lr: 5.0e-3, schedule: {{kind: constant}}}}
steps: {steps}
data: {{train: [{pairs}], format: tokens, other_tokenizer: allow}}
checkpoint: {{every: 2, keep: 9}}
metrics: {{listen: "off"}}
"""
ANIMALS = {"cow": "moo", "dog": "woof", "cat": "miaow", "duck": "quack", "owl": "hoot"}


def logps(path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + length])
    begin, end = header["log_probabilities"]["data_offsets"]
    values = struct.unpack(f"<{(end - begin) // 8}d", content[8 + length + begin:8 + length + end])
    return list(zip(values[::2], values[1::2])), header["__metadata__"]


@sliced(6)
class Dpo(NodesTest):
    def setUp(self):
        super().setUp()
        config = CONFIGS["llama"]
        self.base = make_directory(self.root / "base", config, make_tensors(config, seed=1))
        rng = random.Random(3)
        self.lines = []
        for i in range(20):
            animal = rng.choice(list(ANIMALS))
            wrong = rng.choice([s for a, s in ANIMALS.items() if a != animal])
            self.lines.append({"prompt": f"{animal}?", "chosen": f" {ANIMALS[animal]}{'!' * (i % 3)}", "rejected": f" {wrong}"})
        self.pairs = self.root / "pairs"
        self.prepare(self.lines, self.pairs)

    def command(self, *args, status=0):
        run = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=120)
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        return run.stdout if status == 0 else run.stderr

    def prepare(self, lines, out, *args, status=0):
        path = self.root / f"{out.name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return self.command("data", "prepare", path, "--pairs", "--out", out, *args, status=status)

    def documents(self, folder):
        """(text, counted part) of each document."""
        tokens, mask = (folder / "tokens-00000.bin").read_bytes(), (folder / "tokens-00000.mask").read_bytes()
        index = (folder / "tokens-00000.idx").read_bytes()
        count, = struct.unpack("<Q", index[18:26])
        lengths = struct.unpack(f"<{count}i", index[34:34 + 4 * count])
        found, at = [], 0
        for length in lengths:
            text, counts = tokens[at:at + length], mask[at:at + length]
            found.append((text.decode(), bytes(t for t, c in zip(text, counts) if c).decode()))
            at += length
        return found

    def job(self, name, steps=6, lora="{rank: 4, targets: [q_proj, v_proj]}"):
        path = self.root / f"{name}.yaml"
        path.write_text(JOB.format(output=self.root / name, base=self.base, lora=lora, steps=steps, pairs=self.pairs))
        if lora is None:
            path.write_text(path.read_text().replace("lora: None\n", ""))
        return path

    def curve(self, name):
        return [(s["loss"], s["rewards"]["margin"]) for s in self.steps(name)]

    def evaluation_events(self, name):
        return [e for e in self.events(name) if e["event"] == "evaluation"]

    def test_texts_and_messages_become_pairs_of_documents(self):
        texts = [part for line in self.lines for part in ((line["prompt"] + line["chosen"], line["chosen"]), (line["prompt"] + line["rejected"], line["rejected"]))]
        self.assertEqual(self.documents(self.pairs), texts)
        dataset = json.loads((self.pairs / "dataset.json").read_text())
        self.assertEqual((dataset["pairs"], dataset["loss_mask"], dataset["documents"]), (True, True, 40))
        turn = lambda role, text: {"role": role, "content": text}
        begin = [turn("user", "Hi"), turn("assistant", "Hello"), turn("user", "Cow?")]
        chats = [{"chosen": begin + [turn("assistant", "Moo")], "rejected": begin + [turn("assistant", "Woof")]},
                 {"prompt": begin, "chosen": [turn("assistant", "Moo")], "rejected": [turn("assistant", "Woof")]}]
        self.prepare(chats, self.root / "chats", "--chat", "chatml")
        found = self.documents(self.root / "chats")
        # Only the answer counts, not earlier turns of the assistant. A separate prompt makes no difference.
        self.assertEqual([counts for _, counts in found], ["Moo<|im_end|>", "Woof<|im_end|>"] * 2)
        self.assertEqual(found[:2], found[2:])
        self.assertIn("<|im_start|>assistant\nHello<|im_end|>", found[0][0])
        # Pairs that are too long are dropped as a whole.
        longest = max(len(a[0]) + len(b[0]) for a, b in zip(texts[::2], texts[1::2]))
        said = self.prepare(self.lines, self.root / "short", "--pair-tokens", longest - 1)
        left = sum(len(a[0]) + len(b[0]) == longest for a, b in zip(texts[::2], texts[1::2]))
        self.assertIn(f"{left} pairs of more than {longest - 1} tokens were left out", said)
        self.assertEqual(len(self.documents(self.root / "short")), 40 - 2 * left)

    def test_pairs_that_are_wrong_are_named(self):
        wrong = lambda line, *args: self.prepare([self.lines[0], line], self.root / "wrong", *args, status=4)
        self.assertIn('wrong.jsonl, line 2: no field "rejected" in this object', wrong({"prompt": "a", "chosen": "b"}))
        self.assertIn("line 2: the document that begins here cannot be encoded: the rejected answer has no token", wrong({"prompt": "a", "chosen": "b", "rejected": ""}))
        self.assertIn("name their template by --chat", wrong({"prompt": [], "chosen": [], "rejected": []}))
        turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        chat = lambda line: self.prepare([line], self.root / "wrong", "--chat", "chatml", status=4)
        self.assertIn("line 1: the chosen and the rejected answer are the same", chat({"chosen": turn, "rejected": turn}))
        self.assertIn("begin with no message alike", chat({"chosen": turn, "rejected": turn[1:]}))
        self.assertIn("line 2: the chosen and the rejected answer are the same", wrong({"prompt": "a", "chosen": "b", "rejected": "b"}))
        system, other = {"role": "system", "content": "s"}, [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]
        self.assertIn("message 2 of \"chosen\" and \"rejected\" differs and is not the assistant's", chat({"chosen": [system, *turn], "rejected": [system, *other]}))
        self.assertIn("give them once", chat({"prompt": turn[:1], "chosen": turn, "rejected": [*turn[:1], other[1]]}))
        self.assertIn("--field: --pairs reads", self.prepare(self.lines, self.root / "wrong", "--field", "x", status=2))
        # Data of pairs is valid for DPO only, and DPO accepts no other data.
        short = self.run_job(self.job("short"), "--set", "model.seq_len=16", status=4)
        self.assertIn("have more tokens than a sample of seq_len 16 holds", short)
        plain = self.run_job(self.job("plain"), "--set", "loss.dpo.beta=0", status=4)
        self.assertIn("its documents are pairs of a chosen and a rejected answer", plain)
        text = self.root / "text.txt"
        text.write_text("Nothing to choose from. " * 50)
        self.command("data", "prepare", text, "--out", self.root / "text")
        other = self.run_job(self.job("other"), "--set", f"data.train=[{self.root / 'text'}]", status=4)
        self.assertIn("no dataset.json beside it says that its documents are pairs", other)

    def test_a_run_learns_by_a_reference_that_it_keeps(self):
        self.run_job(self.job("whole", steps=10))
        steps = self.steps("whole")
        # The reference is the model itself: before training every pair is a tie.
        self.assertEqual(steps[0]["loss"], math.log(2))
        self.assertEqual(steps[0]["rewards"], {"margin": 0, "accuracy": 0, "chosen": 0, "rejected": 0})
        self.assertLess(steps[-1]["loss"], 0.6)
        self.assertGreater(steps[-1]["rewards"]["accuracy"], 0.8)
        rewards = steps[-1]["rewards"]
        self.assertAlmostEqual(rewards["chosen"] - rewards["rejected"], rewards["margin"], places=12)
        kept, metadata = logps(self.root / "whole" / "reference.safetensors")
        self.assertEqual(len(kept), 20)
        self.assertTrue(all(chosen < 0 and rejected < 0 for chosen, rejected in kept))
        for checkpoint in self.checkpoints("whole"):
            manifest = json.loads((checkpoint / "manifest.json").read_text())
            self.assertEqual(manifest["identity"]["reference"], metadata["xxh3"])
        self.assertIn("the reference's log-probabilities of 20 pairs were computed", " ".join(e.get("message", "") for e in self.events("whole")))

        # A run of a few steps computes the reference of the pairs that it reads, and the resumed run that of the others.
        curve = self.curve("whole")
        self.run_job(self.job("parts", steps=2))
        some, _ = logps(self.root / "parts" / "reference.safetensors")
        self.assertEqual(sum(not math.isnan(chosen) for chosen, _ in some), 12)
        said = self.run_job(self.job("parts", steps=10))
        self.assertIn("the reference's log-probabilities of 8 pairs were computed", said)
        self.assertEqual(logps(self.root / "parts" / "reference.safetensors")[0], kept)
        self.assertEqual(self.curve("parts"), curve)

    def test_what_is_kept_is_used_again_and_made_again_where_it_is_gone(self):
        for lora in ("{rank: 4, targets: [q_proj, v_proj]}", None):
            kind = "full" if lora is None else "lora"
            with self.subTest(kind):
                self.run_job(self.job(kind, steps=8, lora=lora))
                curve = self.curve(kind)
                process = self.start(self.job(f"{kind}-killed", steps=8, lora=lora))
                self.wait_for_checkpoint(process, f"{kind}-killed")
                process.kill()
                process.wait()
                said = self.run_job(self.job(f"{kind}-killed", steps=8, lora=lora))
                self.assertNotIn("were computed", said)
                self.assertEqual(self.curve(f"{kind}-killed"), curve)
                # A missing or damaged reference is recomputed with the initial weights, not with those of the checkpoint.
                for name, act in (("gone", lambda p: p.unlink()), ("damaged", lambda p: p.write_bytes(p.read_bytes()[:-9] + b"123456789"))):
                    name = f"{kind}-{name}"
                    self.run_job(self.job(name, steps=4, lora=lora))
                    before, _ = logps(self.root / name / "reference.safetensors")
                    act(self.root / name / "reference.safetensors")
                    said = self.run_job(self.job(name, steps=8, lora=lora))
                    self.assertIn("the reference's log-probabilities are computed again", said)
                    after, _ = logps(self.root / name / "reference.safetensors")
                    # The pairs that the rest of the run reads.
                    known = [(was, now) for was, now in zip(before, after) if not math.isnan(now[0])]
                    self.assertGreater(len(known), 10)
                    self.assertTrue(all(was == now for was, now in known), known)
                    self.assertEqual(self.curve(name), curve)
        # Without the initial weights there is no reference: an error.
        resolved = (self.root / "full" / "job.yaml").read_text()
        without = self.root / "without.yaml"
        without.write_text(re.sub(r"(?m)^ +from: .*\n", "", resolved))
        self.assertNotEqual(without.read_text(), resolved)
        self.assertIn("set model.from to where they are", self.run_job(without, "--set", "steps=9", status=5))
        # Likewise for a run that did not start as a DPO run.
        text = self.root / "plain.txt"
        text.write_text("cow? moo " * 500)
        self.run_job(self.job("plain"), "--set", "loss.dpo.beta=0", "--set", "data={format: text, tokenizer: bytes, other_tokenizer: allow}", "--set", f"data.train=[{text}]")
        later = self.run_job(self.job("plain", steps=9), "--set", "data.on_change=continue", status=5)
        self.assertIn("was trained without it, and its reference would be the weights from before that: give the job another `output`", later)
        # Other weights give another reference.
        config = CONFIGS["llama"]
        self.base = make_directory(self.root / "others", config, make_tensors(config, seed=2))
        self.assertIn("were trained beside the weights of", self.run_job(self.job("full", steps=9, lora=None), status=5))

    def test_evaluations_are_of_pairs_by_the_same_reference(self):
        """All pairs are in each step and in the validation data, so an evaluation equals the next step's loss."""
        all_pairs = ["--set", "batch.global=20", "--set", f"data.valid={self.pairs}", "--set", "evaluate={every: 1, batches: 1}"]
        for name, layout in (("one", "{}"), ("cut", "{dp: 3, zero: 2}"), ("tp", "{tp: 2}")):
            with self.subTest(name):
                said = self.run_job(self.job(name, steps=4), *all_pairs, "--set", f"parallel={layout}")
                steps, evaluations = self.steps(name), self.evaluation_events(name)
                self.assertEqual([e["step"] for e in evaluations], [1, 2, 3, 4])
                for evaluation, step in zip(evaluations, steps[1:]):
                    self.assertAlmostEqual(evaluation["loss"], step["loss"], delta=1e-6)
                    for key in ("margin", "accuracy", "chosen", "rejected"):
                        self.assertAlmostEqual(evaluation["rewards"][key], step["rewards"][key], delta=1e-5, msg=key)
                    self.assertNotIn("perplexity", evaluation)
                self.assertLess(evaluations[-1]["loss"], evaluations[0]["loss"])
                self.assertRegex(said, rf"evaluation at step 4: validation loss {evaluations[-1]['loss']:.4f}, [\d.]+ % of the chosen answers preferred")
                self.assertIn("the reference's log-probabilities of 40 pairs were computed", said)
        # A resumed run evaluates pairs, too, and says which evaluations use averaged weights.
        others = [{"prompt": f"{a}?", "chosen": f" {s}", "rejected": " no"} for a, s in ANIMALS.items()] * 2
        self.prepare(others, self.root / "others")
        sets = ["--set", f"data.valid_sets=[{{name: same, path: {self.pairs}}}, {{name: other, path: {self.root / 'others'}}}]",
                "--set", "evaluate={every: 2, batches: 1, ema: true}", "--set", "ema.decay=0.9"]
        self.run_job(self.job("whole", steps=6), *sets)
        self.run_job(self.job("parts", steps=6), *sets, "--stop-after", "3")
        said = self.run_job(self.job("parts", steps=6), *sets)
        self.assertNotIn("were computed", said)
        self.assertIn("evaluation of the averaged weights at step 6", said)
        values = lambda name: [(e["step"], e["weights"], e["loss"], [(s["set"], s["loss"], s["rewards"]) for s in e["sets"]]) for e in self.evaluation_events(name)]
        self.assertEqual(len(values("whole")), 3)
        self.assertEqual(values("parts"), values("whole"))
        self.assertIn("evaluate.choices", self.run_job(self.job("quiz"), *all_pairs, "--set", "evaluate.choices=[{name: q, path: q.jsonl}]", status=2))

    def test_a_reference_that_was_interrupted_goes_on_where_it_was(self):
        # Parts are saved every second. A fast machine may have computed all pairs by then, so the number of pairs grows until it
        # has not. The run takes all of them.
        for pairs in (6000, 24000, 96000):
            lines = [{"prompt": f"{n}?", "chosen": f" {n * n % 97}", "rejected": f" {n % 89} no"} for n in range(pairs)]
            self.prepare(lines, self.root / f"many{pairs}")
            many = ["--set", f"data.train=[{self.root / f'many{pairs}'}]", "--set", f"output={self.root / f'long{pairs}'}"]
            path = self.root / f"long{pairs}" / "reference.safetensors"
            process = self.start(self.job("long", steps=pairs), *many)
            self.wait_for(process, path.exists, "a part of the reference is kept")
            process.kill()
            process.wait()
            kept = [pair for pair in logps(path)[0] if not math.isnan(pair[0])]
            if len(kept) < pairs:
                break
        self.assertTrue(0 < len(kept) < pairs, len(kept))
        said = self.run_job(self.job("long", steps=pairs), *many, "--stop-after", "1")
        self.assertIn(f"the reference's log-probabilities of {len(kept):,} pairs are those of an earlier attempt", said)
        self.assertIn(f"of {pairs - len(kept):,} pairs were computed", said)
        whole = logps(path)[0]
        self.assertEqual(sum(not math.isnan(pair[0]) for pair in whole), pairs)
        self.assertTrue(set(kept) <= set(whole))
        # Saved parts do not count for other weights.
        many = many[:2]
        process = self.start(self.job("other", steps=1000), *many)
        path = self.root / "other" / "reference.safetensors"
        self.wait_for(process, path.exists, "a part of the reference is kept")
        process.kill()
        process.wait()
        config = CONFIGS["llama"]
        self.base = make_directory(self.root / "others", config, make_tensors(config, seed=2))
        said = self.run_job(self.job("other", steps=1), *many)
        self.assertNotIn("earlier attempt", said)

    def test_pairs_of_an_object_store_are_those_of_files(self):
        store = Store()
        self.addCleanup(store.server_close)
        self.addCleanup(store.shutdown)
        store.put_tree("corpora", self.pairs, "pairs/")
        self.run_job(self.job("local", steps=3))
        self.run_job(self.job("remote", steps=3), "--set", "data.train=[s3://corpora/pairs]", env={**os.environ, **store.environment()})
        self.assertEqual(self.curve("remote"), self.curve("local"))
        self.assertEqual(*(str(logps(self.root / name / "reference.safetensors")[0]) for name in ("local", "remote")))

    def test_every_layout_has_the_same_losses(self):
        self.run_job(self.job("one"))
        one = self.curve("one")
        reference, _ = logps(self.root / "one" / "reference.safetensors")
        for name, sets in (("tp", ["parallel.tp=2"]), ("pp", ["parallel.pp=2", "parallel.schedule=zb-v", "parallel.virtual_stages=2"]), ("dp", ["parallel.dp=2", "parallel.zero=3"]),
                           ("nodes", ["parallel.dp=2", "cluster.nodes=2"])):
            words = [word for key in sets for word in ("--set", key)]
            if name == "nodes":
                self.finish(self.start_nodes(self.job(name), *words))
            else:
                self.run_job(self.job(name), *words)
            for (loss, margin), (other, other_margin) in zip(one, self.curve(name), strict=True):
                self.assertAlmostEqual(loss, other, delta=1e-5, msg=name)
                self.assertAlmostEqual(margin, other_margin, delta=3e-5, msg=name)
            for pair, other in zip(reference, logps(self.root / name / "reference.safetensors")[0]):
                for a, b in zip(pair, other):
                    self.assertAlmostEqual(a, b, delta=1e-4, msg=name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
