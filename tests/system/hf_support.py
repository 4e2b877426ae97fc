"""Tiny Hugging Face directories, written without Hugging Face's packages."""

import json
import math
import random
import struct

COMMON = {"bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32", "transformers_version": "4.46.0", "use_cache": True}
LLAMA = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": None,
         "hidden_act": "silu", "tie_word_embeddings": False, "attention_dropout": 0.0, **COMMON}
CONFIGS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1,
              **LLAMA},
    # In the form of transformers 5.
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None, "head_dim": 16, "dtype": "float32",
                **{k: v for k, v in LLAMA.items() if k not in ("rope_theta", "rope_scaling", "torch_dtype")},
                "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 16,
              "max_window_layers": 2, **LLAMA, "tie_word_embeddings": True},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False, "sliding_window": None,
              "max_window_layers": 2, "attention_bias": False, "head_dim": 16, **LLAMA},
    "olmo2": {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "attention_bias": False, **LLAMA},
    # Like OLMo 3's own files, with fewer layers between full ones, which alone are scaled.
    "olmo3": {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "attention_bias": False, "sliding_window": 8,
              "layer_types": ["sliding_attention", "full_attention"], **LLAMA,
              "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "attention_factor": 1.2}},
    "seed_oss": {"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "attention_bias": True, "attention_out_bias": False, "mlp_bias": False,
                 "head_dim": 16, "residual_dropout": 0.0, **LLAMA},
    # Like Gemma 3's own files, with fewer layers between full ones.
    "gemma3_text": {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh",
                    "query_pre_attn_scalar": 20, "sliding_window": 8, "sliding_window_pattern": 2, "rope_local_base_freq": 10000,
                    "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None, "cache_implementation": "hybrid",
                    **{k: v for k, v in LLAMA.items() if k not in ("hidden_act", "tie_word_embeddings")}},
    # Every second layer slides, which older files do not say.
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 16, "hidden_act": "gelu_pytorch_tanh",
               "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 20, "sliding_window": 8, "attention_bias": False, "attn_logit_softcapping": 0.5,
               "final_logit_softcapping": 2.0, "cache_implementation": "hybrid",
               **{k: v for k, v in LLAMA.items() if k not in ("hidden_act", "tie_word_embeddings")}},
    "stablelm": {"architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "use_qkv_bias": True, "qk_layernorm": False,
                 "use_parallel_residual": False, "hidden_dropout": 0.0, "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25,
                 **{k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}},
    "granite": {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "attention_bias": True, "mlp_bias": False,
                "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0, "attention_multiplier": 0.0078125, **LLAMA},
    # Like Phi-4's own file, with partial rotary embeddings as in Phi-4-mini.
    "phi3": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": False, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
             "original_max_position_embeddings": 32, "sliding_window": None, "partial_rotary_factor": 0.75, **LLAMA},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
                "sliding_window": None, "output_router_logits": False, "router_aux_loss_coef": 0.02, "router_jitter_noise": 0.0, **LLAMA},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 24, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "head_dim": 16,
                  "use_sliding_window": False, "sliding_window": None, "max_window_layers": 2, "attention_bias": False,
                  "output_router_logits": False, "router_aux_loss_coef": 0.001, **LLAMA},
    "qwen2_moe": {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "norm_topk_prob": False, "decoder_sparse_step": 1,
                  "mlp_only_layers": [0], "use_sliding_window": False, "sliding_window": None, "max_window_layers": 2,
                  "output_router_logits": False, "router_aux_loss_coef": 0.001, **LLAMA},
    "glm4_moe": {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "n_routed_experts": 4, "num_experts_per_tok": 2,
                 "moe_intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
                 "routed_scaling_factor": 2.5, "use_qk_norm": True, "attention_bias": True, "head_dim": 16, "partial_rotary_factor": 0.5,
                 "num_nextn_predict_layers": 1, "output_router_logits": False, **LLAMA},
    "dots1": {"architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
              "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5,
              "attention_bias": False, "sliding_window": None, "max_window_layers": 0, "layer_types": None, "scoring_func": "noaux_tc", "moe_layer_freq": 1,
              "output_router_logits": False, **LLAMA},
    # Like DeepSeek-V3's own file.
    "deepseek_v3": {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "n_routed_experts": 4, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "n_group": 2, "topk_group": 1,
                    "routed_scaling_factor": 2.5, "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 8,
                    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "attention_bias": False, "num_nextn_predict_layers": 1,
                    "aux_loss_alpha": 0.001, "seq_aux": True, "ep_size": 1, "pretraining_tp": 1, **LLAMA, "num_key_value_heads": 4,
                    "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 8, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                                     "mscale_all_dim": 1.0}},
    "deepseek_v2": {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "n_routed_experts": 4, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 24, "n_shared_experts": 2, "first_k_dense_replace": 1, "norm_topk_prob": False, "n_group": 1, "topk_group": 1,
                    "routed_scaling_factor": 1.0, "q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 8,
                    "scoring_func": "softmax", "topk_method": "greedy", "moe_layer_freq": 1, "attention_bias": False, "aux_loss_alpha": 0.001, "seq_aux": True,
                    **LLAMA, "num_key_value_heads": 4},
    "minimax_m2": {"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
                   "rotary_dim": 8, "router_jitter_noise": 0.0, "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True,
                   "qk_norm_type": "per_layer", "shared_intermediate_size": 0, "attn_type_list": [1, 1], "use_mtp": True, "num_mtp_modules": 3,
                   "layernorm_mlp_beta": 1.0, "mlp_intermediate_size": 96, "output_router_logits": False, "router_aux_loss_coef": 0.001, **LLAMA},
    # Like gpt-oss-20b's own file, without MXFP4.
    "gpt_oss": {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "experts_per_token": 2,
                "head_dim": 16, "attention_bias": True, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "swiglu_limit": 7.0,
                "initial_context_length": 8, "output_router_logits": False, "router_aux_loss_coef": 0.9, **LLAMA, "rope_theta": 150000,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}},
    "olmoe": {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_experts": 3, "num_experts_per_tok": 2, "norm_topk_prob": False,
              "clip_qkv": None, "attention_bias": False, "output_router_logits": False, "router_aux_loss_coef": 0.01, **LLAMA},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 259, "n_embd": 32, "n_layer": 2, "n_head": 4,
             "n_positions": 32, "n_ctx": 32, "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
             "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.1, "bos_token_id": 258, "eos_token_id": 258, "summary_type": "cls_index"},
}


NORMS = {"olmo2": ("post_attention_layernorm", "post_feedforward_layernorm"),
         "gemma3_text": ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")}
NORMS["gemma2"] = NORMS["gemma3_text"]
NORMS["olmo3"] = NORMS["olmo2"]


def shapes(config):
    """Name -> shape of every tensor of a model."""
    out = {}
    if config["model_type"] == "gpt2":
        d, f = config["n_embd"], config["n_inner"] or 4 * config["n_embd"]
        out |= {"transformer.wte.weight": (config["vocab_size"], d), "transformer.wpe.weight": (config["n_positions"], d)}
        for i in range(config["n_layer"]):
            layer = f"transformer.h.{i}."
            for name, shape in {"attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d), "mlp.c_fc": (d, f), "mlp.c_proj": (f, d)}.items():
                out |= {layer + name + ".weight": shape, layer + name + ".bias": shape[1:]}
            for name in ("ln_1", "ln_2"):
                out |= {layer + name + ".weight": (d,), layer + name + ".bias": (d,)}
        out |= {"transformer.ln_f.weight": (d,), "transformer.ln_f.bias": (d,)}
        return out
    d, f, h, k = (config[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"))
    e = config.get("head_dim") or d // h
    out["model.embed_tokens.weight"] = (config["vocab_size"], d)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        linear = {"self_attn.q_proj": (h * e, d), "self_attn.k_proj": (k * e, d), "self_attn.v_proj": (k * e, d),
                  "self_attn.o_proj": (d, h * e), "mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f)}
        if latent := config.get("kv_lora_rank"):
            n, r, v, q = (config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank"))
            linear = {name: shape for name, shape in linear.items() if not name.startswith("self_attn")}
            linear |= {"self_attn.q_a_proj": (q, d), "self_attn.q_b_proj": (h * (n + r), q)} if q else {"self_attn.q_proj": (h * (n + r), d)}
            linear |= {"self_attn.kv_a_proj_with_mqa": (latent + r, d), "self_attn.kv_b_proj": (h * (n + v), latent), "self_attn.o_proj": (d, h * v)}
            out[layer + "self_attn.kv_a_layernorm.weight"] = (latent,)
            if q:
                out[layer + "self_attn.q_a_layernorm.weight"] = (q,)
        if config["model_type"] == "phi3":
            linear = {"self_attn.qkv_proj": ((h + 2 * k) * e, d), "self_attn.o_proj": (d, h * e), "mlp.gate_up_proj": (2 * f, d),
                      "mlp.down_proj": (d, f)}
        experts = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts") or 0
        if config["model_type"] == "gpt_oss":
            linear = {name: shape for name, shape in linear.items() if name.startswith("self_attn")}
            out[layer + "self_attn.sinks"] = (h,)
            out |= {layer + "mlp.router.weight": (experts, d), layer + "mlp.router.bias": (experts,)}
            for name, shape in {"gate_up_proj": (experts, d, 2 * f), "down_proj": (experts, f, d)}.items():
                out |= {layer + "mlp.experts." + name: shape, layer + "mlp.experts." + name + "_bias": (experts, shape[2])}
        elif experts and i not in config.get("mlp_only_layers", range(config.get("first_k_dense_replace", 0))):
            f = config.get("moe_intermediate_size") or f
            stem, gate, up, down = (("block_sparse_moe", "w1", "w3", "w2") if config["model_type"] in ("mixtral", "minimax_m2")
                                    else ("mlp", "gate_proj", "up_proj", "down_proj"))
            linear = {name: shape for name, shape in linear.items() if name.startswith("self_attn")} | {f"{stem}.gate": (experts, d)}
            for x in range(experts):
                linear |= {f"{stem}.experts.{x}.{gate}": (f, d), f"{stem}.experts.{x}.{up}": (f, d), f"{stem}.experts.{x}.{down}": (d, f)}
            if config["model_type"] == "minimax_m2":
                out[layer + "block_sparse_moe.e_score_correction_bias"] = (experts,)
            if config["model_type"] in ("glm4_moe", "dots1", "deepseek_v3"):
                out[layer + "mlp.gate.e_score_correction_bias"] = (experts,)
            if (shared := f * config.get("n_shared_experts", 0)):
                linear |= {"mlp.shared_experts.gate_proj": (shared, d), "mlp.shared_experts.up_proj": (shared, d), "mlp.shared_experts.down_proj": (d, shared)}
            if shared := config.get("shared_expert_intermediate_size"):
                linear |= {"mlp.shared_expert.gate_proj": (shared, d), "mlp.shared_expert.up_proj": (shared, d),
                           "mlp.shared_expert.down_proj": (d, shared), "mlp.shared_expert_gate": (1, d)}
        for name, shape in linear.items():
            out[layer + name + ".weight"] = shape
            qkv = config["model_type"] in ("qwen2", "qwen2_moe", "stablelm") and name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
            if config["model_type"] in ("glm4_moe", "seed_oss") and name == "self_attn.o_proj":
                continue  # attention_bias is of its inputs alone
            if qkv or config.get("attention_bias" if "self_attn" in name else "mlp_bias"):
                out[layer + name + ".bias"] = shape[:1]
        for name in NORMS.get(config["model_type"], ("input_layernorm", "post_attention_layernorm")):
            out[layer + name + ".weight"] = (d,)
            if config["model_type"] == "stablelm":
                out[layer + name + ".bias"] = (d,)
        if config["model_type"] in ("qwen3", "qwen3_moe", "glm4_moe", "dots1", "gemma3_text"):
            out |= {layer + "self_attn.q_norm.weight": (e,), layer + "self_attn.k_norm.weight": (e,)}
        if config["model_type"] in ("olmo2", "olmo3", "olmoe", "minimax_m2"):
            out |= {layer + "self_attn.q_norm.weight": (h * e,), layer + "self_attn.k_norm.weight": (k * e,)}
    out["model.norm.weight"] = (d,)
    if config["model_type"] == "stablelm":
        out["model.norm.bias"] = (d,)
    if not config.get("tie_word_embeddings", config["model_type"] in ("gemma2", "gemma3_text")):
        out["lm_head.weight"] = (config["vocab_size"], d)
    return out


def packed(values, dtype):
    """The bytes of a tensor, and its values rounded to the dtype."""
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    raw = struct.pack(f"<{len(values)}f", *values)
    return raw if dtype == "F32" else b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))


def widened(raw, dtype):
    """The same values in fp32."""
    if dtype == "F32":
        return raw
    if dtype == "F16":
        return struct.pack(f"<{len(raw) // 2}f", *struct.unpack(f"<{len(raw) // 2}e", raw))
    return b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))


def make_tensors(config, dtype="F32", seed=1):
    """Name -> (dtype, shape, bytes). No value is 0, so that a tiny step changes none."""
    rng = random.Random(seed)
    tensors = {}
    for name, shape in shapes(config).items():
        centre, spread = (1.0, 0.1) if len(shape) == 1 and name.endswith("weight") else (0.0, 0.08)
        values = [centre + spread * (rng.gauss(0, 1) or 1.0) for _ in range(math.prod(shape))]
        of = "F32" if name.endswith("e_score_correction_bias") else dtype
        tensors[name] = (of, shape, packed(values, of))
    return tensors


def write_safetensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in tensors.values()))


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length:]
    return {name: (t["dtype"], tuple(t["shape"]), body[slice(*t["data_offsets"])]) for name, t in header.items()}


def read_directory(path):
    """All tensors of a Hugging Face directory, by its index if it has one."""
    index = path / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(path / "model.safetensors")
    files = json.loads(index.read_text())["weight_map"]
    read = {file: read_safetensors(path / file) for file in set(files.values())}
    assert sum(map(len, read.values())) == len(files)
    return {name: read[file][name] for name, file in files.items()}


def make_directory(path, config, tensors, shards=1, tokenizer=True):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    if tokenizer:
        (path / "tokenizer.json").write_text('{"version": "1.0"}')
        (path / "tokenizer_config.json").write_text('{"model_max_length": 32}')
        (path / "generation_config.json").write_text('{"eos_token_id": 2, "top_p": 0.9}')
    if shards == 1:
        write_safetensors(path / "model.safetensors", tensors)
        return path
    names, files = list(tensors), {}
    for s in range(shards):
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        part = names[s::shards]
        files |= {name: file for name in part}
        write_safetensors(path / file, {name: tensors[name] for name in part})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": files}))
    return path


__all__ = ["CONFIGS", "make_directory", "make_tensors", "packed", "read_directory", "read_safetensors", "shapes", "widened", "write_safetensors"]
