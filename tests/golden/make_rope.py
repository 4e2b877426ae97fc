#!/usr/bin/env python3
"""Writes rope.txt beside this file: inverse frequencies and attention factors from transformers' modeling_rope_utils.

A line is: kind, head size, theta, factor, original length, three or four numbers of the kind, `|`, the attention factor, the
frequencies. transformers computes in float32. Here its functions run in float64, so that differences show formulas and not
rounding.
"""

import pathlib

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CASES = [
    ("linear", 16, 10000.0, 4.0, 0, {}),
    ("llama3", 64, 500000.0, 32.0, 8192, {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ("llama3", 128, 500000.0, 8.0, 8192, {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ("llama3", 20, 10000.0, 3.0, 100, {"low_freq_factor": 0.5, "high_freq_factor": 7.0}),
    ("yarn", 128, 1000000.0, 4.0, 32768, {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None, "truncate": True}),
    ("yarn", 64, 150000.0, 32.0, 4096, {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None, "truncate": False}),
    ("yarn", 24, 10000.0, 2.5, 64, {"beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.25, "truncate": True}),
    ("yarn", 8, 100.0, 16.0, 8, {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None, "truncate": True}),
]


def main():
    torch.float = torch.float64
    lines = []
    for kind, size, theta, factor, original, rest in CASES:
        rope = {"rope_type": kind, "rope_theta": theta, "factor": factor, **{k: v for k, v in rest.items() if v is not None}}
        if original:
            rope["original_max_position_embeddings"] = original
        config = transformers.LlamaConfig(hidden_size=4 * size, num_attention_heads=4, head_dim=size, max_position_embeddings=131072,
                                          rope_parameters=rope)
        frequencies, attention = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        values = [repr(float(0.0 if v is None else v)) for v in rest.values()]
        lines.append(" ".join([kind, str(size), repr(theta), repr(factor), str(original), *values, "|", repr(float(attention)),
                               *(repr(f) for f in frequencies.double().tolist())]))
    (pathlib.Path(__file__).parent / "rope.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
