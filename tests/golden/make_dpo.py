#!/usr/bin/env python3
"""Writes dpo_llama.safetensors and dpo_smooth.safetensors beside this file: direct preference optimisation of make_golden.py's
llama. The initial values are also the reference model.

The loss is the sigmoid loss of TRL's DPOTrainer, written out. --trl compares it with TRL's own on the fixture's log-probabilities
and does not write files.
"""

import inspect
import json
import pathlib
import re
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from make_golden import BETAS, CLIP, CONFIGS, DECAY, EPS, STEPS, forward, initial_parameters, learning_rate

PAIRS = 4  # per step
CASES = {"dpo_llama": {"beta": 0.5, "label_smoothing": 0.0}, "dpo_smooth": {"beta": 0.3, "label_smoothing": 0.1}}


def make_pairs(c, seed):
    """Per step and pair: the prompt's length, and two token sequences of prompt and answer."""
    generator = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    def tokens(count):
        return torch.randint(0, c.vocab, (count,), generator=generator)

    steps = []
    for _ in range(STEPS):
        pairs = []
        for _ in range(PAIRS):
            prompt = tokens(number(2, 6))
            answers = [torch.cat((prompt, tokens(number(1, 8)))) for _ in range(2)]
            # The last pair of a step fills its sample to the last token.
            if len(pairs) + 1 == PAIRS:
                answers[1] = torch.cat((answers[1], tokens(c.seq + 1 - len(answers[0]) - len(answers[1]))))
            pairs.append((len(prompt), *answers))
        steps.append(pairs)
    return steps


def answer_logps(c, p, prompt, tokens):
    """Sum of the log-probabilities of the tokens after the prompt."""
    logps = forward(c, p, tokens[None, :-1])[0].log_softmax(-1)
    return logps.gather(-1, tokens[1:, None])[prompt - 1 :, 0].sum()


def pair_logps(c, p, pairs):
    """[pairs, 2]: log-probabilities of the chosen and the rejected answer."""
    return torch.stack([torch.stack([answer_logps(c, p, prompt, a) for a in answers]) for prompt, *answers in pairs])


def dpo_loss(policy, reference, beta, label_smoothing):
    """Loss per pair as in trl.trainer.dpo_trainer with loss_type "sigmoid", with the label smoothing (Mitchell's conservative DPO)
    of TRL 0.x."""
    logits = (policy[:, 0] - policy[:, 1]) - (reference[:, 0] - reference[:, 1])
    return -F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing


def train(c, steps, options):
    initial = initial_parameters(c)
    master = {n: v.double().clone().requires_grad_() for n, v in initial.items()}
    m = {n: torch.zeros_like(v) for n, v in master.items()}
    v = {n: torch.zeros_like(v) for n, v in master.items()}
    frozen = {n: w.double() for n, w in initial.items()}
    out = {name: [] for name in ("reference", "policy", "loss", "grad_norm", "margin", "accuracy", "chosen", "rejected")}
    gradient = {}
    for t, pairs in enumerate(steps, 1):
        with torch.no_grad():
            reference = pair_logps(c, frozen, pairs)
        policy = pair_logps(c, master, pairs)
        loss = dpo_loss(policy, reference, **options).mean()
        gradients = dict(zip(master, torch.autograd.grad(loss, list(master.values()))))
        norm = sum(g.pow(2).sum() for g in gradients.values()).sqrt()
        gradient = gradient or {n: g.clone() for n, g in gradients.items()}
        rewards = options["beta"] * (policy.detach() - reference)
        margin = rewards[:, 0] - rewards[:, 1]
        for name, value in (("reference", reference), ("policy", policy.detach()), ("loss", loss.detach()), ("grad_norm", norm),
                            ("margin", margin.mean()), ("accuracy", (margin > 0).double().mean()),
                            ("chosen", rewards[:, 0].mean()), ("rejected", rewards[:, 1].mean())):
            out[name].append(value)
        lr, factor = learning_rate(t), min(1.0, CLIP / norm.item())
        with torch.no_grad():
            for n, w in master.items():
                g = gradients[n] * factor
                m[n] = BETAS[0] * m[n] + (1 - BETAS[0]) * g
                v[n] = BETAS[1] * v[n] + (1 - BETAS[1]) * g * g
                m_hat, v_hat = m[n] / (1 - BETAS[0] ** t), v[n] / (1 - BETAS[1] ** t)
                w -= lr * (m_hat / (v_hat.sqrt() + EPS) + (DECAY if w.ndim >= 2 else 0.0) * w)
    return {n: torch.stack(x) for n, x in out.items()}, gradient, master


def packed(c, steps):
    """Pairs in the form of samples: `tokens` [steps, pairs, seq + 1], and per pair the prompt, the chosen answer's end and the
    rejected one's."""
    tokens = torch.zeros(STEPS, PAIRS, c.seq + 1, dtype=torch.int32)
    ends = torch.zeros(STEPS, PAIRS, 3, dtype=torch.int32)
    for t, pairs in enumerate(steps):
        for i, (prompt, chosen, rejected) in enumerate(pairs):
            both = torch.cat((chosen, rejected))
            tokens[t, i, : len(both)] = both
            ends[t, i] = torch.tensor([prompt, len(chosen), len(both)])
    return {"tokens": tokens, "ends": ends}


def trl_loss(policy, reference, beta, label_smoothing):
    """TRL's own loss per pair: the code of its DPOTrainer for "sigmoid". TRL 1.16 has no label smoothing there; for a batch of one
    pair its "aot" (which sorts over the batch) is the smoothed loss."""
    import textwrap

    import trl
    from trl.trainer import dpo_trainer

    branch = "aot" if label_smoothing else "sigmoid"
    source = textwrap.dedent(re.search(rf'if loss_type == "{branch}":\n(.*?)\n\s*elif loss_type', inspect.getsource(dpo_trainer), re.S).group(1))
    print(f"trl {trl.__version__}, {branch}:\n{textwrap.indent(source.strip(), '  ')}")

    def of_pair(p, r):
        scope = {"F": F, "torch": torch, "self": type("Options", (), {"beta": beta, "label_smoothing": label_smoothing})(),
                 "chosen_logps": p[:1], "rejected_logps": p[1:], "ref_chosen_logps": r[:1], "ref_rejected_logps": r[1:],
                 "delta_score": (p[:1] - r[:1]) - (p[1:] - r[1:])}
        exec(source, scope)
        return scope["per_sequence_loss"]

    return torch.cat([of_pair(p, r) for p, r in zip(policy, reference)])


def main():
    torch.set_num_threads(1)
    here = pathlib.Path(__file__).parent
    c = next(config for config in CONFIGS if config.name == "llama")
    for number, (name, options) in enumerate(CASES.items()):
        steps = make_pairs(c, 2000 + number)
        series, gradient, final = train(c, steps, options)
        if "--trl" in sys.argv[1:]:
            policy, reference = series["policy"].flatten(0, 1), series["reference"].flatten(0, 1)
            ours, theirs = dpo_loss(policy, reference, **options), trl_loss(policy, reference, **options)
            print(f"{name}: {len(ours)} pairs, the largest difference from TRL is {(ours - theirs).abs().max().item():.1e}")
            continue
        tensors = packed(c, steps) | series
        for prefix, group in (("grad.", gradient), ("final.", final)):
            tensors |= {prefix + n: w.detach().float().contiguous() for n, w in group.items()}
        path = here / f"{name}.safetensors"
        save_file(tensors, path, metadata={"config": json.dumps(options | {"torch": torch.__version__})})
        path.chmod(0o644)
        print(f"{name}: loss {series['loss'][0]:.6f} -> {series['loss'][-1]:.6f}, margin {series['margin'][-1]:.4f}")


if __name__ == "__main__":
    main()
