#!/usr/bin/env python3
"""Times training steps of a job's model in PyTorch, for comparison with train_bench. Prints one JSON line.

Same shapes, same initial weights (drawn by the same counter-based generator, on the device), same batches, same optimizer. It uses
fast PyTorch techniques: torch.compile of a block whose residual comes as an unsummed pair, merged QKV and gate/up, cuDNN's or flash
attention (the faster on these shapes, timed here), a chunked head with its gradient, fused AdamW.

usage: pytorch_train.py SHAPES.json, as `train_bench JOB.yaml --describe` writes it
"""

import argparse
import json
import math
import os
import sys
import time

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
try:
    import torch
    import torch.nn.functional as F
except ModuleNotFoundError:
    sys.exit("no torch")

LOW32 = 0xFFFFFFFF
LOW64 = 0xFFFFFFFFFFFFFFFF


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes")
    parser.add_argument("--mode", choices=["eager", "default", "max-autotune-no-cudagraphs"], default="default")
    parser.add_argument("--attention", choices=["auto", "cudnn", "flash", "any"], default="auto",
                        help="auto: the faster of cuDNN's and flash attention; any: PyTorch's own choice")
    parser.add_argument("--deterministic", action="store_true", help="deterministic backward passes, as `attention: deterministic`")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--head-chunk", type=int, default=4096, help="tokens of the head at a time")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    return parser.parse_args()


# ---- The generator of kernels/tensor/rng.h, in 64-bit integers that wrap ----

def philox(key, low, high=0):
    """Philox4x32-10 of counters with the halves `low` (int64 tensor) and `high` (number): four tensors of 32-bit values."""
    c0, c1 = low & LOW32, (low >> 32) & LOW32
    c2, c3 = torch.full_like(c0, high & LOW32), torch.full_like(c0, high >> 32)
    k0, k1 = key & LOW32, key >> 32
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((p1 >> 32) & LOW32) ^ c1 ^ k0, p1 & LOW32, ((p0 >> 32) & LOW32) ^ c3 ^ k1, p0 & LOW32
        k0, k1 = (k0 + 0x9E3779B9) & LOW32, (k1 + 0xBB67AE85) & LOW32
    return c0, c1, c2, c3


def hash_name(name, seed):
    h = 0xCBF29CE484222325 ^ (seed * 0x9E3779B97F4A7C15 & LOW64)
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & LOW64
    return h ^ (h >> 29)


def unit(bits):
    return ((bits >> 8) + 1).to(torch.float32) * 2.0 ** -24


def draw_normal(shape, key, stddev, device, dtype):
    """stddev * normal(key, row-major index), in fp32, then in `dtype`."""
    count = math.prod(shape)
    out = torch.empty(count, dtype=dtype, device=device)
    stddev = torch.tensor(stddev, dtype=torch.float32, device=device)
    chunk = 1 << 24
    for first in range(0, count, chunk):
        n = min(chunk, count - first)
        bits = philox(key, torch.arange(first // 4, (first + n + 3) // 4, device=device))
        values = []
        for radius_bits, angle_bits in ((bits[0], bits[1]), (bits[2], bits[3])):
            radius = torch.sqrt(-2.0 * torch.log(unit(radius_bits)))
            angle = 6.28318530717958647692 * unit(angle_bits)
            values += [radius * torch.cos(angle), radius * torch.sin(angle)]
        out[first:first + n] = (torch.stack(values, 1).flatten()[:n] * stddev).to(dtype)
    return out.view(shape)


def draw_tokens(s, step, device):
    """The batch of a step (from 1), [sequences, seq_len + 1]: token i of sample b is vocab u^3 of philox(step, i, b). The
    distribution is skewed, so that the loss can fall."""
    positions = torch.arange(s["seq_len"] + 1, device=device)
    first = [philox(step, positions, sample)[0] for sample in range(s["micro"] * s["microbatches"])]
    u = (torch.stack(first) >> 8).to(torch.float64) * 2.0 ** -24
    return (s["vocab"] * (u * u * u)).to(torch.int64)


# ---- The model ----

def make_parameters(s, device, dtype):
    """name -> tensor, with trainerd's names and initial values."""
    residual = s["init"] / math.sqrt(2.0 * s["layers"])
    hidden, q, kv = s["hidden"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    p = {}

    def matrix(name, *shape, stddev=s["init"]):
        p[name] = draw_normal(shape, hash_name(name, s["seed"]), stddev, device, dtype)

    def vector(name, size, value):
        p[name] = torch.full((size,), value, device=device, dtype=dtype)

    matrix("embed.weight", s["vocab"], hidden)
    for i in range(s["layers"]):
        at = f"layers.{i}."
        vector(at + "attn_norm.weight", hidden, 1.0)
        matrix(at + "qkv.weight", q + 2 * kv, hidden)
        if s["qkv_bias"]:
            vector(at + "qkv.bias", q + 2 * kv, 0.0)
        matrix(at + "attn_out.weight", hidden, q, stddev=residual)
        vector(at + "mlp_norm.weight", hidden, 1.0)
        matrix(at + "gate_up.weight", 2 * s["ffn"], hidden)
        matrix(at + "down.weight", hidden, s["ffn"], stddev=residual)
    vector("final_norm.weight", hidden, 1.0)
    if not s["tie_embeddings"]:
        matrix("head.weight", s["vocab"], hidden)
    return p


def rope_tables(s, device):
    """[S, 1, E] cosines, and sines with the sign for their half of a head; fp32."""
    frequency = s["rope_theta"] ** (-torch.arange(0, s["head_dim"], 2, dtype=torch.float64) / s["head_dim"])
    angle = torch.arange(s["seq_len"], dtype=torch.float64)[:, None, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    return (torch.cat((cos, cos), -1).float().to(device), torch.cat((-sin, sin), -1).float().to(device))


def rope(x_BSHE, tables):
    cos, signed_sin = tables
    a, b = x_BSHE.chunk(2, dim=-1)
    return (x_BSHE * cos + torch.cat((b, a), -1) * signed_sin).to(x_BSHE.dtype)


def make_block(s, tables):
    H, K, E, eps = s["heads"], s["kv_heads"], s["head_dim"], s["norm_eps"]

    def block(x, delta, attn_norm, qkv_weight, qkv_bias, attn_out, mlp_norm, gate_up, down):
        """(residual, unsummed delta) -> the same for the next layer."""
        x = x if delta is None else x + delta
        h = F.rms_norm(x, x.shape[-1:], attn_norm, eps)
        qkv = F.linear(h, qkv_weight, qkv_bias).unflatten(-1, (H + 2 * K, E))  # [B, S, heads, E]
        q, k, v = rope(qkv[:, :, :H], tables), rope(qkv[:, :, H:H + K], tables), qkv[:, :, H + K:]
        attended = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                                  enable_gqa=H != K)
        x = x + F.linear(attended.transpose(1, 2).flatten(2), attn_out)
        h = F.rms_norm(x, x.shape[-1:], mlp_norm, eps)
        gate, up = F.linear(h, gate_up).chunk(2, dim=-1)
        return x, F.linear(F.silu(gate) * up, down)

    return block


def chunk_loss(logits, targets, scale):
    """Summed loss of a chunk, and the gradient of `scale` x loss with respect to the logits."""
    wide = logits.float()
    log_sum = wide.logsumexp(-1, keepdim=True)
    loss = (log_sum - wide.gather(-1, targets[:, None])).sum()
    columns = torch.arange(logits.shape[-1], device=logits.device)
    gradient = ((wide - log_sum).exp() - (columns == targets[:, None]).float()) * scale
    return loss, gradient.to(logits.dtype)


class ChunkedHead(torch.autograd.Function):
    """Head and cross entropy. Gradients are computed in the forward pass, so that few logits exist at a time."""

    @staticmethod
    def forward(ctx, x, weight, targets, chunk, scale, loss_of):
        dx, dweight, loss = torch.empty_like(x), None, 0.0
        for at in range(0, x.shape[0], chunk):
            rows = slice(at, at + chunk)
            part, dlogits = loss_of(x[rows] @ weight.T, targets[rows], scale)
            loss = loss + part
            torch.mm(dlogits, weight, out=dx[rows])
            if dweight is None:
                dweight = dlogits.T @ x[rows]
            else:
                dweight.addmm_(dlogits.T, x[rows])
        ctx.save_for_backward(dx, dweight)
        return loss

    @staticmethod
    def backward(ctx, upstream):  # upstream is 1, since the loss is the root
        return *ctx.saved_tensors, None, None, None, None


# ---- Attention's backend ----

ATTENTION = ("cudnn", "flash")


def use_attention(name):
    if name == "any":
        return
    torch.backends.cuda.enable_cudnn_sdp(name == "cudnn")
    torch.backends.cuda.enable_flash_sdp(name == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


def attention_milliseconds(s, name, dtype, deterministic):
    """Time of one layer's attention, forward and backward; None if the backend does not support the shapes, or if its gradients
    should be `deterministic` and are not."""
    use_attention(name)
    shape = (s["micro"], s["seq_len"], s["heads"] + 2 * s["kv_heads"], s["head_dim"])
    qkv = torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()
    upstream = torch.randn((s["micro"], s["heads"], s["seq_len"], s["head_dim"]), device="cuda", dtype=dtype)

    def once():
        q, k, v = qkv.split((s["heads"], s["kv_heads"], s["kv_heads"]), 2)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                             enable_gqa=s["heads"] != s["kv_heads"])
        out.backward(upstream)
        gradient, qkv.grad = qkv.grad, None
        return gradient

    try:
        first = once()
        for _ in range(3):
            if not torch.equal(once(), first) and deterministic:
                print(f"pytorch_train.py: {name} attention: its gradients are not deterministic", file=sys.stderr)
                return None
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(5):
            once()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 5
    except RuntimeError as error:
        print(f"pytorch_train.py: {name} attention: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def choose_attention(s, dtype, deterministic):
    times = {name: attention_milliseconds(s, name, dtype, deterministic) for name in ATTENTION}
    served = {name: t for name, t in times.items() if t is not None}
    if not served:
        sys.exit("pytorch_train.py: neither cuDNN's nor flash attention serves these shapes" + " deterministically" * deterministic)
    best = min(served, key=served.get)
    use_attention(best)
    return best, times


# ---- The step ----

def portions(weights, most=1 << 28):
    """Groups of names with about `most` elements each."""
    group, size = [], 0
    for name, w in weights.items():
        group.append(name)
        size += w.numel()
        if size >= most:
            yield group
            group, size = [], 0
    if group:
        yield group


def make_update(s, master, parameters):
    """A function without arguments that clips, updates and clears gradients. `master` is fp32, or `parameters` itself. fp32
    gradients, which the optimizer needs for fp32 weights, exist for one portion of weights at a time."""
    separate = master is not parameters
    groups = list(portions(master)) if separate else [list(master)]

    def optimizer_of(names):
        kinds = [{"params": [master[n] for n in names if (master[n].ndim >= 2) == matrices],
                  "weight_decay": s["weight_decay"] if matrices else 0.0} for matrices in (True, False)]
        return torch.optim.AdamW([k for k in kinds if k["params"]], lr=s["lr"], betas=tuple(s["betas"]), eps=s["eps"], fused=True)

    optimizers = [optimizer_of(names) for names in groups]

    def update():
        if s["grad_clip"] > 0:
            torch.nn.utils.clip_grad_norm_(parameters.values(), s["grad_clip"], foreach=True)
        for names, optimizer in zip(groups, optimizers):
            if separate:
                for name in names:
                    master[name].grad = parameters[name].grad.float()
                    parameters[name].grad = None
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if separate:
                with torch.no_grad():
                    torch._foreach_copy_([parameters[n] for n in names], [master[n] for n in names])

    return update


class Stopwatch:
    """Seconds between marks, by the device's clock if it has one."""

    def __init__(self, device):
        self.cuda = device == "cuda"

    def mark(self):
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin, end):
        return 1e-3 * begin.elapsed_time(end) if self.cuda else end - begin


def check_supported(s):
    for key, value in (("norm", "rms"), ("positions", "rope"), ("mlp", "swiglu")):
        if s[key] != value:
            sys.exit(f"pytorch_train.py: {key}: {s[key]} is not written here, only {value}")
    if s["rope_scaled"] or s["window"] or s["scaled"] or not s["plain_norms"] or not s["plain_attention"]:
        sys.exit("pytorch_train.py: scaled or partial rotary positions, scaled embeddings and scores, softcaps, sinks, sliding windows, and norms of other kinds are not written here")
    if s["qk_norm"] or s["linear_bias"]:
        sys.exit("pytorch_train.py: qk_norm and biases on every layer are not written here")
    if s["moments"] != s["master"]:
        sys.exit("pytorch_train.py: PyTorch's AdamW keeps its moments in the format of the weights it updates")


def main():
    args = parse_arguments()
    with open(args.shapes, encoding="utf-8") as text:
        s = json.load(text)
    check_supported(s)
    device = args.device
    compute = {"fp32": torch.float32, "bf16": torch.bfloat16}[s["compute"]]
    separate = s["master"] != s["compute"]
    if args.deterministic:
        # PyTorch requires this for deterministic addmm and similar operators.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        # Not warn_only: with it flash attention's backward only warns and stays non-deterministic.
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    attention, attention_ms = args.attention, {}
    if device == "cuda":
        if attention == "auto":
            attention, attention_ms = choose_attention(s, compute, args.deterministic)
        else:
            use_attention(attention)
    else:
        attention = "any"
        torch.set_num_threads(s["threads"])

    master = {n: w.requires_grad_() for n, w in
              make_parameters(s, device, torch.float32 if separate else compute).items()}
    parameters = {n: w.detach().to(compute).requires_grad_() for n, w in master.items()} if separate else master
    block = make_block(s, rope_tables(s, device))
    final = lambda x, delta, weight: F.rms_norm(x + delta, x.shape[-1:], weight, s["norm_eps"]).flatten(0, 1)
    loss_of = chunk_loss
    if args.mode != "eager":
        options = {"dynamic": False, "fullgraph": True, "mode": None if args.mode == "default" else args.mode}
        block, final, loss_of = (torch.compile(f, **options) for f in (block, final, chunk_loss))
    update = make_update(s, master, parameters)
    names = ["attn_norm.weight", "qkv.weight", "qkv.bias", "attn_out.weight", "mlp_norm.weight", "gate_up.weight", "down.weight"]
    head = "embed.weight" if s["tie_embeddings"] else "head.weight"
    tokens_per_step = s["micro"] * s["microbatches"] * s["seq_len"]

    def microbatch(tokens):
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1)
        x, delta = F.embedding(inputs, parameters["embed.weight"]), None
        for i in range(s["layers"]):
            x, delta = block(x, delta, *(parameters.get(f"layers.{i}.{n}") for n in names))
        x = final(x, delta, parameters["final_norm.weight"])
        loss = ChunkedHead.apply(x, parameters[head], targets, args.head_chunk, 1.0 / tokens_per_step, loss_of)
        loss.backward()
        return loss.detach()

    watch = Stopwatch(device)
    steps, updates, losses = [], [], []
    for step in range(1, args.warmup + args.steps + 1):
        batch = draw_tokens(s, step, device)
        if device == "cuda":
            torch.cuda.synchronize()
        begin = watch.mark()
        loss = sum(microbatch(batch[i * s["micro"]:(i + 1) * s["micro"]]) for i in range(s["microbatches"]))
        before = watch.mark()
        update()
        end = watch.mark()
        losses.append(loss.item() / tokens_per_step)
        if step > args.warmup:
            steps.append(watch.seconds(begin, end))
            updates.append(watch.seconds(before, end))
    result = {"impl": f"pytorch {args.mode}", "job": s["name"], "master": s["master"],
              "attention": "deterministic" if args.deterministic else "fast", "attention_library": attention,
              "attention_ms": attention_ms, "micro": s["micro"], "microbatches": s["microbatches"], "seq_len": s["seq_len"],
              "step_seconds": steps, "optimizer_seconds": updates, "losses": losses, "version": "PyTorch " + torch.__version__}
    if device == "cuda":
        result["peak_bytes"] = torch.cuda.max_memory_allocated()
        result["device"] = torch.cuda.get_device_name()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
