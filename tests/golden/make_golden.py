#!/usr/bin/env python3
"""Writes the reference runs (all of CONFIGS, or the named ones) beside this file.

Each is a tiny transformer in plain float64 PyTorch, trained for twelve steps; README.md lists a file's contents. `loss_bf16` is the
loss of the one of eight runs with bfloat16 parameters and activations that deviates most: PyTorch's own deviation in bfloat16
bounds ours.
"""

import json
import math
import pathlib
import sys
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

STEPS, WARMUP, BATCH = 12, 3, 4
PEAK_LR, MIN_LR = 5e-3, 1e-4
BETAS, EPS, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0


@dataclass(frozen=True)
class Config:
    name: str
    seed: int
    norm: str  # rms | layer
    positions: str  # rope | learned
    mlp: str  # swiglu | geglu | gelu | swiglu_clamped, of experts alone
    kv_heads: int
    ffn: int
    bias: bool = False  # on every linear and norm
    qkv_bias: bool = False
    attention_bias: bool = False  # on every projection of attention
    qk_norm: bool = False
    tied: bool = False
    layers: int = 2
    hidden: int = 32
    heads: int = 4
    head_dim: int = 8
    vocab: int = 96
    seq: int = 24
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    yarn: tuple = ()  # factor, original length, beta_fast, beta_slow, whether the bounds are rounded to whole pairs
    window: int = 0
    pattern: tuple = ("full",)  # repeated over the layers
    sliding_theta: float = 0.0
    placement: str = "pre"  # norm placement: pre | post | sandwich
    less_one: bool = False  # norms multiply by 1 + weight
    span: str = "head"  # span of qk_norm: head | all
    scaled: bool = False  # embeddings are multiplied by sqrt(hidden)
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # factor of the outputs of attention and MLP
    logit_divisor: float = 1.0
    score_scale: float = 0.0  # scale of scores; 0: 1 / sqrt(head size)
    query_scalar: float = 0.0  # scores are divided by its square root; 0: the head size
    softcap: float = 0.0  # scores become softcap tanh(score / softcap)
    logit_softcap: float = 0.0
    sinks: bool = False  # one more logit per head beside the keys' scores
    rotary_fraction: float = 1.0  # rotated fraction of each head, its first elements
    experts: int = 0  # MLPs of a layer, of which a router chooses `per_token`; 0: a dense MLP
    per_token: int = 0
    balance: float = 0.0  # factor of the balance loss
    dense_layers: int = 0  # first layers without experts
    expert_ffn: int = 0  # width of experts; 0: ffn
    shared_ffn: int = 0  # width of an MLP beside the experts, with a factor for each token
    sigmoid: bool = False  # experts' scores: sigmoids in place of a softmax
    expert_scale: float = 1.0  # factor of the weights
    bias_rate: float = 0.0  # how much a step moves the experts' biases, which are 0 at first; 0: none
    expert_biases: bool = False  # on the experts' linear layers, and on the router


CONFIGS = [
    Config("llama", 11, "rms", "rope", "swiglu", kv_heads=2, ffn=48),
    Config("gpt2", 12, "layer", "learned", "gelu", kv_heads=4, ffn=128, bias=True, tied=True),
    Config("qwen", 13, "rms", "rope", "swiglu", kv_heads=2, ffn=48, qkv_bias=True, qk_norm=True, tied=True),
    Config("windows", 14, "rms", "rope", "swiglu", kv_heads=2, ffn=48, layers=3, yarn=(4.0, 12, 2.0, 0.5, True), window=7,
           pattern=("sliding", "full"), sliding_theta=500.0),
    Config("gemma", 15, "rms", "rope", "geglu", kv_heads=2, ffn=48, layers=3, qk_norm=True, tied=True, window=7, pattern=("sliding", "full"),
           sliding_theta=500.0, placement="sandwich", less_one=True, scaled=True, query_scalar=20.0),
    Config("olmo", 16, "rms", "rope", "swiglu", kv_heads=2, ffn=48, qk_norm=True, placement="post", span="all"),
    Config("gemma2", 17, "rms", "rope", "geglu", kv_heads=2, ffn=48, layers=3, tied=True, window=7, pattern=("sliding", "full"),
           placement="sandwich", less_one=True, scaled=True, softcap=0.5, logit_softcap=2.0),
    Config("sinks", 18, "rms", "rope", "swiglu", kv_heads=2, ffn=48, window=7, pattern=("sliding", "full"), sinks=True, rotary_fraction=0.5),
    Config("gpt_oss", 20, "rms", "rope", "swiglu_clamped", kv_heads=2, ffn=24, attention_bias=True, yarn=(4.0, 12, 2.0, 0.5, False), window=7,
           pattern=("sliding", "full"), sinks=True, experts=4, per_token=2, expert_biases=True),
    Config("granite", 19, "rms", "rope", "swiglu", kv_heads=2, ffn=48, attention_bias=True, embedding_scale=5.0, residual_scale=0.3,
           logit_divisor=3.0, score_scale=0.25),
    Config("experts", 21, "rms", "rope", "swiglu", kv_heads=2, ffn=24, experts=4, per_token=2, balance=0.05),
    Config("shared", 22, "rms", "rope", "swiglu", kv_heads=2, ffn=48, experts=4, per_token=2, balance=0.05, dense_layers=1, expert_ffn=24,
           shared_ffn=32, sigmoid=True, expert_scale=2.5, bias_rate=0.05),
]


def parameter_shapes(c):
    """Names and shapes, in the order of drawing values."""
    d, h, k, e, f = c.hidden, c.heads, c.kv_heads, c.head_dim, c.ffn
    shapes = {"embed.weight": (c.vocab, d)}
    if c.positions == "learned":
        shapes["positions.weight"] = (c.seq, d)

    def norm(name):
        shapes[name + ".weight"] = (d,)
        if c.norm == "layer":
            shapes[name + ".bias"] = (d,)

    def linear(name, rows, cols, bias):
        shapes[name + ".weight"] = (rows, cols)
        if bias:
            shapes[name + ".bias"] = (rows,)

    for i in range(c.layers):
        layer = f"layers.{i}."
        if c.placement != "post":
            norm(layer + "attn_norm")
        linear(layer + "qkv", (h + 2 * k) * e, d, c.bias or c.attention_bias or c.qkv_bias)
        if c.qk_norm:
            shapes[layer + "q_norm.weight"] = (h * e if c.span == "all" else e,)
            shapes[layer + "k_norm.weight"] = (k * e if c.span == "all" else e,)
        if c.sinks:
            shapes[layer + "sinks.weight"] = (h,)
        linear(layer + "attn_out", d, h * e, c.bias or c.attention_bias)
        if c.placement != "pre":
            norm(layer + "attn_post_norm")
        if c.placement != "post":
            norm(layer + "mlp_norm")
        if c.experts and i >= c.dense_layers:
            width = c.expert_ffn or f
            linear(layer + "router", c.experts, d, c.expert_biases)
            linear(layer + "experts.gate_up", c.experts * 2 * width, d, c.expert_biases)
            linear(layer + "experts.down", c.experts * d, width, c.expert_biases)
            if c.shared_ffn:
                linear(layer + "shared.gate_up", 2 * c.shared_ffn, d, False)
                linear(layer + "shared.down", d, c.shared_ffn, False)
                linear(layer + "shared_gate", 1, d, False)
        elif c.mlp != "gelu":
            linear(layer + "gate_up", 2 * f, d, c.bias)
            linear(layer + "down", d, f, c.bias)
        else:
            linear(layer + "up", f, d, c.bias)
            linear(layer + "down", d, f, c.bias)
        if c.placement != "pre":
            norm(layer + "mlp_post_norm")
    norm("final_norm")
    if not c.tied:
        shapes["head.weight"] = (c.vocab, d)
    return shapes


def initial_parameters(c):
    """float32 values; no value is exactly 0 or 1, so that no term of a gradient vanishes."""
    generator = torch.Generator().manual_seed(c.seed)
    values = {}
    for name, shape in parameter_shapes(c).items():
        z = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith(".bias"):
            z = 0.05 * z
        elif name.endswith("sinks.weight"):
            pass
        elif name.endswith("norm.weight"):
            z = (0 if c.less_one else 1) + 0.1 * z
        else:
            z = 0.08 * z
        values[name] = z.float()
    return values


def make_tokens(c):
    """int32 [STEPS, BATCH, seq + 1], Zipf-like with repeated pairs, so that the loss can fall."""
    generator = torch.Generator().manual_seed(1000 + c.seed)
    weights = 1.0 / (1.0 + torch.arange(c.vocab, dtype=torch.float64))
    shape = (STEPS, BATCH, c.seq + 1)
    drawn = torch.multinomial(weights, math.prod(shape), replacement=True, generator=generator).view(shape)
    follows = torch.rand(shape, generator=generator, dtype=torch.float64) < 0.5
    tokens = drawn.clone()
    for t in range(1, c.seq + 1):
        successor = (tokens[..., t - 1] * 7 + 3) % c.vocab
        tokens[..., t] = torch.where(follows[..., t], successor, drawn[..., t])
    return tokens.to(torch.int32)


def widen(x):
    """Converts to the dtype of norms, softmax and loss: at least float32, as in PyTorch's kernels."""
    return x.float() if x.dtype == torch.bfloat16 else x


def rms_norm(x, weight, eps):
    w = widen(x)
    return (w * torch.rsqrt(w.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def layer_norm(x, weight, bias, eps):
    w = widen(x)
    centred = w - w.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    return (centred * torch.rsqrt(variance + eps)).to(x.dtype) * weight + bias


def rope(x_BHSE, theta, yarn=()):
    """Rotates the pairs (i, i + E/2) by position * theta^(-2i/E), optionally scaled by YaRN (Peng et al., arXiv 2309.00071)."""
    s, e = x_BHSE.shape[-2:]
    frequency = theta ** (-torch.arange(0, e, 2, dtype=torch.float64) / e)
    scale = 1.0
    if yarn:
        factor, length, quick, slow, whole = yarn
        low, high = (e * math.log(length / (2 * math.pi * turns)) / (2 * math.log(theta)) for turns in (quick, slow))
        if whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, e - 1)
        kept = 1 - ((torch.arange(e // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        frequency = frequency * kept + frequency / factor * (1 - kept)
        scale = 0.1 * math.log(factor) + 1
    angle = torch.arange(s, dtype=torch.float64)[:, None] * frequency
    cos, sin = (scale * angle.cos()).to(x_BHSE.dtype), (scale * angle.sin()).to(x_BHSE.dtype)
    a, b = x_BHSE[..., : e // 2], x_BHSE[..., e // 2 :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def product(x, weight):
    """Of a layer's linear layers; make_fp8.py has another."""
    return x @ weight.T


def capped(x, cap):
    return cap * torch.tanh(x / cap) if cap else x


def forward(c, p, tokens_BS, routes=None):
    """Logits [B, S, V] in the dtype of the parameters `p`. Appends each layer's router probabilities [B, S, E] and choices [B, S, K]
    to `routes`."""
    h, k, e = c.heads, c.kv_heads, c.head_dim
    b, s = tokens_BS.shape

    def factor(name):
        return 1 + p[name + ".weight"] if c.less_one else p[name + ".weight"]

    def norm(x, name):
        if c.norm == "layer":
            return layer_norm(x, p[name + ".weight"], p[name + ".bias"], c.norm_eps)
        return rms_norm(x, factor(name), c.norm_eps)

    def linear(x, name):
        y = product(x, p[name + ".weight"])
        return y + p[name + ".bias"] if name + ".bias" in p else y

    def attention(x, layer, slides):
        q, key, value = linear(x, layer + "qkv").split((h * e, k * e, k * e), dim=-1)
        if c.span == "all":
            q, key = rms_norm(q, factor(layer + "q_norm"), c.norm_eps), rms_norm(key, factor(layer + "k_norm"), c.norm_eps)
        q, key, value = (t.view(b, s, -1, e).transpose(1, 2) for t in (q, key, value))
        if c.qk_norm and c.span == "head":
            q = rms_norm(q, factor(layer + "q_norm"), c.norm_eps)
            key = rms_norm(key, factor(layer + "k_norm"), c.norm_eps)
        if c.positions == "rope":
            local = slides and c.sliding_theta > 0
            turn = (c.sliding_theta,) if local else (c.rope_theta, c.yarn)
            turned = int(c.rotary_fraction * e)
            q, key = (torch.cat((rope(t[..., :turned], *turn), t[..., turned:]), -1) for t in (q, key))
        # Query head j reads key and value head j / (H / K).
        key, value = (t.repeat_interleave(h // k, dim=1) for t in (key, value))
        scores = capped(widen(q @ key.transpose(-1, -2)) * (c.score_scale or 1 / math.sqrt(c.query_scalar or e)), c.softcap)
        hidden = torch.ones(s, s, dtype=torch.bool).triu(1)
        if slides:
            hidden |= torch.ones(s, s, dtype=torch.bool).tril(-c.window)
        scores = scores.masked_fill(hidden, -math.inf)
        if c.sinks:
            scores = torch.cat((scores, widen(p[layer + "sinks.weight"]).view(1, h, 1, 1).expand(b, h, s, 1)), -1)
        weights = scores.softmax(-1)[..., :s].to(x.dtype)
        return linear((weights @ value).transpose(1, 2).reshape(b, s, h * e), layer + "attn_out")

    def experts(x, layer):
        """Every expert computes all tokens; those that did not choose it have the weight 0."""
        logits = widen(linear(x, layer + "router"))
        probs = logits.sigmoid() if c.sigmoid else logits.softmax(-1)
        biases = p.get(layer + "router_bias.weight", 0.0)
        chosen = (probs + biases).topk(c.per_token, dim=-1).indices
        chosen_probs = probs.gather(-1, chosen)
        if routes is not None:
            routes.append((probs / probs.sum(-1, keepdim=True), chosen))
        weights = c.expert_scale * chosen_probs / chosen_probs.sum(-1, keepdim=True)
        weights = torch.zeros_like(probs).scatter(-1, chosen, weights)
        y = torch.zeros_like(widen(x))
        for e in range(c.experts):
            def of_expert(x, name):
                y = x @ p[f"{layer}experts.{name}.weight"].chunk(c.experts)[e].T
                return y + p[f"{layer}experts.{name}.bias"].chunk(c.experts)[e] if c.expert_biases else y

            gate, up = of_expert(x, "gate_up").chunk(2, dim=-1)
            if c.mlp == "swiglu_clamped":  # gpt-oss's
                gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0) + 1
                act = gate * (1.702 * gate).sigmoid() * up
            else:
                act = F.silu(gate) * up
            out = of_expert(act, "down")
            y = y + weights[..., e : e + 1] * widen(out)
        if c.shared_ffn:
            gate, up = linear(x, layer + "shared.gate_up").chunk(2, dim=-1)
            factor = widen(linear(x, layer + "shared_gate")).sigmoid()
            y = y + factor * widen(linear(F.silu(gate) * up, layer + "shared.down"))
        return y.to(x.dtype)

    def mlp(x, layer):
        if layer + "router.weight" in p:
            return experts(x, layer)
        if c.mlp != "gelu":
            gate, up = linear(x, layer + "gate_up").chunk(2, dim=-1)
            gate = F.silu(gate) if c.mlp == "swiglu" else F.gelu(gate, approximate="tanh")
            return linear(gate * up, layer + "down")
        return linear(F.gelu(linear(x, layer + "up"), approximate="tanh"), layer + "down")

    x = p["embed.weight"][tokens_BS]
    if c.scaled:
        x = x * torch.tensor(math.sqrt(c.hidden), dtype=x.dtype)
    x = x * c.embedding_scale
    if c.positions == "learned":
        x = x + p["positions.weight"][:s]

    def before(x, name):
        return x if c.placement == "post" else norm(x, name)

    def after(x, name):
        return x if c.placement == "pre" else norm(x, name)

    for i in range(c.layers):
        layer = f"layers.{i}."
        slides = c.pattern[i % len(c.pattern)] == "sliding"
        x = x + c.residual_scale * after(attention(before(x, layer + "attn_norm"), layer, slides), layer + "attn_post_norm")
        x = x + c.residual_scale * after(mlp(before(x, layer + "mlp_norm"), layer), layer + "mlp_post_norm")
    x = norm(x, "final_norm")
    return capped(x @ p["embed.weight" if c.tied else "head.weight"].T / c.logit_divisor, c.logit_softcap)


def batch_loss(c, p, tokens):
    """Mean cross entropy over all predicted tokens of `tokens` [B, S + 1], and the sum of the layers' balance losses: of each sequence
    E / (K S) times the sum over experts of its tokens that chose the expert, times their mean probability of it. Also the number of
    tokens that chose each expert, by layer."""
    tokens = tokens.long()
    routes = []
    logits = forward(c, p, tokens[:, :-1], routes)
    balance, used = 0.0, []
    for probs, chosen in routes:
        counts = F.one_hot(chosen, c.experts).sum((1, 2))
        balance = balance + c.balance * c.experts / (c.per_token * c.seq) * (counts * probs.mean(1)).sum(-1).mean()
        used.append(counts.sum(0))
    return F.cross_entropy(widen(logits).flatten(0, 1), tokens[:, 1:].flatten()), balance, used


def learning_rate(t):
    """Learning rate of step t, counted from 1."""
    if t <= WARMUP:
        return PEAK_LR * t / WARMUP
    return MIN_LR + (PEAK_LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * (t - WARMUP) / (STEPS - WARMUP)))


def first_biases(c, dtype):
    """Of the experts of each layer that has some, if they have biases."""
    return {f"layers.{i}.router_bias.weight": torch.zeros(c.experts, dtype=dtype) for i in range(c.dense_layers, c.layers) if c.bias_rate}


def move_biases(c, biases, used):
    for b, counts in zip(biases.values(), used):
        b += c.bias_rate * torch.sign(counts.sum() - counts * c.experts)


def train(c, initial, tokens, master_dtype, compute_dtype):
    """AdamW on master weights in `master_dtype`, with parameters and activations in `compute_dtype`. Returns the weights with the experts'
    biases."""
    biases = first_biases(c, master_dtype)
    master = {n: v.to(master_dtype).clone().requires_grad_() for n, v in initial.items()}
    m = {n: torch.zeros_like(v) for n, v in master.items()}
    v = {n: torch.zeros_like(v) for n, v in master.items()}
    first_gradient, losses, norms, rates = {}, [], [], []
    for t in range(1, STEPS + 1):
        loss, balance, used = batch_loss(c, {n: w.to(compute_dtype) for n, w in master.items()} | biases, tokens[t - 1])
        gradients = dict(zip(master, torch.autograd.grad(loss + balance, list(master.values()))))
        norm = math.sqrt(sum(g.double().pow(2).sum().item() for g in gradients.values()))
        if t == 1:
            first_gradient = {n: g.clone() for n, g in gradients.items()}
        lr, factor = learning_rate(t), min(1.0, CLIP / norm)
        with torch.no_grad():
            for n, w in master.items():
                g = gradients[n] * factor
                m[n] = BETAS[0] * m[n] + (1 - BETAS[0]) * g
                v[n] = BETAS[1] * v[n] + (1 - BETAS[1]) * g * g
                m_hat, v_hat = m[n] / (1 - BETAS[0] ** t), v[n] / (1 - BETAS[1] ** t)
                decay = DECAY if w.ndim >= 2 else 0.0
                w -= lr * (m_hat / (v_hat.sqrt() + EPS) + decay * w)
        move_biases(c, biases, used)
        losses.append(loss.item())
        norms.append(norm)
        rates.append(lr)
    return master | biases, first_gradient, losses, norms, rates


def near(initial, run):
    """Weights that differ by less than bfloat16 resolves: another sample of its rounding. Run 0 has the weights of the file."""
    generator = torch.Generator().manual_seed(run)
    return {n: w * (1 + (1e-6 * torch.randn(w.shape, generator=generator) if run else 0)) for n, w in initial.items()}


def farthest(losses, runs):
    """The run with the largest deviation. Deviations vary by a factor of three between samples, so the largest of several is
    used."""
    return max(runs, key=lambda run: max(abs(a - b) for a, b in zip(losses, run)))


def main():
    torch.set_num_threads(1)
    here = pathlib.Path(__file__).parent
    for c in CONFIGS:
        if sys.argv[1:] and c.name not in sys.argv[1:]:
            continue
        initial, tokens = initial_parameters(c), make_tokens(c)
        final, gradient, losses, norms, rates = train(c, initial, tokens, torch.float64, torch.float64)
        losses_bf16 = farthest(losses, [train(c, near(initial, run), tokens, torch.float32, torch.bfloat16)[2] for run in range(8)])
        tensors = {"tokens": tokens}
        for prefix, group in (("init.", initial), ("grad.", gradient), ("final.", final)):
            tensors |= {prefix + n: w.detach().float().contiguous() for n, w in group.items()}
        tensors |= {"init." + n: torch.zeros_like(w).float() for n, w in final.items() if n not in initial}
        series_of = {"loss": losses, "grad_norm": norms, "lr": rates, "loss_bf16": losses_bf16}
        for name, series in series_of.items():
            tensors[name] = torch.tensor(series, dtype=torch.float64)
        # One metadata key only: the writer does not keep the order of several, and the file must be reproducible.
        path = here / f"{c.name}.safetensors"
        save_file(tensors, path, metadata={"config": json.dumps(asdict(c) | {"torch": torch.__version__})})
        path.chmod(0o644)
        strays = max(abs(a - b) for a, b in zip(losses, losses_bf16))
        print(f"{c.name}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, "
              f"grad norm {min(norms):.3f}..{max(norms):.3f}, bf16 strays {strays:.2e}")


if __name__ == "__main__":
    main()
