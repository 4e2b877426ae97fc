#!/usr/bin/env python3
"""Writes the reference runs rules_llama.safetensors beside this file.

The transformer "llama" of make_golden.py from the same initial values and tokens, trained in float32 by Lion and by SGD with momentum:
README.md lists the file's contents. SGD is torch.optim.SGD after a decay of the matrices; PyTorch has no Lion.
"""

import json
import math
import pathlib
from dataclasses import asdict

import make_golden as golden
import torch
from safetensors.torch import save_file

LION_BETAS = (0.9, 0.99)
RATES = {"lion": 1e-3, "sgd": 0.1, "nesterov": 0.1}


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al., Symbolic Discovery of Optimization Algorithms, arXiv 2302.06675, without its decay."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        b1, b2 = LION_BETAS
        for group in self.param_groups:
            for w in group["params"]:
                m = self.state[w].setdefault("m", torch.zeros_like(w))
                w -= group["lr"] * torch.sign(b1 * m + (1 - b1) * w.grad)
                m.mul_(b2).add_(w.grad, alpha=1 - b2)


def train(c, initial, tokens, rule):
    weights = {n: w.clone().requires_grad_() for n, w in initial.items()}
    optimizer = (Lion(weights.values(), lr=0) if rule == "lion" else
                 torch.optim.SGD(weights.values(), lr=0, momentum=0.9, nesterov=rule == "nesterov"))
    losses, norms = [], []
    for t in range(1, golden.STEPS + 1):
        lr = golden.learning_rate(t) / golden.PEAK_LR * RATES[rule]
        optimizer.zero_grad()
        loss, balance, _ = golden.batch_loss(c, weights, tokens[t - 1])
        (loss + balance).backward()
        norm = math.sqrt(sum(w.grad.double().pow(2).sum().item() for w in weights.values()))
        with torch.no_grad():
            for w in weights.values():
                w.grad *= min(1.0, golden.CLIP / norm)
                if w.ndim >= 2:
                    w.mul_(1 - lr * golden.DECAY)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return weights, losses, norms


def main():
    torch.set_num_threads(1)
    c = next(c for c in golden.CONFIGS if c.name == "llama")
    initial, tokens, tensors = golden.initial_parameters(c), golden.make_tokens(c), {}
    for rule in RATES:
        final, losses, norms = train(c, initial, tokens, rule)
        tensors |= {f"{rule}.final.{n}": w.detach().contiguous() for n, w in final.items()}
        tensors[f"{rule}.loss"] = torch.tensor(losses, dtype=torch.float64)
        tensors[f"{rule}.grad_norm"] = torch.tensor(norms, dtype=torch.float64)
        exact = train(c, {n: w.double() for n, w in initial.items()}, tokens, rule)
        strays = max(abs(a - b) / b for a, b in zip(losses, exact[1]))
        apart = max(((final[n].double() - w).norm() / w.norm()).item() for n, w in exact[0].items())
        print(f"{rule}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, grad norm {min(norms):.3f}..{max(norms):.3f}, "
              f"float64 is {strays:.2e} away, its weights {apart:.2e}")
    path = pathlib.Path(__file__).parent / "rules_llama.safetensors"
    save_file(tensors, path, metadata={"config": json.dumps(asdict(c) | {"torch": torch.__version__})})
    path.chmod(0o644)


if __name__ == "__main__":
    main()
