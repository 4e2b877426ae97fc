#!/usr/bin/env python3
"""Writes the reference runs muon_llama.safetensors, muon_qwen.safetensors and muon_shared.safetensors beside this file.

The transformers of make_golden.py from the same initial values, trained for twenty steps by Muon in float32: README.md lists a
file's contents. torch.optim.Muon iterates in bfloat16, this code in float32.
"""

import json
import math
import pathlib
from dataclasses import asdict

import make_golden as golden
import torch
from safetensors.torch import save_file

STEPS, WARMUP = 20, 3
LR, MIN_LR, ADAMW_LR, MOMENTUM = 2e-2, 4e-4, 5e-3, 0.95
COEFFICIENTS, ITERATIONS, EPS = (3.4445, -4.7750, 2.0315), 5, 1e-7
MATRICES = ("qkv.weight", "attn_out.weight", "gate_up.weight", "up.weight", "down.weight")


def learning_rate(t):
    """Learning rate of the matrices in step t, counted from 1."""
    if t <= WARMUP:
        return LR * t / WARMUP
    return MIN_LR + (LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * (t - WARMUP) / (STEPS - WARMUP)))


def orthogonalised(g):
    """Approximates U V^T for g = U S V^T."""
    a, b, c = COEFFICIENTS
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (x.norm() + EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def whole_matrices(c, name):
    """Rows of the matrices in a merged tensor."""
    if name.endswith("qkv.weight"):
        return [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
    if name.endswith("experts.gate_up.weight"):
        return 2 * c.experts * [c.expert_ffn]
    if name.endswith("experts.down.weight"):
        return c.experts * [c.hidden]
    width = c.shared_ffn if ".shared." in name else c.ffn
    return [width, width] if name.endswith("gate_up.weight") else None


def make_tokens(c):
    """int32 [STEPS, BATCH, seq + 1], as in make_golden, except for the number of steps."""
    before, golden.STEPS = golden.STEPS, STEPS
    tokens = golden.make_tokens(c)
    golden.STEPS = before
    return tokens


def train(c, initial, tokens):
    weights = {n: w.clone().requires_grad_() for n, w in initial.items()}
    momentum = {n: torch.zeros_like(w) for n, w in weights.items()}
    second = {n: torch.zeros_like(w) for n, w in weights.items()}
    biases = golden.first_biases(c, next(iter(weights.values())).dtype)
    losses, norms = [], []
    for t in range(1, STEPS + 1):
        loss, balance, used = golden.batch_loss(c, weights | biases, tokens[t - 1])
        gradients = dict(zip(weights, torch.autograd.grad(loss + balance, list(weights.values()))))
        norm = math.sqrt(sum(g.double().pow(2).sum().item() for g in gradients.values()))
        lr, factor = learning_rate(t), min(1.0, golden.CLIP / norm)
        with torch.no_grad():
            for n, w in weights.items():
                g = gradients[n] * factor
                decay = golden.DECAY if w.ndim >= 2 else 0.0
                if n.endswith(MATRICES):
                    momentum[n].lerp_(g, 1 - MOMENTUM)
                    direction = g.lerp(momentum[n], MOMENTUM)
                    rows = whole_matrices(c, n) or [w.shape[0]]
                    step = torch.cat([orthogonalised(d) * math.sqrt(max(1, d.shape[0] / d.shape[1]))
                                      for d in direction.split(rows)])
                    w.mul_(1 - lr * decay).sub_(lr * step)
                    continue
                b1, b2 = golden.BETAS
                momentum[n] = b1 * momentum[n] + (1 - b1) * g
                second[n] = b2 * second[n] + (1 - b2) * g * g
                m, v = momentum[n] / (1 - b1**t), second[n] / (1 - b2**t)
                w -= lr * ADAMW_LR / LR * (m / (v.sqrt() + golden.EPS) + decay * w)
        golden.move_biases(c, biases, used)
        losses.append(loss.item())
        norms.append(norm)
    return weights | biases, losses, norms


def main():
    torch.set_num_threads(1)
    here = pathlib.Path(__file__).parent
    for c in golden.CONFIGS:
        if c.name not in ("llama", "qwen", "shared"):
            continue
        tokens = make_tokens(c)
        final, losses, norms = train(c, golden.initial_parameters(c), tokens)
        tensors = {"tokens": tokens} | {"final." + n: w.detach().contiguous() for n, w in final.items()}
        for name, series in {"loss": losses, "grad_norm": norms}.items():
            tensors[name] = torch.tensor(series, dtype=torch.float64)
        path = here / f"muon_{c.name}.safetensors"
        save_file(tensors, path, metadata={"config": json.dumps(asdict(c) | {"torch": torch.__version__})})
        path.chmod(0o644)
        # Difference to float64 in the same steps: the effect of rounding on the iteration.
        exact = train(c, {n: w.double() for n, w in golden.initial_parameters(c).items()}, tokens)[1]
        strays = max(abs(a - b) / b for a, b in zip(losses, exact))
        print(f"{c.name}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, grad norm {min(norms):.3f}..{max(norms):.3f}, "
              f"float64 is {strays:.2e} away")


if __name__ == "__main__":
    main()
