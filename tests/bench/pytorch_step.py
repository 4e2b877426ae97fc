#!/usr/bin/env python3
"""Times a full training step of the benchmark model in PyTorch, for comparison with step_bench.

Forward, cross entropy, backward, clipping by the global norm, AdamW. Prints one JSON line. The defaults were the fastest on an
AVX-512 machine; options allow measuring the others.
"""

import argparse
import json
import math
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ModuleNotFoundError:
    sys.exit("no torch")

LAYERS, HIDDEN, HEADS, FFN, SEQ, BATCH = 6, 384, 6, 1024, 256, 8
HEAD_DIM = HIDDEN // HEADS
LR, BETAS, EPS, DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, required=True)
    parser.add_argument("--precision", choices=["fp32", "bf16"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5, help="steps before them that are not timed")
    parser.add_argument("--mode", choices=["eager", "compile"], default="compile")
    parser.add_argument("--bf16", choices=["master", "autocast"], default="master",
                        help="bf16 parameters over fp32 masters, or fp32 parameters under autocast")
    parser.add_argument("--loss-chunk", type=int, default=None,
                        help="tokens in a chunk of the head; 0: all at once")
    parser.add_argument("--optimizer", choices=["auto", "fused", "compiled"], default="auto")
    parser.add_argument("--isa", choices=["auto", "avx2"], default="auto",
                        help="avx2: of compiled code; step.sh limits the libraries")
    parser.add_argument("--autotune", action="store_true", help="inductor's max-autotune")
    return parser.parse_args()


def make_parameters(vocab):
    """name -> float32 tensor; a linear's weight is [out, in]."""
    generator = torch.Generator().manual_seed(1)

    def matrix(*shape):
        return torch.randn(shape, generator=generator) * 0.02

    p = {"embed": matrix(vocab, HIDDEN)}
    for i in range(LAYERS):
        p[f"{i}.attn_norm"] = torch.ones(HIDDEN)
        p[f"{i}.qkv"] = matrix(3 * HIDDEN, HIDDEN)
        p[f"{i}.attn_out"] = matrix(HIDDEN, HIDDEN)
        p[f"{i}.mlp_norm"] = torch.ones(HIDDEN)
        p[f"{i}.gate_up"] = matrix(2 * FFN, HIDDEN)
        p[f"{i}.down"] = matrix(HIDDEN, FFN)
    p["final_norm"] = torch.ones(HIDDEN)
    p["head"] = matrix(vocab, HIDDEN)
    return p


def rope_tables(dtype):
    frequency = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = torch.arange(SEQ)[:, None, None] * frequency
    cos, sin = angle.cos(), angle.sin()  # [S, 1, E/2]
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rope(x_BSHE, tables):
    cos, signed_sin = tables
    a, b = x_BSHE.chunk(2, dim=-1)
    return x_BSHE * cos + torch.cat((b, a), -1) * signed_sin


def hidden_states(p, tables, tokens_BS):
    x = F.embedding(tokens_BS, p["embed"])
    for i in range(LAYERS):
        h = F.rms_norm(x, (HIDDEN,), p[f"{i}.attn_norm"], 1e-5)
        q, k, v = F.linear(h, p[f"{i}.qkv"]).view(BATCH, SEQ, 3, HEADS, HEAD_DIM).unbind(2)
        q, k, v = rope(q, tables).transpose(1, 2), rope(k, tables).transpose(1, 2), v.transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(attended.transpose(1, 2).reshape(BATCH, SEQ, HIDDEN), p[f"{i}.attn_out"])
        h = F.rms_norm(x, (HIDDEN,), p[f"{i}.mlp_norm"], 1e-5)
        gate, up = F.linear(h, p[f"{i}.gate_up"]).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, p[f"{i}.down"])
    return F.rms_norm(x, (HIDDEN,), p["final_norm"], 1e-5).flatten(0, 1)


def chunk_loss(logits, targets, scale):
    """Summed loss of a chunk, and the gradient of `scale` x loss with respect to the logits."""
    wide = logits.float()
    log_sum = wide.logsumexp(-1, keepdim=True)
    loss = (log_sum - wide.gather(-1, targets[:, None])).sum()
    columns = torch.arange(logits.shape[-1])
    gradient = ((wide - log_sum).exp() - (columns == targets[:, None]).float()) * scale
    return loss, gradient.to(logits.dtype)


class ChunkedHead(torch.autograd.Function):
    """Head and cross entropy. Gradients are computed in the forward pass, so that few logits exist at a time."""

    @staticmethod
    def forward(ctx, x, weight, targets, chunk, loss_of):
        total = x.shape[0]
        dx, dweight, loss = torch.empty_like(x), None, 0.0
        for at in range(0, total, chunk):
            rows = slice(at, at + chunk)
            part, dlogits = loss_of(x[rows] @ weight.T, targets[rows], 1.0 / total)
            loss = loss + part
            torch.mm(dlogits, weight, out=dx[rows])
            if dweight is None:
                dweight = dlogits.T @ x[rows]
            else:
                dweight.addmm_(dlogits.T, x[rows])
        ctx.save_for_backward(dx, dweight)
        return loss / total

    @staticmethod
    def backward(ctx, upstream):  # upstream is 1, since the loss is the root
        return *ctx.saved_tensors, None, None, None


def full_loss(x, weight, targets):
    return F.cross_entropy(F.linear(x, weight).float(), targets)


def compiled_update(master, moments1, moments2, step, gradients, storage):
    """Clipping and AdamW in one graph. `storage`: bf16 copies of the master weights, or None."""
    total = torch.stack([g.float().pow(2).sum() for g in gradients]).sum().sqrt()
    factor = (CLIP / (total + 1e-6)).clamp(max=1.0)
    step += 1
    step_size = LR / (1 - BETAS[0] ** step)
    root2 = (1 - BETAS[1] ** step).sqrt()
    for i, w in enumerate(master):
        g = gradients[i].float() * factor
        moments1[i].lerp_(g, 1 - BETAS[0])
        moments2[i].mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
        if w.ndim >= 2:
            w.mul_(1 - LR * DECAY)
        w.sub_(step_size * moments1[i] / (moments2[i].sqrt() / root2 + EPS))
        if storage is not None:
            storage[i].copy_(w)


def make_update(args, master, parameters):
    """A function without arguments that clips, updates and clears gradients."""
    separate = parameters is not master
    names = list(master)
    if args.optimizer == "compiled":
        w = [master[n].detach() for n in names]
        m, v = [torch.zeros_like(x) for x in w], [torch.zeros_like(x) for x in w]
        step = torch.zeros(())
        storage = [parameters[n].detach() for n in names] if separate else None
        graph = torch.compile(compiled_update, dynamic=False, fullgraph=True)

        def update():
            with torch.no_grad():
                graph(w, m, v, step, [parameters[n].grad for n in names], storage)
            for n in names:
                parameters[n].grad = None

        return update
    optimizer = torch.optim.AdamW(
        [{"params": [w for w in master.values() if w.ndim >= 2], "weight_decay": DECAY},
         {"params": [w for w in master.values() if w.ndim < 2], "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPS, fused=True)

    def update():
        if separate:
            for n in names:
                master[n].grad = parameters[n].grad.float()
                parameters[n].grad = None
        torch.nn.utils.clip_grad_norm_(master.values(), CLIP, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if separate:
            with torch.no_grad():
                torch._foreach_copy_([parameters[n] for n in names], [master[n] for n in names])

    return update


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    compiling = args.mode == "compile"
    if args.loss_chunk is None:
        args.loss_chunk = 0 if args.vocab < 4096 else 512
    if args.optimizer == "auto":
        args.optimizer = "compiled" if compiling else "fused"
    if args.autotune:
        import torch._inductor.config as inductor
        inductor.max_autotune = True
    if args.isa == "avx2":
        import torch._inductor.config as inductor
        inductor.cpp.simdlen = 256
        if torch.backends.cpu.get_cpu_capability() != "AVX2":
            sys.exit("torch uses " + torch.backends.cpu.get_cpu_capability() + ": set ATEN_CPU_CAPABILITY=avx2")
    narrow = args.precision == "bf16" and args.bf16 == "master"
    autocast = args.precision == "bf16" and args.bf16 == "autocast"

    master = {n: w.requires_grad_() for n, w in make_parameters(args.vocab).items()}
    parameters = {n: w.detach().bfloat16().requires_grad_() for n, w in master.items()} if narrow else master
    tables = rope_tables(torch.bfloat16 if args.precision == "bf16" else torch.float32)
    chunked = args.loss_chunk > 0

    def body(p, tokens, targets):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            x = hidden_states(p, tables, tokens)
            return x if chunked else full_loss(x, p["head"], targets)

    loss_of = chunk_loss
    if compiling:
        body = torch.compile(body, dynamic=False, fullgraph=True)
        loss_of = torch.compile(chunk_loss, dynamic=False, fullgraph=True)
    update = make_update(args, master, parameters)

    generator = torch.Generator().manual_seed(2)
    seconds, loss = [], math.nan
    for i in range(args.warmup + args.steps):
        tokens = torch.randint(args.vocab, (BATCH, SEQ + 1), generator=generator)
        started = time.perf_counter()
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1)
        out = body(parameters, inputs, targets)
        if chunked:
            head = parameters["head"].bfloat16() if autocast else parameters["head"]
            out = ChunkedHead.apply(out.to(head.dtype), head, targets, args.loss_chunk, loss_of)
        out.backward()
        update()
        loss = out.item()
        if i >= args.warmup:
            seconds.append(time.perf_counter() - started)
    print(json.dumps({
        "impl": f"pytorch-{args.mode}", "vocab": args.vocab, "precision": args.precision,
        "threads": args.threads, "isa": args.isa, "step_seconds": seconds, "tokens_per_step": BATCH * SEQ, "loss": loss,
        "torch": torch.__version__}))


if __name__ == "__main__":
    main()
