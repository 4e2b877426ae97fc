"""Adapters (LoRA) against peft: training from the same initial adapters, and the export of a trained run. Prints one table and
fails if a figure exceeds its bound."""

import pathlib
import sys
import tempfile

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import parity

RANK, ALPHA = 4, 6
TARGETS = {"c_attn, c_proj, c_fc": ["c_attn", "c_proj", "c_fc"], "qkv_proj, gate_up_proj": ["qkv_proj", "gate_up_proj"],
           "all-linear": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], "q_proj, v_proj": ["q_proj", "v_proj"]}
TARGETS["latent"] = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
TARGETS["q_proj, kv_a_proj_with_mqa"] = ["q_proj", "kv_a_proj_with_mqa"]
CASES = [("llama", "all-linear"), ("mistral", "all-linear"), ("qwen2", "q_proj, v_proj"), ("qwen3", "all-linear"), ("olmo2", "all-linear"),
         ("gemma2", "all-linear"), ("gemma3_text", "all-linear"), ("granite", "all-linear"),
         ("deepseek_v3", "latent"), ("deepseek_v2", "q_proj, kv_a_proj_with_mqa"), ("deepseek_v2, groups", "latent"),
         ("phi3, window 7", "qkv_proj, gate_up_proj"), ("gpt2", "c_attn, c_proj, c_fc")]
LAYOUTS = {"one rank": [], "tp 2, pp 2": ["parallel.tp=2", "parallel.pp=2"],
           "tp 2, dp 2, zero 3": ["parallel.tp=2", "parallel.sequence_parallel=true", "parallel.dp=2", "parallel.zero=3"]}
MERGED = {"qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "attn_out": ["self_attn.o_proj"],
          "gate_up": ["mlp.gate_proj", "mlp.up_proj"], "down": ["mlp.down_proj"]}
# Families whose merged projections are one module, with one adapter.
WHOLE = {"phi3": {"qkv": ["self_attn.qkv_proj"], "gate_up": ["mlp.gate_up_proj"]},
         "deepseek_v2": {"qkv_down": ["self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"], "kv_down": ["self_attn.kv_a_proj_with_mqa"],
                         "q_up": ["self_attn.q_b_proj"], "q": ["self_attn.q_proj"], "kv_up": ["self_attn.kv_b_proj"], "attn_out": ["self_attn.o_proj"]},
         "gpt2": {"qkv": ["attn.c_attn"], "attn_out": ["attn.c_proj"], "up": ["mlp.c_fc"], "down": ["mlp.c_proj"]}}
WHOLE["deepseek_v3"] = WHOLE["deepseek_v2"]
BOUNDS = {"losses": 1e-4, "gradients": 1e-4}
LOGITS = 1e-5


def write_job(path, source, targets, steps, micro):
    parity.write_job(path, source, steps, parity.LR * 10, micro)
    text = path.read_text().replace(", expert_bias_rate: 0", "")  # adapters leave the biases as they are
    path.write_text(text + f"lora: {{rank: {RANK}, alpha: {ALPHA}, targets: [{targets}]}}\n")
    return path


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")


def by_their_names(tensors, prefix, targets, model):
    """Splits our stacked adapters into peft's: rows of A by projection, rows of B by the projection's outputs."""
    out = {}
    modules = dict(model.named_modules())
    layers = "transformer.h" if model.config.model_type == "gpt2" else "model.layers"
    for layer in range(model.config.num_hidden_layers):
        for ours, theirs in WHOLE.get(model.config.model_type, MERGED).items():
            wanted = [name for name in theirs if name.split(".")[1] in targets]
            if not wanted or f"{prefix}layers.{layer}.{ours}.lora_a" not in tensors:
                continue  # of a latent of queries, or without one
            a, b = (tensors[f"{prefix}layers.{layer}.{ours}.lora_{k}"] for k in "ab")
            rows = [len(b)] if len(wanted) == 1 else [modules[f"{layers}.{layer}.{name}"].out_features for name in wanted]
            for name, of_a, of_b in zip(wanted, a.split(RANK), b.split(rows), strict=True):
                stem = f"base_model.model.{layers}.{layer}.{name}"
                out[f"{stem}.lora_A.default.weight"], out[f"{stem}.lora_B.default.weight"] = of_a, of_b
    return out


def train(source, targets, ours, tokens):
    """Gradients of the first step, and every step's loss, of the same adapters in peft."""
    base = load(source)
    start = by_their_names(ours, "adapter.", targets, base)
    model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM",
                                           fan_in_fan_out=base.config.model_type == "gpt2"))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert set(trained) == set(start), set(trained) ^ set(start)
    with torch.no_grad():
        for name, p in trained.items():
            p.copy_(start[name])
    optimizer = torch.optim.AdamW(trained.values(), lr=parity.LR * 10, betas=parity.BETAS, eps=parity.EPS, weight_decay=parity.DECAY)
    gradients, losses = {}, []
    model.train()
    for batch in tokens:
        optimizer.zero_grad()
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, parity.VOCAB), batch[:, 1:].reshape(-1))
        loss.backward()
        gradients = gradients or {name: p.grad.clone() for name, p in trained.items()}
        torch.nn.utils.clip_grad_norm_(trained.values(), parity.CLIP)
        optimizer.step()
        losses.append(loss.item())
    return gradients, torch.tensor(losses)


def measure(family, targets, seed, root, trainerd, dump):
    source = root / "source"
    parity.make_model(parity.FAMILIES[family], seed).save_pretrained(source)
    generator = torch.Generator().manual_seed(200 + seed)
    tokens = torch.randint(0, parity.VOCAB, (parity.STEPS, parity.BATCH, parity.SEQ + 1), generator=generator)
    (root / "tokens").write_bytes(tokens.to(torch.int32).numpy().tobytes())
    words = ", ".join(TARGETS[targets])
    job = write_job(root / "dump.yaml", source, words, parity.STEPS, parity.BATCH)
    parity.run(dump, job, root / "tokens", root / "dump.safetensors")
    ours = load_file(root / "dump.safetensors")
    gradients, losses = train(source, TARGETS[targets], ours, tokens)
    mine = by_their_names(ours, "grad.", TARGETS[targets], load(source))
    row = {"losses": ((ours["losses"] - losses).abs() / losses).max().item(),
           # Gradients of A are 0 in the first step, because B is 0.
           "gradients": max(parity.relative(mine[name], g) for name, g in gradients.items() if ".lora_B." in name)}
    assert all(not mine[name].any() and not g.any() for name, g in gradients.items() if ".lora_A." in name)
    for layout, flags in LAYOUTS.items():
        folder = root / layout.replace(", ", "-").replace(" ", "")
        parity.run(trainerd, "run", write_job(folder.with_suffix(".yaml"), source, words, parity.STEPS, 1),
                   *(w for f in flags for w in ("--set", f)))
        adapter, merged = folder.with_suffix(".adapter"), folder.with_suffix(".merged")
        parity.run(trainerd, "export", folder, "--out", adapter)
        parity.run(trainerd, "export", folder, "--merge", "--out", merged)
        [checkpoint] = [p for p in (folder / "checkpoints").iterdir() if p.name.endswith(f"{parity.STEPS}")]
        parity.run(dump, job, root / "tokens", folder.with_suffix(".safetensors"), checkpoint)
        trained = load_file(folder.with_suffix(".safetensors"))["logits"]
        moved = parity.relative(trained, ours["logits"])
        assert moved > 0.01, f"training moved the logits by {moved} alone"
        row[f"{layout}: peft"] = parity.relative(trained, parity.logits_of(PeftModel.from_pretrained(load(source), adapter), tokens[0]))
        row[f"{layout}: merged"] = parity.relative(trained, parity.logits_of(load(merged), tokens[0]))
    return row


def main():
    options = parity.arguments()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    columns = [*BOUNDS, *(f"{layout}: {form}" for layout in LAYOUTS for form in ("peft", "merged"))]
    print(f"peft {peft.__version__}, torch {torch.__version__}, transformers {transformers.__version__}\n")
    print("| family | targets | " + " | ".join(columns) + " |\n|---|---|" + "---:|" * len(columns))
    failed = False
    for seed, (family, targets) in enumerate(CASES, 1):
        with tempfile.TemporaryDirectory() as folder:
            row = measure(family, targets, seed, pathlib.Path(folder), options.trainerd, options.dump)
        print(f"| {family} | {targets} | " + " | ".join(f"{row[c]:.1e}" if c in row else "-" for c in columns) + " |", flush=True)
        failed |= any(not figure <= BOUNDS.get(c, LOGITS) for c, figure in row.items())
    sys.exit("\na figure is over its bound" if failed else 0)


if __name__ == "__main__":
    main()
