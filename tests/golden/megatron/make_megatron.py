#!/usr/bin/env python3
"""Writes the data sets narrow (uint16) and wide (int32) beside this file with megatron-core's IndexedDatasetBuilder, and
documents.json with the contents that its IndexedDataset reads.

Made with megatron-core 0.16.1, PyTorch 2.15.0 and NumPy 2.4.6 (pip install megatron-core torch packaging)."""

import json
import pathlib
import random

import numpy
import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

HERE = pathlib.Path(__file__).resolve().parent


def make(name, vocab, dtype):
    rng = random.Random(name)
    builder = IndexedDatasetBuilder(str(HERE / f"{name}.bin"), dtype=dtype)
    for number in range(60):
        # Documents of several sentences, of one sentence, and empty ones.
        lengths = [] if number % 13 == 5 else [rng.randrange(1, 40) for _ in range(rng.randrange(1, 4))]
        tokens = [rng.randrange(vocab) for _ in range(sum(lengths))]
        if lengths:
            builder.add_document(torch.tensor(tokens, dtype=torch.int64), lengths)
        else:
            builder.end_document()
    builder.finalize(str(HERE / f"{name}.idx"))
    data = IndexedDataset(str(HERE / name))
    ends = [int(end) for end in data.document_indices]
    return [[int(token) for sequence in range(a, b) for token in data[sequence]] for a, b in zip(ends, ends[1:])]


def main():
    documents = {"narrow": make("narrow", 50257, DType.optimal_dtype(50257)), "wide": make("wide", 151936, DType.optimal_dtype(151936))}
    assert numpy.dtype(DType.optimal_dtype(50257)) == numpy.uint16 and DType.optimal_dtype(151936) == numpy.int32
    (HERE / "documents.json").write_text(json.dumps(documents, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
