"""Evaluations: named validation sets, bits per byte, multiple-choice questions."""

import array
import math
import random
import shutil
import unittest

from support import *

TOKENIZERS = ROOT / "tests" / "io" / "tokenizers"
SEQ = 16
GLOBAL = 4
JOB = """\
name: evaluate
seed: 5
output: {output}
device: cpu
threads: 1
model: {{layers: 2, hidden: 32, heads: 2, ffn: 64, vocab: {vocab}, seq_len: 16}}
batch: {{global: 4, micro: 1}}
optimizer: {{lr: 1.0e-2, schedule: {{kind: constant}}}}
steps: 3
data: {data}
evaluate: {{every: 3, batches: 2}}
checkpoint: {{every: 0}}
metrics: {{listen: "off"}}
"""


def bytes_of_tokens(tokenizer):
    """The bytes of each id of a byte-level BPE, by GPT-2's map of bytes to characters; none for special tokens."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    byte_of = {chr(b): b for b in kept}
    byte_of.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in kept)})
    file = json.loads(tokenizer.read_text())
    table = {id: bytes(byte_of[c] for c in token) for token, id in file["model"]["vocab"].items() if set(token) <= set(byte_of)}
    table.update({token["id"]: b"" for token in file["added_tokens"] if token["special"]})
    return table


class Evaluate(RunTest):
    def setUp(self):
        super().setUp()
        rng = random.Random(1)
        for name in ("train", "web", "code"):
            words = ["".join(rng.choice("abcdefgh" + name) for _ in range(4)) for _ in range(20)]
            (self.root / f"{name}.txt").write_text(" ".join(rng.choice(words) for _ in range(200)))

    def job(self, name, data, vocab=256):
        path = self.root / f"{name}.yaml"
        path.write_text(JOB.format(output=self.root / name, data=data, vocab=vocab))
        return path

    def evaluation(self, name):
        return [e for e in self.events(name) if e["event"] == "evaluation"][-1]

    def test_each_named_set_has_the_loss_that_it_has_alone_on_every_layout(self):
        sets = "[{name: code, path: code.txt, batches: 3}, {name: web, path: web.txt}]"
        output = self.run_job(self.job("sets", f"{{train: train.txt, valid: train.txt, valid_sets: {sets}}}"))
        evaluation = self.evaluation("sets")
        self.assertEqual([(s["set"], s["tokens"]) for s in evaluation["sets"]], [("valid", 128), ("code", 192), ("web", 128)])
        for got in evaluation["sets"]:
            name = {"valid": "train"}.get(got["set"], got["set"])
            self.run_job(self.job(name, f"{{train: train.txt, valid: {name}.txt}}"), "--set", f"evaluate.batches={got['tokens'] // 64}")
            alone = self.evaluation(name)
            self.assertNotIn("sets", alone)
            self.assertEqual((got["loss"], got["tokens"]), (alone["loss"], alone["tokens"]))
            # Tokens of a text are its bytes.
            self.assertAlmostEqual(got["bits_per_byte"], got["loss"] / math.log(2), delta=1e-12)
            self.assertAlmostEqual(got["perplexity"], math.exp(got["loss"]), delta=1e-9)
            self.assertRegex(output, rf"  {got['set']}: validation loss {got['loss']:.4f}, perplexity .*, {got['bits_per_byte']:.4f} bits per byte")
        first = evaluation["sets"][0]
        self.assertEqual([evaluation[key] for key in ("loss", "tokens", "bits_per_byte")], [first[key] for key in ("loss", "tokens", "bits_per_byte")])
        self.assertEqual(len({s["loss"] for s in evaluation["sets"]}), 3)
        only = self.job("only", f"{{train: train.txt, valid_sets: {sets}}}")
        self.run_job(only, "--set", "parallel={tp: 2, dp: 2}")
        got = self.evaluation("only")
        self.assertEqual([s["set"] for s in got["sets"]], ["code", "web"])
        self.assertEqual(got["loss"], got["sets"][0]["loss"])
        for a, b in zip(got["sets"], evaluation["sets"][1:]):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=2e-5 * b["loss"])
        output = self.run_job(self.job("a", "{train: train.txt, valid_sets: [{name: few, path: few.txt}]}"), status=4)
        self.assertIn("few.txt", output)
        (self.root / "few.txt").write_text("f" * 40)
        output = self.run_job(self.job("a", "{train: train.txt, valid_sets: [{name: few, path: few.txt}]}"), status=4)
        self.assertIn("data.valid_sets: few: the validation data holds 2 sequences", output)

    def test_bits_per_byte_are_of_the_bytes_of_the_very_tokens(self):
        tokenizer = self.root / "tokenizer.json"
        shutil.copy(TOKENIZERS / "gpt2.json", tokenizer)
        lines = (self.root / "web.txt").read_text().split(" ")
        (self.root / "web.jsonl").write_text("".join(json.dumps({"text": " ".join(lines[i:i + 9]) + " naïve мир"}) + "\n" for i in range(0, 190, 9)))
        subprocess.run([BINARY, "data", "prepare", "web.jsonl", "--out", "web", "--tokenizer", tokenizer, "--eos", "<|endoftext|>"],
                       cwd=self.root, check=True, capture_output=True)
        vocab = json.loads((self.root / "web" / "dataset.json").read_text())["tokenizer"]["vocab"]
        data = "{format: tokens, train: web, valid: web}"
        self.run_job(self.job("a", data, vocab))
        got = self.evaluation("a")
        ids = array.array("H", (self.root / "web" / "tokens-00000.bin").read_bytes())[1:2 * GLOBAL * SEQ + 1]
        table = bytes_of_tokens(tokenizer)
        expected = got["loss"] * len(ids) / math.log(2) / sum(len(table[id]) for id in ids)
        self.assertAlmostEqual(got["bits_per_byte"], expected, delta=1e-9)
        # With a tokenizer of other data, or without one, there is no figure.
        output = self.run_job(self.job("b", data, vocab), "--set", f"evaluate.tokenizer={TOKENIZERS / 'qwen2.json'}", status=4)
        self.assertIn("evaluate.tokenizer", output)
        tokenizer.rename(self.root / "moved.json")
        self.run_job(self.job("c", data, vocab))
        self.assertNotIn("bits_per_byte", self.evaluation("c"))
        self.run_job(self.job("d", data, vocab), "--set", "evaluate.tokenizer=moved.json")
        self.assertEqual(self.evaluation("d")["bits_per_byte"], got["bits_per_byte"])

    def test_questions_are_answered_by_the_likelihood_of_their_choices_on_every_layout(self):
        """Each choice is also a validation set of one sequence whose mask counts only the choice: its loss gives the likelihood."""
        rng = random.Random(4)
        word = lambda: "".join(rng.choice("abcdefgh") for _ in range(rng.randrange(1, 6)))
        questions, sets = [], []
        for n in range(6):
            question = {"prompt": word() + word(), "choices": [" " + word() for _ in range(3)], "answer": rng.randrange(3)}
            questions.append(question)
            for i, choice in enumerate(question["choices"]):
                text = (question["prompt"] + choice).encode()
                name = f"q{n}-{i}"
                (self.root / f"{name}.bin").write_bytes(array.array("H", [*text.ljust(SEQ + 1, b"\0")]).tobytes())
                (self.root / f"{name}.mask").write_bytes((b"\0" * len(question["prompt"]) + b"\1" * len(choice)).ljust(SEQ + 1, b"\0"))
                sets.append(f"{{name: {name}, path: {name}.bin, mask: {name}.mask}}")
        (self.root / "quiz.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
        (self.root / "train.bin").write_bytes(array.array("H", [*(self.root / "train.txt").read_bytes()]).tobytes())
        data = f"{{format: tokens, dtype: uint16, train: train.bin, valid_sets: [{', '.join(sets)}]}}"
        quiz = ["--set", "evaluate.choices=[{name: quiz, path: quiz.jsonl}]", "--set", "evaluate.batches=1"]
        output = self.run_job(self.job("a", data), *quiz, "--set", "batch.global=1", status=4)
        self.assertIn("the data does not say which tokenizer made it: name it by evaluate.tokenizer", output)
        self.run_job(self.job("one", data), *quiz, "--set", "evaluate.tokenizer=bytes", "--set", "batch.global=1")
        evaluation = self.evaluation("one")
        losses = {s["set"]: s["loss"] for s in evaluation["sets"]}
        right = by_character = 0
        for n, question in enumerate(questions):
            sums = [losses[f"q{n}-{i}"] * len(choice) for i, choice in enumerate(question["choices"])]
            per_character = [total / len(choice.strip()) for total, choice in zip(sums, question["choices"])]
            right += sums.index(min(sums)) == question["answer"]
            by_character += per_character.index(min(per_character)) == question["answer"]
        [got] = evaluation["choices"]
        self.assertEqual(got, {"set": "quiz", "questions": 6, "accuracy": right / 6, "accuracy_norm": by_character / 6})
        self.assertGreater(right + by_character, 0)
        # 18 texts in global batches of 4: the last batch and ranks have padding.
        plain = self.job("plain", "{train: train.txt, valid: web.txt}")
        self.run_job(plain, *quiz)
        expected = self.evaluation("plain")["choices"]
        for name, layout in (("tp", "{tp: 2, pp: 2}"), ("dp", "{dp: 3, zero: 3}")):
            output = self.run_job(self.job(name, "{train: train.txt, valid: web.txt}"), *quiz, "--set", f"parallel={layout}")
            self.assertEqual(self.evaluation(name)["choices"], expected)
        self.assertRegex(output, r"  quiz: accuracy \d+\.\d %, by likelihood per character \d+\.\d % \(6 questions\)")
        (self.root / "quiz.jsonl").write_text('{"prompt": "a", "choices": ["b"], "answer": 0}\n')
        self.assertIn("quiz.jsonl:1: \"choices\" is not a list of two or more", self.run_job(plain, *quiz, "--fresh", status=4))


if __name__ == "__main__":
    unittest.main()
