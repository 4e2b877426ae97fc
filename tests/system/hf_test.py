"""Hugging Face directories in and out: `import`, `model.from` and `export`. tests/parity compares with transformers itself."""

import json
import math
import re
import signal
import struct
import time
import unittest

from hf_support import *
from nodes_test import NodesTest
from support import *

JOB = """\
name: from
seed: 7
output: {output}
device: cpu
threads: 1
model: {{from: {source}{model}}}
batch: {{global: 4, micro: 1}}
precision: fp32
optimizer: {{name: adamw, lr: {lr}, schedule: {{kind: constant}}}}
steps: {steps}
data: {{train: [{data}], format: text, tokenizer: bytes, other_tokenizer: allow}}
checkpoint: {{every: 2}}
metrics: {{listen: "off"}}
"""
# A learning rate this small changes no fp32 number except near 0.
STILL = 1e-30
LAYOUTS = {
    "one": [],
    "tp2": ["parallel.tp=2"],
    "pp2": ["parallel.pp=2"],
    "dp2-zero1": ["parallel.dp=2", "parallel.zero=1"],
    "dp2-zero3": ["parallel.dp=2", "parallel.zero=3"],
    "tp2-pp2": ["parallel.tp=2", "parallel.pp=2"],
}


@sliced(6)
class HuggingFace(NodesTest):
    def source(self, family, name="source", dtype="F32", shards=1, tokenizer=True, **changes):
        config = {**CONFIGS[family], **changes}
        tensors = make_tensors(config, dtype)
        return make_directory(self.root / name, config, tensors, shards, tokenizer), tensors

    def command(self, *args, status=0):
        """Standard output, or the error text of a refusal."""
        run = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=120)
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        return run.stdout if status == 0 else run.stderr

    def from_job(self, source, name="a", model="", lr=STILL, steps=1):
        path = self.root / f"{name}.yaml"
        path.write_text(JOB.format(output=self.root / name, data=self.data, source=source, model=model, lr=lr, steps=steps))
        return path

    def assert_same(self, directory, tensors, dtype=None):
        found = read_directory(directory)
        self.assertEqual(set(found), set(tensors))
        for name, (was, shape, raw) in tensors.items():
            self.assertEqual(found[name][1], shape, name)
            if dtype in (None, was):
                self.assertEqual(found[name], (was, shape, raw), name)
            else:
                self.assertEqual((found[name][0], found[name][2]), (dtype, widened(raw, was)), name)

    def test_import_and_export_of_every_family_give_back_every_bit(self):
        for family in CONFIGS:
            for dtype, shards in (("F32", 1), ("BF16", 3), ("F16", 1)):
                with self.subTest(family=family, dtype=dtype):
                    name = f"{family}-{dtype}"
                    directory, tensors = self.source(family, name, dtype, shards)
                    printed = self.command("import", directory, "--out", self.root / (name + ".ckpt"))
                    self.assertIn(f"  from: {self.root / (name + '.ckpt')}\n", printed)
                    self.assertTrue(printed.startswith("model:\n"))
                    self.command("checkpoint", "verify", self.root / (name + ".ckpt"))
                    out = self.root / (name + ".out")
                    self.assertIn("tokenizer: tokenizer.json, tokenizer_config.json",
                                  self.command("export", self.root / (name + ".ckpt"), "--out", out))
                    self.assert_same(out, tensors, "F32" if dtype == "F16" else None)
                    self.assertEqual((out / "tokenizer.json").read_text(), (directory / "tokenizer.json").read_text())
                    self.assertEqual((out / "generation_config.json").read_text(), (directory / "generation_config.json").read_text())
                    # The config is unchanged.
                    was, now = json.loads((directory / "config.json").read_text()), json.loads((out / "config.json").read_text())
                    self.assertEqual(now["architectures"], was["architectures"])
                    self.assertEqual(now["torch_dtype"], "bfloat16" if dtype == "BF16" else "float32")
                    for key in ("eos_token_id", "vocab_size", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "n_positions"):
                        if key in was:
                            self.assertEqual(now[key], was[key], key)
                    again = self.root / (name + ".again")
                    self.command("import", out, "--out", again)
                    self.command("export", again, "--out", self.root / (name + ".out2"))
                    self.assert_same(self.root / (name + ".out2"), tensors, "F32" if dtype == "F16" else None)
                    if dtype == "F16":
                        self.command("export", again, "--out", self.root / (name + ".out16"), "--dtype", "fp16")
                        self.assert_same(self.root / (name + ".out16"), tensors)
                        self.assertEqual(json.loads((self.root / (name + ".out16") / "config.json").read_text())["torch_dtype"], "float16")
                    self.assertFalse(list(self.root.glob("*.partial*")))

    def test_trained_on_any_layout_the_weights_come_out_as_they_went_in(self):
        for family in CONFIGS:
            directory, tensors = self.source(family, family)
            checkpoint = self.root / (family + ".ckpt")
            self.command("import", directory, "--out", checkpoint)
            few = ("tp2-pp2", "dp2-zero3")
            for layout in LAYOUTS if family in ("llama", "gpt2") else few:
                # Layouts alternate between the directory and the checkpoint as source.
                source = directory if len(layout) % 2 else checkpoint
                with self.subTest(family=family, layout=layout, source=source.name):
                    name = f"{family}-{layout}"
                    still = ["optimizer.expert_bias_rate=0"] if family in ("glm4_moe", "dots1", "deepseek_v3", "minimax_m2") else []
                    flags = [word for flag in LAYOUTS[layout] + still for word in ("--set", flag)]
                    self.run_job(self.from_job(source, name), *flags)
                    out = self.root / (name + ".out")
                    self.command("export", self.root / name, "--out", out)
                    self.assert_same(out, tensors)
                    self.assertTrue((out / "tokenizer.json").exists())

    def test_layers_that_predict_further_tokens_are_left_out(self):
        source, tensors = self.source("glm4_moe")
        beyond = {"model.layers.2.eh_proj.weight": ("F32", (4, 4), b"\0" * 64)}
        further = make_directory(self.root / "further", {**CONFIGS["glm4_moe"]}, tensors | beyond)
        printed = subprocess.run([BINARY, "import", further, "--out", self.root / "further.ckpt"], capture_output=True, text=True, timeout=120)
        self.assertEqual(printed.returncode, 0, printed.stderr)
        self.assertIn("num_nextn_predict_layers is 1: layers that predict further tokens are left out", printed.stdout + printed.stderr)
        self.command("export", self.root / "further.ckpt", "--out", self.root / "out")
        self.assert_same(self.root / "out", tensors)
        self.assertEqual(json.loads((self.root / "out" / "config.json").read_text())["num_nextn_predict_layers"], 0)
        # As many as config.json says: more are of another model.
        many = make_directory(self.root / "many", CONFIGS["glm4_moe"], tensors | {"model.layers.3.eh_proj.weight": next(iter(beyond.values()))})
        self.assertIn("holds tensors that glm4_moe models do not have: model.layers.3.eh_proj.weight",
                      self.command("import", many, "--out", self.root / "many.ckpt", status=5))
        # A layer of the model itself must be known.
        odd = make_directory(self.root / "odd", CONFIGS["glm4_moe"], tensors | {"model.layers.1.eh_proj.weight": beyond.popitem()[1]})
        self.assertIn("holds tensors that glm4_moe models do not have: model.layers.1.eh_proj.weight",
                      self.command("import", odd, "--out", self.root / "odd.ckpt", status=5))

    def test_nodes_begin_from_the_weights_and_go_on_from_their_checkpoint(self):
        source, tensors = self.source("llama")
        layout = ["--set", "parallel={tp: 2, dp: 2, zero: 1}"]
        self.run_job(self.from_job(source, "one", lr=1e-2, steps=4), *layout)
        self.finish(self.start_nodes(self.from_job(source, "two", lr=1e-2, steps=4), *layout, "--stop-after", "2"))
        outputs = self.finish(self.start_nodes(self.from_job(source, "two", lr=1e-2, steps=4), *layout))
        self.assertIn("resuming from", outputs[0])
        losses = lambda name: [s["loss"] for s in self.steps(name)]
        for one, two in zip(losses("one"), losses("two"), strict=True):
            self.assertAlmostEqual(one, two, delta=1e-5 * one)
        # Each node reads its ranks' slices: all bits are the same.
        self.finish(self.start_nodes(self.from_job(source, "still"), *layout))
        self.command("export", self.root / "still", "--out", self.root / "out")
        self.assert_same(self.root / "out", tensors)
        # With adapters every node reads the base again.
        lora = ["--set", "lora={rank: 4, alpha: 8}", *layout]
        self.run_job(self.from_job(source, "lora", lr=1e-2, steps=4), *lora)
        for stop in (["--stop-after", "2"], []):
            self.finish(self.start_nodes(self.from_job(source, "lora-two", lr=1e-2, steps=4), *lora, *stop))
        for one, two in zip(losses("lora"), losses("lora-two"), strict=True):
            self.assertAlmostEqual(one, two, delta=1e-5 * one)

    def test_a_run_begins_from_the_weights_and_goes_on_from_its_own_checkpoint(self):
        directory, _ = self.source("llama")
        self.command("import", directory, "--out", self.root / "ckpt")
        self.run_job(self.from_job(directory, "a", lr=1e-3, steps=4))
        self.run_job(self.from_job(self.root / "ckpt", "b", lr=1e-3, steps=4))
        self.assertEqual(self.losses("a"), self.losses("b"))
        # The weights differ from those of the seed.
        keys = ", layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 259, seq_len: 32, rope_theta: 5.0e+5"
        seeded = self.from_job("x", "c", keys, lr=1e-3, steps=1)
        seeded.write_text(seeded.read_text().replace("from: x, ", ""))
        self.run_job(seeded)
        self.assertNotEqual(self.losses("c")[0], self.losses("a")[0])
        start = next(e for e in self.events("a") if e["event"] == "start")
        self.assertRegex(start["message"], rf"from the weights of {directory} \(xxh3 [0-9a-f]{{32}}\)")
        # Two parts give the same run; the second starts from the checkpoint.
        self.run_job(self.from_job(directory, "d", lr=1e-3, steps=4), "--set", "steps=2")
        self.run_job(self.from_job(directory, "d", lr=1e-3, steps=4))
        self.assertEqual(self.losses("d"), self.losses("a"))
        self.assertTrue(any(e["event"] == "resume" for e in self.events("d")))
        # From a run's output only the newest checkpoint's weights are taken.
        self.run_job(self.from_job(self.root / "a", "e", lr=1e-3, steps=1))
        self.assertEqual([s["step"] for s in self.steps("e")], [1])
        self.assertNotEqual(self.losses("e")[0][1], self.losses("a")[0][1])
        self.command("export", self.root / "e", "--out", self.root / "e.out")
        self.assertTrue((self.root / "e.out" / "tokenizer.json").exists(), "the tokenizer goes on from run to run")

    def test_the_average_of_the_weights_is_saved_goes_on_and_is_exported(self):
        directory, tensors = self.source("llama")
        ema = ("--set", "ema.decay=0.5", "--set", "checkpoint.every=1", "--set", "checkpoint.keep=9", "--set", "parallel.dp=2")
        self.run_job(self.from_job(directory, "plain", lr=1e-2, steps=4), *ema[2:])
        self.run_job(self.from_job(directory, "whole", lr=1e-2, steps=4), *ema)
        self.assertEqual(self.losses("whole"), self.losses("plain"))
        # The average of the weights after each step, from the initial ones.
        average = {name: struct.unpack(f"<{len(raw) // 4}f", raw) for name, (_, _, raw) in tensors.items()}
        for i, checkpoint in enumerate(self.checkpoints("whole")):
            out = self.root / f"step{i}"
            self.command("export", checkpoint, "--out", out)
            for name, (_, _, raw) in read_directory(out).items():
                weights = struct.unpack(f"<{len(raw) // 4}f", raw)
                average[name] = [0.5 * a + 0.5 * w for a, w in zip(average[name], weights)]
        self.command("export", self.root / "whole", "--ema", "--out", self.root / "average")
        found = read_directory(self.root / "average")
        self.assertEqual(set(found), set(average))
        for name, (dtype, shape, raw) in found.items():
            self.assertEqual((dtype, shape), ("F32", tensors[name][1]))
            for a, b in zip(struct.unpack(f"<{len(raw) // 4}f", raw), average[name]):
                self.assertAlmostEqual(a, b, delta=1e-6)
        # Two parts give the same bits; another layout differs by rounding.
        for name, flags in (("parts", ()), ("moved", ("--set", "parallel.dp=1", "--set", "parallel.tp=2"))):
            self.run_job(self.from_job(directory, name, lr=1e-2, steps=4), *ema, "--set", "steps=2")
            self.run_job(self.from_job(directory, name, lr=1e-2, steps=4), *ema, *flags)
            self.command("export", self.root / name, "--ema", "--out", self.root / (name + ".average"))
            again = read_directory(self.root / (name + ".average"))
            if name == "parts":
                self.assertEqual(again, found)
            for tensor, (_, _, raw) in again.items():
                for a, b in zip(struct.unpack(f"<{len(raw) // 4}f", raw), average[tensor]):
                    self.assertAlmostEqual(a, b, delta=1e-3)
        self.assertIn("holds no average of the weights", self.command("export", self.root / "plain", "--ema", "--out", self.root / "none", status=5))
        self.assertIn("ema: the checkpoint has absent, the job true",
                      self.run_job(self.from_job(directory, "plain", lr=1e-2, steps=5), *ema, status=5))
        self.run_job(self.from_job(directory, "whole", lr=1e-2, steps=5), *ema[2:])

    def test_biases_of_experts_have_no_average_and_stay_in_fp32(self):
        directory, tensors = self.source("glm4_moe")
        self.run_job(self.from_job(directory, "moved", lr=1e-2, steps=4), "--set", "ema.decay=0.5", "--set", "optimizer.expert_bias_rate=0.25",
                     "--set", "parallel={dp: 2, zero: 3}")
        for name, flags in (("last", ()), ("average", ("--ema",)), ("half", ("--dtype", "bf16"))):
            self.command("export", self.root / "moved", *flags, "--out", self.root / name)
        last, average, half = (read_directory(self.root / name) for name in ("last", "average", "half"))
        biases = [name for name in tensors if name.endswith("e_score_correction_bias")]
        self.assertEqual(len(biases), 1)
        for name in tensors:
            self.assertEqual(half[name][0], "F32" if name in biases else "BF16", name)
            if name in biases:
                self.assertEqual(last[name], average[name])
                self.assertEqual(last[name], half[name])
                before, after = (struct.unpack("<4f", of[name][2]) for of in (tensors, last))
                # Each of four steps moves a bias by 0.25, or leaves it.
                moves = [(b - a) * 4 for a, b in zip(before, after)]
                self.assertTrue(any(abs(m) > 0.5 for m in moves), moves)
                for move in moves:
                    self.assertAlmostEqual(move, round(move), delta=1e-5)
            elif "layernorm" not in name:
                self.assertNotEqual(last[name], average[name], name)
        # Like a model of bf16 alone it is generated from in bf16: drawing far from the likeliest shows the difference to fp32.
        draw = ("generate", self.root / "half", "--prompt", "a", "--tokenizer", "bytes", "--max-tokens", "20", "--temperature", "3", "--seed", "4", "--ignore-eos",
                "--json")
        found, bf16, fp32 = (json.loads(self.command(*draw, *more))["ids"] for more in ((), ("--precision", "bf16"), ("--precision", "fp32")))
        self.assertEqual(found, bf16)
        self.assertNotEqual(found, fp32)

    def test_fresh_does_not_move_the_weights_away_that_it_begins_from(self):
        directory, _ = self.source("llama")
        self.run_job(self.from_job(directory))
        before = sorted(p.name for p in self.root.iterdir())
        self.assertIn("which would be moved aside", self.run_job(self.from_job(self.root / "a"), "--fresh", status=2))
        self.assertEqual(sorted(p.name for p in self.root.iterdir()), before)
        self.run_job(self.from_job(self.root / "a", "b"), "--fresh")

    def test_data_of_another_tokenizer_than_the_weights_is_refused_or_allowed(self):
        tokenizer = (ROOT / "tests" / "io" / "tokenizers" / "gpt2.json").read_bytes()
        directory, _ = self.source("llama", vocab_size=1 + max(token["id"] for token in json.loads(tokenizer)["added_tokens"]))
        (directory / "tokenizer.json").write_bytes(tokenizer)
        (self.root / "other.json").write_bytes(tokenizer + b"\n")
        (self.root / "text.jsonl").write_text(json.dumps({"text": "1 2 3 4 " * 200}) + "\n")
        for name, file in (("same", directory / "tokenizer.json"), ("other", self.root / "other.json")):
            self.command("data", "prepare", self.root / "text.jsonl", "--out", self.root / name, "--tokenizer", file)
        def on_data(job, data, **sets):
            return [job, "--set", f"data={{train: [{data}], format: tokens" + "".join(f", {key}: {value}" for key, value in sets.items()) + "}"]

        same, other = self.from_job(directory, "same-run"), self.from_job(directory, "other-run")
        self.command("validate", *on_data(same, self.root / "same"))
        self.run_job(*on_data(same, self.root / "same"))
        for said in (self.command("validate", *on_data(other, self.root / "other"), status=4), self.run_job(*on_data(other, self.root / "other"), status=4)):
            self.assertIn("the data was prepared by the tokenizer", said)
            self.assertIn("set data.other_tokenizer: allow", said)
        self.assertFalse((self.root / "other-run" / "tokenizer").exists())
        self.run_job(*on_data(other, self.root / "other", other_tokenizer="allow"))
        self.assertIn("was not compared", subprocess.run([BINARY, "validate", *on_data(other, self.root / "nowhere")], capture_output=True, text=True).stderr)
        # Bytes of text are not this tokenizer's ids: the error names the command that prepares the data.
        text = self.data
        bytes_too = [self.from_job(directory, "text-run"), "--set", f"data={{train: [{text}], format: text}}"]
        for said in (self.command("validate", *bytes_too, status=4), self.run_job(*bytes_too, status=4)):
            self.assertIn("data.format: text gives one token a byte, and the model has a tokenizer", said)
        command = re.search(r"\(trainerd (data prepare .*?)\)", said)[1].split()
        self.assertEqual(command, ["data", "prepare", str(text), "--out", "tokens", "--tokenizer", str(directory / "tokenizer.json")])
        subprocess.run([BINARY, *command], cwd=self.root, check=True, capture_output=True)
        self.command("validate", *on_data(same, self.root / "tokens"))
        # The check also applies to a resumed run with other data.
        on = ["--set", "steps=2"]
        self.assertIn("the data was prepared by the tokenizer",
                      self.run_job(*on_data(same, self.root / "other", on_change="continue"), *on, status=4))
        self.run_job(*on_data(same, self.root / "same"), *on)

    def test_what_lies_beside_the_output_is_left_alone(self):
        directory, tensors = self.source("llama", "m.partial")
        thesis = self.root / "n.partial" / "thesis"
        thesis.mkdir(parents=True)
        for name in ("m", "n"):
            self.command("import", directory, "--out", self.root / name)
        self.assert_same(directory, tensors)
        self.assertTrue(thesis.is_dir())
        self.assertEqual(sorted(p.name for p in self.root.glob("*.partial*")), ["m.partial", "n.partial"])

    def test_a_checkpoint_named_from_its_folder_has_its_tokenizer(self):
        directory, _ = self.source("llama")
        self.run_job(self.from_job(directory))
        [checkpoint] = self.checkpoints()
        done = subprocess.run([BINARY, "export", checkpoint.name, "--out", self.root / "out"], cwd=checkpoint.parent, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.root / "out" / "tokenizer.json").exists())

    def test_a_value_that_bf16_cannot_hold_is_not_written_as_infinite(self):
        directory, _ = self.source("llama")
        [file] = directory.glob("*.safetensors")
        data = file.read_bytes()
        file.write_bytes(data[:-4] + struct.pack("<f", 3.4e38))
        self.command("import", directory, "--out", self.root / "ckpt")
        self.command("export", self.root / "ckpt", "--out", self.root / "wide")
        self.assertIn("finite", self.command("export", self.root / "ckpt", "--out", self.root / "narrow", "--dtype", "bf16", status=5))
        self.assertFalse((self.root / "narrow").exists())
        file.write_bytes(data[:-4] + struct.pack("<f", 65520))
        self.command("import", directory, "--out", self.root / "ckpt16")
        last = max(safetensors_places(data).items(), key=lambda item: item[1])[0]
        self.assertRegex(self.command("export", self.root / "ckpt16", "--out", self.root / "narrow", "--dtype", "fp16", status=5),
                         re.escape(last) + ": value [0-9]+ is 65520, and fp16 holds 65504 at most: export by --dtype bf16 or fp32")
        self.assertEqual(list(self.root.glob("narrow*")), [])

    def test_fields_that_say_what_is_so_anyway_are_taken(self):
        directory, tensors = self.source("qwen2", use_mrope=False, rope_interleaved=False)
        self.command("import", directory, "--out", self.root / "ckpt")
        self.command("export", self.root / "ckpt", "--out", self.root / "out")
        self.assert_same(self.root / "out", tensors)
        # As in Phi-4-mini's file.
        phi, tensors = self.source("phi3", "phi", auto_map={"AutoConfig": "configuration_phi3.Phi3Config"}, full_attn_mod=1, interpolate_factor=1,
                                   lm_head_bias=False, mlp_bias=False)
        done = subprocess.run([BINARY, "import", phi, "--out", self.root / "phi.ckpt"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("auto_map names a program of the directory's own, which is not run", done.stderr)
        self.command("export", self.root / "phi.ckpt", "--out", self.root / "phi-out")
        self.assert_same(self.root / "phi-out", tensors)
        self.assertNotIn("auto_map", json.loads((self.root / "phi-out" / "config.json").read_text()))
        (directory / "config.json").write_text(json.dumps({**CONFIGS["qwen2"], "use_mrope": True}))
        self.assertIn("use_mrope", self.command("import", directory, "--out", self.root / "other", status=5))

    def test_keys_that_disagree_with_the_source_are_named_with_both_values(self):
        directory, _ = self.source("gpt2")
        self.assertIn("layers: 2", self.command("validate", self.from_job(directory)))
        for model, said in (
            (", layers: 3", "model.layers: 3 is not the 2 of model.from"),
            (", norm_eps: 1.0e-6", "model.norm_eps: 1e-06 is not the 1e-05 of model.from"),
            (", preset: gpt2-124m", "model.hidden: 768 is not the 32 of model.from"),
            (", seq_len: 64", "model.seq_len: 64 is more than the 32 tokens"),
        ):
            self.assertIn(said, self.command("validate", self.from_job(directory, model=model), status=2))
        self.assertIn("seq_len: 16", self.command("validate", self.from_job(directory, model=", seq_len: 16")))
        # A key may be given with the value of its absence: here the head size.
        gemma, _ = self.source("gemma3_text", "gemma", query_pre_attn_scalar=16)
        scores = ", attention: {{query_pre_attn_scalar: {}}}"
        self.command("validate", self.from_job(gemma, model=scores.format(16)))
        self.assertIn("model.attention.query_pre_attn_scalar: 24 is not the default of model.from",
                      self.command("validate", self.from_job(gemma, model=scores.format(24)), status=2))
        self.run_job(self.from_job(directory, "short", ", seq_len: 16"))
        self.command("export", self.root / "short", "--out", self.root / "out")
        self.assertEqual(json.loads((self.root / "out" / "config.json").read_text())["n_positions"], 16)
        llama, _ = self.source("llama", "llama")
        self.run_job(self.from_job(llama, "long", ", seq_len: 64"))
        missing = self.from_job(self.root / "nowhere")
        for command in ("validate", "run"):
            self.assertIn("there is no directory", self.command(command, missing, status=2))

    def test_what_the_model_cannot_express_is_refused_by_its_field(self):
        longrope = {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 8192}
        for number, (family, changes, said) in enumerate((
            ("llama", {"rope_scaling": {**longrope, "short_factor": [1.0] * 4}}, "rope_scaling: long_factor has 0 factors; a head has 4 pairs"),
            ("llama", {"rope_scaling": {**longrope, "short_factor": 1.0}}, "rope_scaling.short_factor: expected a list of numbers, found 1.0"),
            ("llama", {"rope_scaling": {**longrope, "long_factor": [1.0, 0, 2.0, 4.0]}}, "rope_scaling.long_factor: expected a number above 0, found 0"),
            ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
            ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 4}}, '"beta_fast" is not known with linear scaling'),
            ("mistral", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, 'rope_parameters: "dynamic" scaling'),
            ("qwen2", {"layer_types": ["full_attention"]}, "layer_types: has 1 layers of 2"),
            ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "use_sliding_window is not true"),
            ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
            ("llama", {"hidden_act": "gelu"}, 'hidden_act: "gelu" is not available yet'),
            ("llama", {"attention_bias": 1}, "attention_bias: expected true or false, found 1"),
            ("phi3", {"attention_bias": True}, "attention_bias: true is not available yet"),
            ("phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling: the family has longrope scaling alone, not linear"),
            ("granite", {"residual_multiplier": 0}, "residual_multiplier: expected a number above 0, found 0"),
            ("qwen2", {"layer_types": ["full_attention", "linear_attention"]}, 'layer_types: "linear_attention"'),
            ("gpt2", {"activation_function": "gelu"}, 'activation_function: "gelu"'),
            ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: true"),
            ("gemma2", {"hidden_act": "silu", "hidden_activation": "silu"}, 'hidden_activation: "silu" is not available yet'),
            ("gemma3_text", {"hidden_activation": "gelu"}, 'hidden_activation: "gelu" is not available yet'),
            ("deepseek_v3", {"num_key_value_heads": 2}, "num_key_value_heads: is 2, and with latents there are as many as heads, 4"),
            ("deepseek_v3", {"rope_interleave": False}, "rope_interleave: false is not available yet"),
            ("deepseek_v3", {"quantization_config": {"quant_method": "fp8"}}, "in FP8 in blocks of 128 x 128 are read"),
            ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank: is missing"),
            ("deepseek_v3", {"topk_method": "greedy"}, 'topk_method: "greedy" is not available yet'),
            ("deepseek_v3", {"n_group": 3}, "n_group: 3 groups of which a token has 1 do not fit 4 experts"),
            ("deepseek_v3", {"n_group": 4, "topk_group": 2}, "n_group: leaves one expert in a group, and the family judges a group by its two best"),
            ("deepseek_v3", {"n_routed_experts": 64, "n_group": 64}, "n_group: 64 groups are more than the 32 of a job"),
            ("deepseek_v3", {"qk_rope_head_dim": 5}, "qk_rope_head_dim: 5 is odd"),
            ("deepseek_v3", {"first_k_dense_replace": 2}, "num_hidden_layers: all 2 layers are dense: none has experts"),
            ("deepseek_v2", {"topk_method": "noaux_tc"}, 'topk_method: is "noaux_tc": greedy and group_limited_greedy are available'),
            ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping: is not a field of LlamaForCausalLM"),
            ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
            ("llama", {"model_type": "gemma"}, 'model_type "gemma" is not available: the families are llama, mistral'),
            ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "architectures is"),
            ("llama", {"hidden_size": None}, "hidden_size: is missing"),
            ("llama", {"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide the 4 query heads"),
        )):
            with self.subTest(changes=changes):
                directory, _ = self.source(family, f"s{number}")
                config = {**CONFIGS[family], **changes}
                (directory / "config.json").write_text(json.dumps(config))
                self.assertIn(said, self.command("import", directory, "--out", self.root / "ckpt", status=5))
                self.assertIn(said, self.command("validate", self.from_job(directory), status=2))
                self.assertFalse((self.root / "ckpt").exists())
                self.assertFalse(list(self.root.glob("*.partial*")))

    def test_weights_in_fp8_blocks_come_in_as_bf16(self):
        """As DeepSeek-V3's own: E4M3 with a scale for each block of 128 x 128."""
        config = {**CONFIGS["deepseek_v3"], "hidden_size": 136, "moe_intermediate_size": 130, "torch_dtype": "bfloat16",
                  "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}}
        rng = random.Random(7)

        def value(byte):
            exponent, fraction = byte >> 3 & 15, byte & 7
            return (-1 if byte & 128 else 1) * (fraction * 2.0 ** -9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10))

        def bf16(x):
            [bits] = struct.unpack("<I", struct.pack("<f", x))
            return struct.pack("<H", (bits + 0x7fff + (bits >> 16 & 1)) >> 16)

        stored, expected = {}, {}
        for name, (dtype, shape, raw) in make_tensors(config, "BF16").items():
            stored[name] = expected[name] = (dtype, shape, raw)
            if not name.endswith(("_proj.weight", "_mqa.weight")):
                continue
            raw = bytes(rng.choice([b for b in range(256) if b & 127 not in (0, 127)]) for _ in range(shape[0] * shape[1]))
            blocks = [(n + 127) // 128 for n in shape]
            packed_scales = struct.pack(f"<{blocks[0] * blocks[1]}f", *(rng.uniform(5e-4, 2e-3) for _ in range(blocks[0] * blocks[1])))
            scales = struct.unpack(f"<{blocks[0] * blocks[1]}f", packed_scales)
            of = [scales[r // 128 * blocks[1] + c // 128] for r in range(shape[0]) for c in range(shape[1])]
            # The product of an E4M3 number and an fp32 one, rounded to fp32 first.
            products = struct.unpack(f"<{len(raw)}f", struct.pack(f"<{len(raw)}f", *(value(byte) * scale for byte, scale in zip(raw, of))))
            stored[name] = ("F8_E4M3", shape, raw)
            stored[name + "_scale_inv"] = ("F32", tuple(blocks), packed_scales)
            expected[name] = ("BF16", shape, b"".join(map(bf16, products)))
        directory = make_directory(self.root / "fp8", config, stored, shards=2)
        self.command("import", directory, "--out", self.root / "fp8.ckpt")
        self.command("export", self.root / "fp8.ckpt", "--out", self.root / "fp8-out")
        self.assert_same(self.root / "fp8-out", expected)
        self.assertNotIn("quantization_config", json.loads((self.root / "fp8-out" / "config.json").read_text()))
        # A run from it begins with the same weights as one from its import, in fp32 too.
        losses = []
        for name, source in (("direct", directory), ("imported", self.root / "fp8.ckpt")):
            self.run_job(self.from_job(source, name), "--set", "optimizer.expert_bias_rate=0")
            losses.append(json.loads((self.root / name / "steps.jsonl").read_text().splitlines()[0])["loss"])
        self.assertEqual(*losses)
        # Training reads parts of it.
        self.run_job(self.from_job(directory, "fp8-run"), "--set", "parallel.tp=2", "--set", "optimizer.expert_bias_rate=0", "--set", "precision=bf16")
        self.command("export", self.root / "fp8-run", "--out", self.root / "fp8-trained", "--dtype", "bf16")
        self.assert_same(self.root / "fp8-trained", expected)
        for number, (name, wrong, said) in enumerate((
            ("model.layers.0.self_attn.o_proj.weight_scale_inv", None, "is in FP8, and has no _scale_inv of F32"),
            ("model.layers.0.self_attn.o_proj.weight_scale_inv", ("F32", (1,), b"\0\0\x80\x3f"), "is in FP8, and has no _scale_inv of F32"),
            ("model.layers.0.self_attn.o_proj.weight", ("F8_E4M3", (136, 32), b"\x7f" * (136 * 32)), "not finite"),
        )):
            broken = {key: tensor for key, tensor in (stored | {name: wrong}).items() if tensor is not None}
            self.assertIn(said, self.command("import", make_directory(self.root / f"bad{number}", config, broken), "--out", self.root / "bad", status=5))

    def test_experts_in_mxfp4_are_read_as_transformers_reads_them(self):
        config = {**CONFIGS["gpt_oss"], "intermediate_size": 64, "torch_dtype": "bfloat16",
                  "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}}
        rng = random.Random(7)
        magnitudes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
        stored, expected = {}, {}
        for name, (dtype, shape, raw) in make_tensors(config, "BF16").items():
            expected[name] = (dtype, shape, raw)
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                stored[name] = expected[name]
                continue
            # [experts, outputs, blocks of 32 inputs]; two values per byte, none of them 0.
            experts, inputs, outputs = shape
            blocks = inputs // 32
            values = [rng.choice([v for v in range(16) if v & 7]) for _ in range(experts * outputs * inputs)]
            scales = [rng.randrange(118, 126) for _ in range(experts * outputs * blocks)]
            stored[name + "_blocks"] = ("U8", (experts, outputs, blocks, 16), bytes(values[i] | values[i + 1] << 4 for i in range(0, len(values), 2)))
            stored[name + "_scales"] = ("U8", (experts, outputs, blocks), bytes(scales))
            at = lambda x, o, i: (x * outputs + o) * inputs + i
            real = [(-1 if values[k] & 8 else 1) * magnitudes[values[k] & 7] * 2.0 ** (scales[k // 32] - 127)
                    for k in (at(x, o, i) for x in range(experts) for i in range(inputs) for o in range(outputs))]
            expected[name] = ("BF16", shape, packed(real, "BF16"))
        directory = make_directory(self.root / "fp4", config, stored, shards=2)
        printed = subprocess.run([BINARY, "import", directory, "--out", self.root / "fp4.ckpt"], capture_output=True, text=True, timeout=120)
        self.assertEqual(printed.returncode, 0, printed.stderr)
        self.assertIn("experts in MXFP4 are read as bf16", printed.stdout + printed.stderr)
        self.command("export", self.root / "fp4.ckpt", "--out", self.root / "fp4-out")
        self.assert_same(self.root / "fp4-out", expected)
        self.assertNotIn("quantization_config", json.loads((self.root / "fp4-out" / "config.json").read_text()))
        # Training reads parts of it, of one expert or of all.
        for number, layout in enumerate((["parallel.tp=2"], ["parallel.dp=2", "parallel.ep=2", "parallel.zero=3"])):
            name = f"fp4-{number}"
            self.run_job(self.from_job(directory, name), *(word for key in layout for word in ("--set", key)))
            self.command("export", self.root / name, "--out", self.root / (name + ".out"), "--dtype", "bf16")
            self.assert_same(self.root / (name + ".out"), expected)
        blocks, scales = (f"model.layers.0.mlp.experts.down_proj_{end}" for end in ("blocks", "scales"))
        nan = bytes([255]) + stored[scales][2][1:]
        for number, (name, wrong, said) in enumerate((
            (scales, None, "model.layers.0.mlp.experts.down_proj is in MXFP4, and has no _blocks and _scales of U8"),
            (blocks, ("BF16", stored[blocks][1], stored[blocks][2] * 2), "is in MXFP4, and has no _blocks and _scales of U8"),
            (blocks, None, "tensors are missing: model.layers.0.mlp.experts.down_proj"),
            (scales, ("U8", stored[scales][1], nan), "not finite"),
        )):
            broken = {key: tensor for key, tensor in (stored | {name: wrong}).items() if tensor is not None}
            self.assertIn(said, self.command("import", make_directory(self.root / f"bad4-{number}", config, broken), "--out", self.root / "bad", status=5))

    def test_gpt_oss_whose_angles_are_not_scaled_comes_out_so(self):
        config = {**CONFIGS["gpt_oss"], "rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 150000}}
        del config["rope_theta"]
        tensors = make_tensors(config)
        self.command("import", make_directory(self.root / "plain", config, tensors), "--out", self.root / "plain.ckpt")
        self.command("export", self.root / "plain.ckpt", "--out", self.root / "plain.out")
        self.assert_same(self.root / "plain.out", tensors)
        self.assertEqual(json.loads((self.root / "plain.out" / "config.json").read_text())["rope_parameters"], {"rope_type": "default", "rope_theta": 150000})
        self.command("import", self.root / "plain.out", "--out", self.root / "plain.again")

    def test_gpt_oss_with_another_gate_or_without_its_angles_is_refused(self):
        for number, (changes, said) in enumerate((
            ({"swiglu_limit": 5.0}, "swiglu_limit: 5.0 is not available"),
            ({"rope_scaling": None}, "rope_scaling: is missing, and rope_parameters too"),
        )):
            config = {**CONFIGS["gpt_oss"], **changes}
            source = make_directory(self.root / f"odd{number}", config, make_tensors(config))
            self.assertIn(said, self.command("import", source, "--out", self.root / "odd.ckpt", status=5))

    def test_biases_on_attention_and_mlp_come_in_and_go_out_apart(self):
        for number, (family, changes, keys) in enumerate((
            ("llama", {"attention_bias": True}, ("attention_bias: true", "mlp_bias: false")),
            ("llama", {"mlp_bias": True}, ("attention_bias: false", "mlp_bias: true")),
            ("qwen3", {"attention_bias": True}, ("attention_bias: true",)),
            ("olmo2", {"attention_bias": True}, ("attention_bias: true",)),
            ("gemma3_text", {"attention_bias": True}, ("attention_bias: true",)),
            # Keys that some programs write and nothing reads.
            ("llama", {"unsloth_version": "2025.1", "num_logits_to_keep": 0}, ("attention_bias: false",)),
        )):
            with self.subTest(family=family, changes=changes):
                directory, tensors = self.source(family, f"b{number}", **changes)
                said = self.command("import", directory, "--out", self.root / f"b{number}.ckpt")
                for key in keys:
                    self.assertIn(key, said)
                self.run_job(self.from_job(directory, f"b{number}-run"), "--set", "parallel.tp=2")
                self.command("export", self.root / f"b{number}-run", "--out", self.root / f"b{number}-out")
                self.assert_same(self.root / f"b{number}-out", tensors)

    def test_sliding_windows_and_scaled_angles_come_in_and_go_out(self):
        """In the spellings of transformers 4 and 5. Training uses a layout and sequences longer than the window."""
        llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 0.5, "rope_theta": 1e4}
        plain_yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
        longrope = {"type": "su", "short_factor": [1.0, 1.1, 1.25], "long_factor": [1.0, 2.5, 7.75]}  # as in Phi-3's first files
        two = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
               "sliding_attention": {"rope_type": "default", "rope_theta": 5e3}}
        for number, (family, changes, keys, flags) in enumerate((
            ("llama", {"rope_scaling": llama3}, ("kind: llama3", "original_max_position: 16"), ["parallel.tp=2"]),
            ("mistral", {"sliding_window": 16, "rope_parameters": yarn}, ("window: 16", "kind: yarn", "attention_factor: 1.06"), ["parallel.pp=2"]),
            ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "rope_scaling": {"type": "linear", "factor": 2.0}},
             ("window: 8", "pattern: [full, sliding]", "kind: linear"), []),
            ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
             ("pattern: [sliding, full]",), ["parallel.dp=2", "parallel.zero=3"]),
            ("gemma3_text", {"sliding_window_pattern": None, "rope_theta": None, "layer_types": ["full_attention", "sliding_attention"],
                             "rope_local_base_freq": None, "rope_parameters": two},
             ("sliding_theta: 5000", "kind: linear", "query_pre_attn_scalar: 20", "norm_weight: less_one"),
             ["parallel.tp=2", "parallel.sequence_parallel=true"]),
            ("deepseek_v3", {"n_group": 1, "topk_group": 1, "rope_theta": None, "rope_scaling": None, "rope_parameters": yarn | {"beta_fast": 16}},
             ("kv_lora_rank: 16", "kind: yarn", "attention_factor: 1.06", "scale: 0.28"),
             ["parallel.tp=2", "parallel.sequence_parallel=true", "optimizer.expert_bias_rate=0"]),
            # Factors that no pair of mscale and mscale_all_dim says.
            ("deepseek_v3", {"n_group": 1, "topk_group": 1, "rope_scaling": {**plain_yarn, "mscale_all_dim": 0.7}}, ("kind: yarn", "scale: 0.3"), ["optimizer.expert_bias_rate=0"]),
            ("deepseek_v3", {"n_group": 1, "topk_group": 1, "rope_scaling": {**plain_yarn, "attention_factor": 0.5, "mscale_all_dim": 0.7}},
             ("attention_factor: 0.5", "scale: 0.3"), ["optimizer.expert_bias_rate=0"]),
            ("deepseek_v3", {"n_group": 1, "topk_group": 1, "rope_scaling": {**plain_yarn, "mscale": 0.7, "mscale_all_dim": 0}}, ("kind: yarn",), ["optimizer.expert_bias_rate=0"]),
            ("deepseek_v2", {"q_lora_rank": 8, "topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}, ("q_lora_rank: 8", "groups: 2"), ["parallel.tp=4"]),
            ("phi3", {"rope_scaling": longrope, "original_max_position_embeddings": 8},
             ("kind: longrope", "factor: 4", "original_max_position: 8", "short_factor: [1.0, 1.1, 1.25]", "long_factor: [1.0, 2.5, 7.75]"), ["parallel.tp=2"]),
        )):
            name = f"{family}{number}"
            with self.subTest(name):
                directory, tensors = self.source(family, name, **changes)
                said = self.command("import", directory, "--out", self.root / f"{name}.ckpt")
                for key in (*keys, "seq_len: 32\n"):
                    self.assertIn(key, said)
                self.run_job(self.from_job(self.root / f"{name}.ckpt", f"{name}-run"), *(w for f in flags for w in ("--set", f)))
                out = self.root / f"{name}-out"
                self.command("export", self.root / f"{name}-run", "--out", out)
                self.assert_same(out, tensors)
                self.assertEqual(said.partition("layers:")[2],
                                 self.command("import", out, "--out", self.root / f"{name}.again").partition("layers:")[2])
        config = json.loads((self.root / "qwen22-out" / "config.json").read_text())
        self.assertEqual((config["use_sliding_window"], config["sliding_window"], config["max_window_layers"], config["layer_types"]),
                         (True, 8, 1, ["full_attention", "sliding_attention"]))
        self.assertEqual(json.loads((self.root / "llama0-out" / "config.json").read_text())["rope_scaling"], llama3)
        config = json.loads((self.root / "phi310-out" / "config.json").read_text())
        self.assertEqual((config["rope_scaling"], config["original_max_position_embeddings"]), ({**longrope, "type": "longrope"}, 8))
        self.assertIn("model.attention.window: 4 is not the 16 of model.from", self.command(
            "validate", self.from_job(self.root / "mistral1", model=", attention: {window: 4}"), status=2))

    def test_a_count_of_shared_experts_that_a_file_leaves_out_is_the_familys(self):
        directory, _ = self.source("deepseek_v2")
        path = directory / "config.json"
        config = json.loads(path.read_text())
        del config["n_shared_experts"]
        path.write_text(json.dumps(config))
        self.assertIn("shared_ffn: 48", self.command("import", directory, "--out", self.root / "ckpt"))

    def test_damaged_directories_are_named_and_leave_nothing(self):
        def torn(path, tensors):
            (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-5])

        def changed(change):
            def apply(path, tensors):
                change(tensors)
                write_safetensors(path / "model.safetensors", tensors)
            return apply

        def rope(path, tensors):
            both = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 4.0}}
            (path / "config.json").write_text(json.dumps({**CONFIGS["llama"], **both}))

        def index(text):
            def apply(path, tensors):
                (path / "model.safetensors").unlink()
                (path / "model.safetensors.index.json").write_text(text)
            return apply

        q, nan = "model.layers.1.self_attn.q_proj.weight", struct_nan()
        for number, (damage, said) in enumerate((
            (torn, "model.safetensors: is damaged or was not fetched whole"),
            (changed(lambda t: t.pop(q)), f"tensors are missing: {q}"),
            (changed(lambda t: t.update({q: ("F32", (16, 64), t[q][2])})), f"{q} is [16, 64], by config.json it is [32, 32]"),
            (changed(lambda t: t.update({q: ("F32", (32, 32), nan + t[q][2][4:])})), f"{q} has a value that is not finite"),
            (changed(lambda t: t.update({"extra.weight": ("F32", (1,), b"1234")})), "do not have: extra.weight"),
            (changed(lambda t: t.update({q: ("I32", (32, 32), t[q][2])})), f"{q} is none of F32, BF16, F16 and F8_E4M3"),
            (lambda path, tensors: (path / "model.safetensors").unlink(), "has neither model.safetensors nor"),
            (lambda path, tensors: (path / "config.json").write_text("{"), "config.json: not valid JSON: parse error"),
            (lambda path, tensors: (path / "config.json").unlink(), "there is no such directory, or it has no config.json"),
            (lambda path, tensors: (path / "generation_config.json").write_text('{"eos_token_id": 2'), "generation_config.json: not valid JSON"),
            (lambda path, tensors: (path / "generation_config.json").write_text('{"eos_token_id": "</s>"}'), 'eos_token_id is "</s>"'),
            (rope, "rope_parameters: says another scaling than rope_scaling"),
            (index("{}"), 'index.json: "weight_map" is missing: fetch the file again'),
            (index('{"weight_map": {"a": "model-00002-of-00012.safetensors"}}'),
             "model-00002-of-00012.safetensors: model.safetensors.index.json names it, and it is not there: fetch every file"),
        )):
            with self.subTest(said=said):
                directory, tensors = self.source("llama", f"s{number}")
                damage(directory, tensors)
                output = self.command("import", directory, "--out", self.root / "ckpt", status=5)
                self.assertIn(said, output)
                self.assertNotIn("json.exception", output)
                self.assertFalse((self.root / "ckpt").exists())
                self.assertFalse(list(self.root.glob("*.partial*")))
        # A value that is not finite is detected on reading, also by a run.
        directory, tensors = self.source("llama", "nan")
        tensors[q] = ("F32", (32, 32), nan + tensors[q][2][4:])
        write_safetensors(directory / "model.safetensors", tensors)
        output = self.run_job(self.from_job(directory), status=5)
        self.assertIn(f"{directory}/model.safetensors: {q} has a value that is not finite (NaN or infinite), element 0", output)
        self.assertNotIn("they were checked", output)
        self.assertFalse((self.root / "a" / "job.yaml").exists())
        # Constant tables of old files and a head equal to the embedding are accepted; another head is not.
        directory, tensors = self.source("qwen2", "tied")
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (4,), b"\0" * 16)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        write_safetensors(directory / "model.safetensors", tensors)
        self.command("import", directory, "--out", self.root / "tied.ckpt")
        tensors["lm_head.weight"] = ("F32", (259, 32), b"".join(struct.pack("<f", -x) for x, in struct.iter_unpack("<f", tensors["lm_head.weight"][2])))
        write_safetensors(directory / "model.safetensors", tensors)
        self.assertIn("lm_head.weight is not the embedding", self.command("import", directory, "--out", self.root / "x", status=5))

    def test_an_interrupted_import_leaves_nothing(self):
        directory = self.root / "large"
        directory.mkdir()
        config = {**CONFIGS["gpt2"], "vocab_size": 8_000_000}  # 1 GB of zeros, sparse: takes no space on the disk
        (directory / "config.json").write_text(json.dumps(config))
        header, at = {}, 0
        for name, shape in shapes(config).items():
            size = 4 * math.prod(shape)
            header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        with open(directory / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + at)
        running = subprocess.Popen([BINARY, "import", directory, "--out", self.root / "ckpt"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while running.poll() is None and not list(self.root.glob("ckpt.partial-*")):
            time.sleep(0.001)
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(PATIENCE), -signal.SIGTERM)
        self.assertEqual(list(self.root.glob("ckpt*")), [])

    def test_export_reports_a_score_scale_that_transformers_5_does_not_support(self):
        for scalar, told in ((20.5, True), (20.0, False)):
            directory, _ = self.source("gemma2", f"g{scalar}", query_pre_attn_scalar=scalar)
            self.command("import", directory, "--out", self.root / f"c{scalar}")
            done = subprocess.run([BINARY, "export", self.root / f"c{scalar}", "--out", self.root / f"o{scalar}"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("query_pre_attn_scalar is 20.5, and transformers 5 takes an integer alone" in done.stderr, told, done.stderr)
            written = json.loads((self.root / f"o{scalar}" / "config.json").read_text())["query_pre_attn_scalar"]
            self.assertEqual((written, type(written)), (scalar, float) if told else (20, int))

    def test_export_splits_casts_and_refuses(self):
        directory, tensors = self.source("llama", dtype="BF16")
        self.command("import", directory, "--out", self.root / "ckpt")
        self.command("export", self.root / "ckpt", "--out", self.root / "fp32", "--dtype", "fp32", "--max-shard-size", "20KB")
        self.assertGreater(len(list((self.root / "fp32").glob("model-*.safetensors"))), 2)
        self.assert_same(self.root / "fp32", tensors, "F32")
        self.assertIn("exists already", self.command("export", self.root / "ckpt", "--out", self.root / "fp32", status=5))
        self.assertIn("exists already", self.command("import", directory, "--out", self.root / "ckpt", status=5))
        self.assertIn("expected a size", self.command("export", self.root / "ckpt", "--out", self.root / "x", "--max-shard-size", "5 apples",
                                                      status=2))
        self.run_job(self.from_job(self.root / "ckpt"))
        self.command("export", self.root / "a", "--out", self.root / "bf16", "--dtype", "bf16")
        self.assert_same(self.root / "bf16", tensors)
        # A missing tokenizer of the checkpoint is an error, unless it is left out explicitly.
        shutil.rmtree(self.root / "a" / "tokenizer")
        self.assertIn("--no-tokenizer", self.command("export", self.root / "a", "--out", self.root / "x", status=5))
        self.assertIn("left out", self.command("export", self.root / "a", "--out", self.root / "x", "--no-tokenizer"))

    def test_a_model_of_bytes_is_exported_and_says_that_it_has_no_tokenizer(self):
        short = ("--set", "steps=1", "--set", "optimizer.schedule.warmup=0")
        self.run_job(self.job(), *short, "--set", "parallel.tp=2", "--set", "model.vocab=257")
        printed = self.command("export", self.root / "a", "--out", self.root / "out")
        self.assertIn("LlamaForCausalLM", printed)
        self.assertIn("tokenizer: none", printed)
        self.assertEqual(read_directory(self.root / "out")["model.embed_tokens.weight"][1], (257, 64))
        self.command("import", self.root / "out", "--out", self.root / "ckpt")
        self.run_job(self.job(), *short, "--set", "model={layers: 1, hidden: 64, heads: 4, ffn: 128, vocab: 256, seq_len: 64, "
                     "norm: layer, mlp: gelu}", "--set", f"output={self.root / 'odd'}")
        self.assertIn("no Hugging Face family", self.command("export", self.root / "odd", "--out", self.root / "x", status=5))


def safetensors_places(data):
    """Tensor -> offset of its end."""
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    return {name: entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}


def struct_nan():
    return packed([float("nan")], "F32")


if __name__ == "__main__":
    unittest.main()
