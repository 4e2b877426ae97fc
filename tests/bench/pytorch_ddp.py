#!/usr/bin/env python3
"""One rank of PyTorch's DistributedDataParallel on Gloo, training the benchmark model; see exposed.sh.

Each rank takes its half of the global batch in one microbatch. Rank 0 prints one JSON line. The cost of communication that overlaps
backward is the step's time minus that of steps under no_sync, which alternate with it.
"""

import argparse
import contextlib
import json
import sys
import time
from statistics import median

import exposed
import pytorch_step as step

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARMUP_STEPS = 4


class Model(torch.nn.Module):
    """A module over pytorch_step's functions, so that DistributedDataParallel sees the parameters."""

    def __init__(self, parameters, tables, loss_chunk):
        super().__init__()
        self.keys = {name: name.replace(".", "_") for name in parameters}
        for name, key in self.keys.items():
            self.register_parameter(key, torch.nn.Parameter(parameters[name]))
        self.tables, self.loss_chunk = tables, loss_chunk

    def named(self):
        return {name: getattr(self, key) for name, key in self.keys.items()}

    def forward(self, tokens, targets):
        p = self.named()
        x = step.hidden_states(p, self.tables, tokens)
        if self.loss_chunk == 0:
            return step.full_loss(x, p["head"], targets)
        return step.ChunkedHead.apply(x, p["head"], targets, self.loss_chunk, step.chunk_loss)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=exposed.MODELS, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--meet", required=True, help="a file that does not exist yet, the same for both ranks")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager")
    args = parser.parse_args()
    m, ranks = exposed.MODELS[args.model], 2
    step.LAYERS, step.HIDDEN, step.HEADS, step.FFN = m.layers, m.hidden, m.heads, m.ffn
    step.SEQ, step.BATCH, step.HEAD_DIM = m.seq, m.batch // ranks, m.hidden // m.heads
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group("gloo", init_method=f"file://{args.meet}", rank=args.rank, world_size=ranks)

    master = {n: w.requires_grad_() for n, w in step.make_parameters(m.vocab).items()}
    loss_chunk = 0 if m.vocab < 4096 else 512
    model = Model({n: w.detach().bfloat16() for n, w in master.items()}, step.rope_tables(torch.bfloat16), loss_chunk)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    compiling = args.mode == "compile"
    forward = torch.compile(ddp, dynamic=False) if compiling else ddp
    update = step.make_update(argparse.Namespace(optimizer="compiled" if compiling else "fused"), master, model.named())

    generator = torch.Generator().manual_seed(2 + args.rank)
    loss = 0.0

    def train(alone):
        nonlocal loss
        tokens = torch.randint(m.vocab, (step.BATCH, m.seq + 1), generator=generator)
        started = time.perf_counter()
        with ddp.no_sync() if alone else contextlib.nullcontext():
            out = forward(tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1))
            out.backward()
        update()
        loss = out.item()
        return time.perf_counter() - started

    together, apart = [], []
    for _ in range(WARMUP_STEPS + args.steps):
        for seconds, alone in ((together, False), (apart, True)):
            dist.barrier()
            seconds.append(train(alone))
    together, apart = together[WARMUP_STEPS:], apart[WARMUP_STEPS:]
    if args.rank == 0:
        print(json.dumps({
            "model": args.model, "row": f"{exposed.PYTORCH}-{args.mode}", "label": f"PyTorch DDP, {args.mode}",
            "tokens_per_step": m.batch * m.seq, "step_seconds": together, "loss": loss, "torch": torch.__version__,
            "time": {"exposed_dp": [median(together) - median(apart)]}}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
