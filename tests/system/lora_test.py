"""Adapters (LoRA) for a Hugging Face model: trained, stopped, resumed, exported. tests/parity compares with peft itself."""

import json
import math
import re
import struct
import unittest

from hf_support import *
from support import *

JOB = """\
name: lora
seed: 7
output: {output}
device: cpu
threads: 1
model: {{from: {source}}}
lora: {lora}
parallel: {{dp: 2}}
batch: {{global: 4, micro: 1}}
precision: fp32
optimizer: {{name: adamw, lr: 1.0e-2, schedule: {{kind: constant}}}}
steps: {steps}
data: {{train: [{data}], valid: [{data}], format: text, tokenizer: bytes, other_tokenizer: allow}}
checkpoint: {{every: 3, keep: 9}}
evaluate: {{every: {steps}, batches: 2}}
metrics: {{listen: "off"}}
"""
QKV = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}
PROJECTIONS = QKV | {"self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}


def floats(tensor):
    dtype, shape, raw = tensor
    return struct.unpack(f"<{math.prod(shape)}f", widened(raw, dtype))


@sliced(6)
class Lora(RunTest):
    def source(self, family="llama", name="base", seed=1):
        config = CONFIGS[family]
        return make_directory(self.root / name, config, make_tensors(config, seed=seed))

    def job(self, source, name="a", lora="{rank: 4, alpha: 8}", steps=8):
        path = self.root / f"{name}.yaml"
        path.write_text(JOB.format(output=self.root / name, data=self.data, source=source, lora=lora, steps=steps))
        return path

    def command(self, *args, status=0):
        run = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=120)
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        return run.stdout if status == 0 else run.stderr

    def evaluation(self, name):
        return next(e["loss"] for e in self.events(name) if e["event"] == "evaluation")

    def test_adapters_alone_are_trained_and_saved_and_a_kill_changes_no_bit(self):
        base = self.source()
        whole = self.run_job(self.job(base, "whole"))
        self.assertIn("LoRA of rank 4, alpha 8 on q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj", whole)
        losses = self.losses("whole")
        self.assertLess(float(losses[-1][1]), float(losses[0][1]) - 0.05)
        [newest] = [c for c in self.checkpoints("whole") if c.name.endswith("8")]
        manifest = json.loads((newest / "manifest.json").read_text())
        names = {name for shard in newest.glob("*.safetensors") for name in read_safetensors(shard)}
        self.assertEqual({n.split("#")[0].rsplit(".", 1)[-1] for n in names}, {"lora_a", "lora_b"})
        self.assertEqual(manifest["identity"]["lora.rank"], "4")
        # Killed in mid-run and resumed from the last checkpoint.
        process = self.start(self.job(base, "killed"))
        self.wait_for_checkpoint(process, "killed")
        process.kill()
        process.wait()
        self.run_job(self.job(base, "killed"))
        self.assertEqual(self.losses("killed"), losses)
        self.assertEqual(self.evaluation("killed"), self.evaluation("whole"))
        # Two parts on different layouts: checkpoints are independent of the layout.
        self.run_job(self.job(base, "parts"), "--set", "steps=3", "--set", "evaluate.every=0")
        self.run_job(self.job(base, "parts"), "--set", "parallel.dp=1", "--set", "parallel.tp=2", "--set", "parallel.zero=0")
        for (step, one), (_, other) in zip(losses, self.losses("parts")):
            self.assertAlmostEqual(float(one), float(other), delta=1e-5, msg=f"step {step}")

    def test_a_worker_that_dies_finds_the_base_again(self):
        base = self.source()
        self.run_job(self.job(base, "whole", steps=40))
        process = self.start(self.job(base, "died", steps=40), "--set", "parallel.zero=3")
        self.wait_for_step(process, 4, "died")
        os.kill(self.children(process.pid)[0], signal.SIGKILL)
        self.assertEqual(process.wait(timeout=PATIENCE), 0, process.stdout.read())
        self.assertTrue(any(e["event"] == "restart" for e in self.events("died")))
        self.assertEqual([round(float(loss), 5) for _, loss in self.losses("died")],
                         [round(float(loss), 5) for _, loss in self.losses("whole")])

    def test_adapters_go_with_their_base_and_their_shape(self):
        base, other = self.source(), self.source(name="other", seed=2)
        job = self.job(base, "a")
        self.run_job(job, "--set", "steps=3", "--set", "evaluate.every=0")
        self.assertRegex(self.command("run", self.job(other, "a"), status=5),
                         rf"were trained beside the weights of {base} \(xxh3 [0-9a-f]{{32}}\), and model.from, {other}, has other weights or settings")
        self.assertIn("lora.rank: the checkpoint has 4, the job 8", self.command("run", self.job(base, "a", "{rank: 8}"), status=5))
        full = self.job(base, "a")
        full.write_text(full.read_text().replace("lora: {rank: 4, alpha: 8}\n", ""))
        self.assertIn("lora.rank: the checkpoint has 4, the job absent", self.command("run", full, status=5))
        self.assertIn("holds adapters (LoRA)", self.command("validate", self.job(self.root / "a", "b"), status=2))
        # The base may move to another path.
        moved = base.rename(self.root / "moved")
        self.assertIn("there is no directory", self.command("run", self.job(base, "a"), status=2))
        self.assertIn("bring them back there, or export with --merge and --base", self.command("export", self.root / "a", "--merge", "--out", self.root / "m", status=5))
        self.command("export", self.root / "a", "--merge", "--base", moved, "--out", self.root / "m")
        self.assertIn("name the same with --base",
                      self.command("export", self.root / "a", "--merge", "--base", other, "--out", self.root / "n", status=5))
        self.assertFalse((self.root / "n").exists())
        self.run_job(self.job(moved, "a"))

    def test_adapters_of_parts_of_a_module_are_exported_merged_alone(self):
        self.run_job(self.job(self.source("phi3"), "a", "{rank: 2, targets: [q_proj, down_proj]}"))
        self.assertIn("phi3 models have one module for model.layers.0.self_attn.qkv_proj.weight, and its projections were adapted apart, "
                      "which PEFT cannot load: train with lora.targets qkv_proj and gate_up_proj, or export with --merge",
                      self.command("export", self.root / "a", "--out", self.root / "out", status=5))
        self.assertFalse((self.root / "out").exists())
        self.command("export", self.root / "a", "--merge", "--out", self.root / "out")

    def test_exported_adapters_and_the_merged_model_are_what_was_trained(self):
        for family, targets, wanted in (
            ("llama", "all-linear", PROJECTIONS),
            ("qwen3", "[q_proj, v_proj, down_proj]", {"self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"}),
            # One adapter for all three projections equals three adapters with the same A.
            ("mistral", "[qkv_proj]", QKV),
            ("phi3", "[qkv_proj, gate_up_proj]", {"self_attn.qkv_proj", "mlp.gate_up_proj"}),
            ("gpt2", "all-linear", {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}),
        ):
            with self.subTest(family=family):
                base = self.source(family, f"{family}-base")
                self.run_job(self.job(base, family, f"{{rank: 4, alpha: 6, targets: {targets}}}"))
                adapter, merged = self.root / f"{family}-adapter", self.root / f"{family}-merged"
                self.assertIn("LoRA adapters for", self.command("export", self.root / family, "--out", adapter))
                self.assertIn("merged", self.command("export", self.root / family, "--merge", "--out", merged))
                config = json.loads((adapter / "adapter_config.json").read_text())
                self.assertEqual((config["peft_type"], config["r"], config["lora_alpha"]), ("LORA", 4, 6))
                self.assertEqual(config["base_model_name_or_path"], str(base))
                for directory in (adapter, merged):
                    self.assertTrue((directory / "tokenizer.json").exists())
                self.assertEqual(set(config["target_modules"]), {p.split(".")[1] for p in wanted})
                turned = family == "gpt2"  # its weights are [inputs, outputs]
                self.assertEqual(config["fan_in_fan_out"], turned)
                tensors, was, now = read_safetensors(adapter / "adapter_model.safetensors"), read_directory(base), read_directory(merged)
                names = {f"{'transformer.h' if turned else 'model.layers'}.{i}.{p}" for i in range(2) for p in wanted}
                self.assertEqual(set(tensors), {f"base_model.model.{n}.lora_{k}.weight" for n in names for k in "AB"})
                self.assertEqual(set(was), set(now))
                for name, tensor in was.items():
                    module = name.removesuffix(".weight")
                    if module not in names:
                        self.assertEqual(now[name], tensor, name)
                        continue
                    a, b = (tensors[f"base_model.model.{module}.lora_{k}.weight"] for k in "AB")
                    rows, columns = reversed(tensor[1]) if turned else tensor[1]
                    self.assertEqual((a[1], b[1]), ((4, columns), (rows, 4)))
                    w, m, a, b = floats(tensor), floats(now[name]), floats(a), floats(b)
                    moved = 0
                    for r in range(rows):
                        for c in range(columns):
                            at = c * rows + r if turned else r * columns + c
                            expected = w[at] + 1.5 * sum(b[r * 4 + k] * a[k * columns + c] for k in range(4))
                            self.assertAlmostEqual(m[at], expected, delta=1e-7)
                            moved = max(moved, abs(expected - w[at]))
                    self.assertGreater(moved, 1e-3, name)
                said = [json.loads(self.command("generate", which, "--prompt", "while return", "--tokenizer", "bytes", "--max-tokens", 8, "--json"))
                        for which in (self.root / family, merged)]
                self.assertEqual(said[0]["ids"], said[1]["ids"])
                # The merged model has the trained model's loss, measured with a learning rate of almost 0.
                full = self.job(merged, f"{family}-full", steps=1)
                full.write_text(re.sub(r"lora: .*\n", "", full.read_text()).replace("lr: 1.0e-2", "lr: 1.0e-30"))
                self.run_job(full)
                self.assertAlmostEqual(self.evaluation(f"{family}-full"), self.evaluation(family), delta=2e-6)
        self.assertIn("holds no adapters", self.command("export", self.root / "llama-full", "--merge", "--out", self.root / "x", status=5))
        narrow = self.root / "narrow"
        self.command("export", self.root / "llama", "--adapter", "--dtype", "bf16", "--no-tokenizer", "--out", narrow)
        self.assertEqual({t[0] for t in read_safetensors(narrow / "adapter_model.safetensors").values()}, {"BF16"})
        self.assertFalse((narrow / "tokenizer.json").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
