"""`trainerd generate` of a trained model, from a run, a checkpoint and a Hugging Face directory."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from documents import documented
from hf_support import *
from support import *

JOB = """\
name: learn
seed: 3
output: {output}
device: cpu
threads: 1
model: {{layers: 2, hidden: 64, heads: 4, ffn: 128, vocab: 256, seq_len: 32}}
precision: {precision}
batch: {{global: 8, micro: 8}}
optimizer: {{name: adamw, lr: 1.0e-2, schedule: {{kind: cosine, warmup: 5, min_lr: 1.0e-4}}}}
steps: 200
data: {{train: [{data}], format: text, tokenizer: bytes}}
metrics: {{listen: "off"}}
"""
SENTENCE = "the cat sat on the mat and saw a naïve rat; "


class Generate(RunTest):
    def generate(self, *args, status=0, stdin=None):
        done = subprocess.run([BINARY, "generate", *map(str, args)], cwd=self.root, capture_output=True, timeout=PATIENCE, input=stdin)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return (done.stdout if status == 0 else done.stderr).decode()

    def learn(self, name="a", precision="fp32", *sets):
        text = self.root / "text.txt"
        text.write_text(SENTENCE * 400)
        job = self.root / f"{name}.yaml"
        job.write_text(JOB.format(output=self.root / name, data=text, precision=precision))
        self.run_job(job, *sets)
        return self.root / name

    def test_a_model_says_what_it_learned(self):
        run = self.learn("a", "fp32", "--set", "parallel.tp=2")
        said = self.generate(run, "--prompt", "the cat sat on", "--max-tokens", 40)
        self.assertEqual(said, (SENTENCE * 2).encode()[:14 + 40].decode() + "\n")
        [checkpoint] = self.checkpoints()
        self.assertEqual(self.generate(checkpoint, "--prompt", "-", "--max-tokens", 40, "--precision", "bf16", stdin=b"the cat sat on"), said)
        # The exported model, with its own tokenizer of bytes.
        self.run_command("export", run, "--out", self.root / "hf")
        answer = json.loads(self.generate(self.root / "hf", "--prompt", "the cat sat on", "--max-tokens", 40, "--json"))
        self.assertEqual(answer["prompt"] + answer["text"] + "\n", said)
        self.assertEqual(answer["prompt_ids"], list(b"the cat sat on"))
        self.assertEqual(len(answer["ids"]), 40)
        self.assertEqual(answer["end"], "length")
        # Sampled text depends only on the seed.
        drawn = [self.generate(run, "--prompt", "q", "--temperature", 2, "--top-p", 0.95, "--seed", seed, "--max-tokens", 20) for seed in (1, 1, 2)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])

    def run_command(self, *args):
        subprocess.run([BINARY, *map(str, args)], check=True, capture_output=True)

    def test_a_sentencepiece_model_is_taken_where_its_tokenizer_json_cannot_be_read(self):
        config = dict(CONFIGS["gpt2"], vocab_size=2000)
        directory = make_directory(self.root / "hf", config, make_tensors(config, "F32"), 1, False)
        files = pathlib.Path(__file__).resolve().parents[1] / "io" / "tokenizers"
        shutil.copy(files / "bpe.model", directory / "tokenizer.model")
        (directory / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "byte_fallback": True, "vocab": {}, "merges": []}}))
        (directory / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}))
        said = lambda: json.loads(self.generate(directory, "--prompt", "the", "--max-tokens", 1, "--json"))["prompt_ids"]
        ids = said()
        self.assertEqual(ids[0], 1)
        (directory / "tokenizer_config.json").write_text("{}")
        self.assertEqual(said(), ids[1:])
        (directory / "tokenizer.model").unlink()
        self.assertIn("puts U+2581 for a space", self.generate(directory, "--prompt", "the", status=4))

    def test_what_cannot_be_is_refused(self):
        config = dict(CONFIGS["gpt2"])
        directory = make_directory(self.root / "hf", config, make_tensors(config, "F32"), 1, False)
        self.assertIn("no tokenizer lies with the weights", self.generate(directory, "--prompt", "a", status=2))
        bytes_too = (directory, "--tokenizer", "bytes")
        self.assertIn("the model takes", self.generate(*bytes_too, "--prompt", "a", "--max-tokens", 100000, status=2))
        self.assertIn("it is empty", self.generate(*bytes_too, "--prompt", "", status=2))
        self.assertIn("not UTF-8: byte 1", self.generate(*bytes_too, "--prompt", "-", stdin=b"a\xff", status=4))
        self.assertIn("there is no template", self.generate(*bytes_too, "--prompt", "a", "--chat", "none", status=2))
        self.assertIn("nowhere", self.generate("nowhere", "--prompt", "a", status=5))


if __name__ == "__main__":
    unittest.main(verbosity=2)
