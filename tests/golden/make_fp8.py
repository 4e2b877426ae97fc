#!/usr/bin/env python3
"""Writes the reference run fp8_llama.safetensors beside this file.

The llama of make_golden.py from the same initial values, with bfloat16 parameters and activations over float32 masters, and the
products of the linear layers in FP8: their operands are rounded to PyTorch's float8_e4m3fn in blocks of 128 along the sum, weights of
y = x W^T and dx = dy W in blocks of 128 x 128, by the largest power of two that keeps a block within 448. README.md lists the file's
contents.
"""

import json
import pathlib
from dataclasses import asdict

import make_golden as golden
import torch
from safetensors.torch import save_file

BLOCK, LARGEST, RUNS = 128, 448.0, 8


def rounded(x, rows, columns):
    """A matrix with its elements as FP8 holds them, in blocks of this size."""
    out = torch.empty_like(x)
    for r in range(0, x.shape[0], rows):
        for c in range(0, x.shape[1], columns):
            block = x[r:r + rows, c:c + columns].float()
            largest = block.abs().max().item()
            scale = 2.0 ** torch.floor(torch.log2(torch.tensor(LARGEST / largest, dtype=torch.float64))).item() if largest else 1.0
            out[r:r + rows, c:c + columns] = (block * scale).to(torch.float8_e4m3fn).float() / scale
    return out


class Product(torch.autograd.Function):
    """y = x W^T of matrices. Sums are in float32 and rounded once."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (rounded(x, 1, BLOCK).float() @ rounded(weight, BLOCK, BLOCK).float().T).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx = rounded(dy, 1, BLOCK).float() @ rounded(weight, BLOCK, BLOCK).float()
        dw = rounded(dy, BLOCK, 1).float().T @ rounded(x, BLOCK, 1).float()
        return dx.to(x.dtype), dw.to(weight.dtype)


def product(x, weight):
    return Product.apply(x.flatten(0, -2), weight).unflatten(0, x.shape[:-1])


def difference(a, b):
    """Of all gradients, relative."""
    return (sum((a[n].double() - b[n].double()).pow(2).sum() for n in b) / sum(g.double().pow(2).sum() for g in b.values())).sqrt().item()


def main():
    torch.set_num_threads(1)
    c = next(c for c in golden.CONFIGS if c.name == "llama")
    initial, tokens = golden.initial_parameters(c), golden.make_tokens(c)
    _, exact, losses, _, _ = golden.train(c, initial, tokens, torch.float64, torch.float64)
    plain, golden.product = golden.product, product
    runs = [golden.train(c, golden.near(initial, run), tokens, torch.float32, torch.bfloat16) for run in range(RUNS)]
    wide = golden.train(c, initial, tokens, torch.float64, torch.float64)[1]
    golden.product = plain
    gradient = runs[0][1]
    farthest = golden.farthest(losses, [run[2] for run in runs])
    tensors = {"grad." + n: g.float().contiguous() for n, g in gradient.items()} | {"loss": torch.tensor(farthest, dtype=torch.float64)}
    path = pathlib.Path(__file__).parent / "fp8_llama.safetensors"
    save_file(tensors, path, metadata={"config": json.dumps(asdict(c) | {"torch": torch.__version__})})
    path.chmod(0o644)
    print(f"gradients differ from float64's by {difference(gradient, exact):.2e}, and by {difference(wide, gradient):.2e} from those with "
          f"float64 activations before FP8; losses stray {max(abs(a - b) for a, b in zip(losses, farthest)):.2e}")


if __name__ == "__main__":
    main()
