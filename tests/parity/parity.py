"""Tiny random models of every family, made by transformers, trained and exported here: logits, gradients and 20 losses against
transformers' own. Prints one table and fails if a figure exceeds its bound. run.sh makes the environment."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file
from transformers import (AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config, Dots1Config, Gemma2Config, Gemma3TextConfig, Glm4MoeConfig, GPT2Config, GptOssConfig, GraniteConfig, LlamaConfig,
                          MiniMaxM2Config, MistralConfig, MixtralConfig, Olmo2Config, Olmo3Config, OlmoeConfig, Phi3Config, Qwen2Config, Qwen3Config,
                          Qwen2MoeConfig, Qwen3MoeConfig, SeedOssConfig, StableLmConfig)

STEPS, BATCH, SEQ, VOCAB = 20, 4, 32, 259
ROPE = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": SEQ, "rms_norm_eps": 1e-5}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75, "short_factor": [1.0, 1.1, 1.2, 1.5, 1.9, 2.0],
            "long_factor": [1.0, 1.3, 2.2, 4.5, 7.9, 16.0]}
# A value head of another size than a key head.
LATENT = ROPE | {"num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20, "moe_intermediate_size": 48,
                 "n_shared_experts": 2, "first_k_dense_replace": 1}
FAMILIES = {
    "llama": LlamaConfig(**ROPE),
    "llama, biases": LlamaConfig(**ROPE, attention_bias=True, mlp_bias=True),
    "llama, attention's biases": LlamaConfig(**ROPE, attention_bias=True),
    "llama, the MLP's biases": LlamaConfig(**ROPE, mlp_bias=True),
    "llama 3.1": LlamaConfig(**ROPE, rope_parameters=LLAMA3),
    "llama, linear": LlamaConfig(**ROPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}),
    "mistral": MistralConfig(**ROPE, head_dim=32, sliding_window=SEQ),
    "mistral, window 7": MistralConfig(**ROPE, head_dim=32, sliding_window=7),
    "qwen2": Qwen2Config(**ROPE, tie_word_embeddings=True),
    "qwen2, window, yarn": Qwen2Config(**ROPE, use_sliding_window=True, sliding_window=5, max_window_layers=1, rope_parameters=YARN),
    "qwen3": Qwen3Config(**ROPE, head_dim=32),
    "olmo2": Olmo2Config(**ROPE, pad_token_id=None, eos_token_id=None),
    "olmo3": Olmo3Config(**ROPE, pad_token_id=None, eos_token_id=None, sliding_window=7, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                         rope_parameters={"full_attention": YARN | {"attention_factor": 1.2}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    "seed_oss": SeedOssConfig(**ROPE, head_dim=32, attention_bias=True, attention_out_bias=False, attention_dropout=0.0, residual_dropout=0.0,
                              bos_token_id=None, eos_token_id=None, pad_token_id=None),
    "seed_oss, all biases": SeedOssConfig(**ROPE, head_dim=32, attention_bias=True, attention_out_bias=True, mlp_bias=True, attention_dropout=0.0,
                                          residual_dropout=0.0, bos_token_id=None, eos_token_id=None, pad_token_id=None),
    # Caps that change every score and logit at these sizes.
    "gemma2": Gemma2Config(**ROPE, head_dim=32, query_pre_attn_scalar=24, sliding_window=7, bos_token_id=None, eos_token_id=None,
                           pad_token_id=None, attn_logit_softcapping=0.7, final_logit_softcapping=2.0),
    "gemma3_text": Gemma3TextConfig(**ROPE, head_dim=32, query_pre_attn_scalar=24, sliding_window=7, bos_token_id=None, eos_token_id=None,
                                    pad_token_id=None, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                    rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                                                     "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    "stablelm": StableLmConfig(**{k: v for k, v in ROPE.items() if k != "rms_norm_eps"}, use_qkv_bias=True, bos_token_id=None,
                               eos_token_id=None),
    "granite": GraniteConfig(**ROPE, embedding_multiplier=6.0, residual_multiplier=0.3, logits_scaling=3.0, attention_multiplier=0.1),
    "phi3, window 7": Phi3Config(**ROPE, sliding_window=7, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
                                 original_max_position_embeddings=SEQ, bos_token_id=None, eos_token_id=None, pad_token_id=None),
    # Sequences longer than the first ones, which have the long factors, and shorter than they.
    "phi3, longrope": Phi3Config(**ROPE, rope_parameters=LONGROPE, original_max_position_embeddings=8, bos_token_id=None, eos_token_id=None, pad_token_id=None),
    "phi3, longrope, short": Phi3Config(**ROPE | {"max_position_embeddings": 8 * SEQ}, rope_parameters=LONGROPE, original_max_position_embeddings=SEQ,
                                        bos_token_id=None, eos_token_id=None, pad_token_id=None),
    "mixtral": MixtralConfig(**ROPE, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": Qwen3MoeConfig(**ROPE, head_dim=32, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=48, norm_topk_prob=True),
    "olmoe": OlmoeConfig(**ROPE, num_experts=5, num_experts_per_tok=2, bos_token_id=None, eos_token_id=None, pad_token_id=None),
    "gpt2": GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=SEQ, resid_pdrop=0.0, embd_pdrop=0.0,
                       attn_pdrop=0.0, bos_token_id=0, eos_token_id=0),
    "qwen3_moe, dense layer": Qwen3MoeConfig(**ROPE, head_dim=32, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=48, norm_topk_prob=True,
                                             mlp_only_layers=[0]),
    "qwen2_moe": Qwen2MoeConfig(**ROPE, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=48, shared_expert_intermediate_size=80,
                                decoder_sparse_step=2),
    "glm4_moe": Glm4MoeConfig(**ROPE, head_dim=32, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=48, n_shared_experts=2,
                              first_k_dense_replace=1, routed_scaling_factor=2.5, use_qk_norm=True, attention_bias=True, num_nextn_predict_layers=0),
    "dots1": Dots1Config(**ROPE, head_dim=32, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=48, n_shared_experts=2,
                         first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True),
    "deepseek_v3": DeepseekV3Config(**LATENT, q_lora_rank=40, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, num_mtp_layers=0,
                                    bos_token_id=None, eos_token_id=None, routed_scaling_factor=2.5, rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}),
    "deepseek_v3, one group": DeepseekV3Config(**LATENT, q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1, num_mtp_layers=0,
                                               bos_token_id=None, eos_token_id=None, norm_topk_prob=False),
    "deepseek_v2": DeepseekV2Config(**LATENT, q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=2, bos_token_id=None, eos_token_id=None),
    "deepseek_v2, groups": DeepseekV2Config(**LATENT, q_lora_rank=40, n_routed_experts=8, num_experts_per_tok=3, topk_method="group_limited_greedy", n_group=4,
                                            topk_group=2, routed_scaling_factor=4.0, bos_token_id=None, eos_token_id=None),
    "gpt_oss": GptOssConfig(**ROPE, head_dim=32, num_local_experts=6, num_experts_per_tok=2, sliding_window=7, bos_token_id=None, eos_token_id=None,
                            pad_token_id=None, rope_parameters=YARN | {"truncate": False}),
    "gpt_oss, no biases of attention": GptOssConfig(**ROPE, head_dim=32, num_local_experts=6, num_experts_per_tok=3, sliding_window=7, attention_bias=False,
                                                    bos_token_id=None, eos_token_id=None, pad_token_id=None, rope_parameters=YARN),
    "minimax_m2": MiniMaxM2Config(**ROPE, head_dim=32, num_local_experts=6, num_experts_per_tok=2, rotary_dim=16, bos_token_id=None, eos_token_id=None),
}
LAYOUTS = {"tp 2": ["parallel.tp=2"], "pp 2": ["parallel.pp=2"], "zero 3": ["parallel.dp=2", "parallel.zero=3"],
           "tp 2, pp 2": ["parallel.tp=2", "parallel.pp=2"]}
BOUNDS = {"logits": 1e-5, "gradients": 1e-4, "losses": 1e-4}
BIASED = ("glm4_moe", "dots1", "deepseek_v3", "minimax_m2")  # with biases that choose experts, which transformers does not train
LR, BETAS, EPS, DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
JOB = """\
name: parity
output: {output}
device: cpu
threads: 1
model: {{from: {source}, seq_len: {seq}}}
batch: {{global: {batch}, micro: {micro}}}
precision: fp32
optimizer: {{name: adamw, lr: {lr}, betas: [{b1}, {b2}], eps: {eps}, weight_decay: {decay}, grad_clip: {clip}, schedule: {{kind: constant}}{still}}}
steps: {steps}
data: {{format: synthetic}}
metrics: {{listen: "off"}}
"""


def write_job(path, source, steps, lr, micro):
    # transformers does not move the biases of experts.
    still = ", expert_bias_rate: 0" if json.loads((pathlib.Path(source) / "config.json").read_text())["model_type"] in BIASED else ""
    path.write_text(JOB.format(still=still, output=path.with_suffix(""), source=source, seq=SEQ, batch=BATCH, micro=micro, lr=lr, b1=BETAS[0], b2=BETAS[1], eps=EPS,
                               decay=DECAY, clip=CLIP, steps=steps))
    return path


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def relative(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def make_model(config, seed):
    """A model without weights of exactly 0 or 1, so that no term vanishes."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            centre = 1.0 if weight.ndim == 1 and name.endswith("weight") else 0.0
            weight.copy_(centre + (0.1 if centre else 0.08) * torch.randn_like(weight))
            weight[weight == 0] = 0.01  # randn may draw 0, which any step would change
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn_like(buffer))
    return model


def logits_of(model, tokens):
    with torch.no_grad():
        return model.eval()(tokens[:, :-1]).logits.reshape(-1, VOCAB)


def same_words(model, source, trainerd):
    """True if `trainerd generate` gives the same tokens as transformers."""
    prompt = b"0123 is a prompt"
    said = model.eval().generate(torch.tensor([list(prompt)]), max_new_tokens=SEQ - len(prompt), do_sample=False, eos_token_id=None, pad_token_id=0,
                                 suppress_tokens=list(range(256, VOCAB)))[0, len(prompt):].tolist()
    ours = subprocess.run([trainerd, "generate", source, "--prompt", prompt.decode(), "--tokenizer", "bytes", "--max-tokens", str(len(said)),
                           "--ignore-eos", "--precision", "fp32", "--json"], capture_output=True, text=True, check=True)
    return json.loads(ours.stdout)["ids"] == said


def train(model, tokens):
    """Gradients of the first step, and every step's loss."""
    model.train()
    matrices = {name for name, p in model.named_parameters() if p.ndim >= 2 and not name.endswith("_bias")}
    parts = [{"params": [p for name, p in model.named_parameters() if (name in matrices) == decays], "weight_decay": DECAY if decays else 0.0}
             for decays in (True, False)]
    optimizer = torch.optim.AdamW(parts, lr=LR, betas=BETAS, eps=EPS)
    gradients, losses = {}, []
    for batch in tokens:
        optimizer.zero_grad()
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), batch[:, 1:].reshape(-1))
        loss.backward()
        if not losses:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return gradients, torch.tensor(losses)


MIXTRAL = {"mlp.": "block_sparse_moe.", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}  # its names in files


def with_stacked_experts(ours, model):
    """Our gradients by the names of the model's parameters: transformers 5 stacks the experts, but not in files."""
    ours = dict(ours)

    def take(name):
        if name not in ours:
            for theirs, in_files in MIXTRAL.items():
                name = name.replace(theirs, in_files)
        return ours.pop(name)

    for name, parameter in model.named_parameters():
        if ".mlp.gate." in name:
            ours["grad." + name] = take("grad." + name)
        elif ".experts." in name and "grad." + name not in ours:
            stem, which = name.rsplit(".", 1)
            parts = ("gate_proj", "up_proj") if which == "gate_up_proj" else ("down_proj",)
            ours["grad." + name] = torch.stack([torch.cat([take(f"grad.{stem}.{e}.{part}.weight") for part in parts])
                                                for e in range(len(parameter))])
    return ours


def measure(name, config, seed, root, trainerd, dump):
    """The table's row of a family."""
    source = root / "source"
    make_model(config, seed).save_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(100 + seed)
    tokens = torch.randint(0, VOCAB, (STEPS, BATCH, SEQ + 1), generator=generator)
    (root / "tokens").write_bytes(tokens.to(torch.int32).numpy().tobytes())

    run(dump, write_job(root / "dump.yaml", source, STEPS, LR, BATCH), root / "tokens", root / "dump.safetensors")
    ours = load_file(root / "dump.safetensors")
    row = {"logits": relative(ours["logits"], logits_of(model, tokens[0]))}
    for layout, flags in LAYOUTS.items():
        folder = root / layout.replace(", ", "-").replace(" ", "")
        # A step this small changes only weights near 0.
        run(trainerd, "run", write_job(folder.with_suffix(".yaml"), source, 1, 1e-30, 1), *(w for f in flags for w in ("--set", f)))
        run(trainerd, "export", folder, "--out", folder.with_suffix(".out"))
        exported = AutoModelForCausalLM.from_pretrained(folder.with_suffix(".out"), dtype=torch.float32, attn_implementation="eager")
        row[layout] = relative(ours["logits"], logits_of(exported, tokens[0]))
        row["same bits"] = row.get("same bits", True) and all(
            torch.equal(a, b) for a, b in zip(model.state_dict().values(), exported.state_dict().values(), strict=True))
    row["same words"] = same_words(model, source, trainerd)
    moved = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for weight in moved.parameters():
            weight.mul_(1 + 1e-7 * torch.randn_like(weight))
    gradients, losses = train(model, tokens)
    noise = ((train(moved, tokens)[1] - losses).abs() / losses).max().item()
    row["bounds"] = BOUNDS | {"losses": max(BOUNDS["losses"], 2 * noise)}
    ours = with_stacked_experts(ours, model)
    names = {name.removeprefix("grad.") for name in ours if name.startswith("grad.")}
    assert names == set(gradients), (name, names ^ set(gradients))
    row["gradients"] = max(relative(ours["grad." + n], g) for n, g in gradients.items())
    row["losses"] = ((ours["losses"] - losses).abs() / losses).max().item()
    row["last loss"] = losses[-1].item()
    return row


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainerd", required=True)
    parser.add_argument("--dump", required=True)
    parser.add_argument("--only", nargs="*", help="families whose names begin like this")
    return parser.parse_args()


def main():
    options = arguments()
    families = {name: config for name, config in FAMILIES.items() if not options.only or any(name.startswith(word) for word in options.only)}
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    columns = ["logits", "gradients", "losses", *LAYOUTS]
    print(f"torch {torch.__version__}, transformers {transformers.__version__}\n")
    print("| family | " + " | ".join(columns) + " | same bits | same words |\n|---|" + "---:|" * len(columns) + "---|---|")
    failed = False
    for seed, (name, config) in enumerate(families.items(), 1):
        with tempfile.TemporaryDirectory() as folder:
            row = measure(name, config, seed, pathlib.Path(folder), options.trainerd, options.dump)
        print(f"| {name} | " + " | ".join(f"{row[c]:.1e}" if c in row else "-" for c in columns) + " | " + " | ".join("yes" if row[c] else "NO" for c in ("same bits", "same words")) + " |", flush=True)
        failed |= not row["same bits"] or not row["same words"] or any(not row[c] <= row["bounds"].get(c, BOUNDS["logits"]) for c in columns if c in row)
    sys.exit("\na figure is over its bound" if failed else 0)


if __name__ == "__main__":
    main()
