#!/usr/bin/env python3
"""Speed of `trainerd data prepare` against the reference libraries, on one core.

  tokenizer_speed.py BINARY [--megabytes N] [--rounds N]        needs tokenizers and sentencepiece, as tests/io/tokenizers/make.py

Two texts as JSON lines: the mixed scripts of make.py, and the sources and pages of this project, which have longer and more words.
prepare's processor time is that of its whole process with one worker, including reading lines, parsing JSON and writing token
files. A reference's is that of encode_batch or encode alone, from strings in memory, with one thread. Rounds alternate. Prints a
Markdown table of medians.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from statistics import median

os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "io" / "tokenizers"
sys.path.insert(0, str(FILES))
import make  # noqa: E402

LINE = 4000  # characters per document


def documents(text, megabytes):
    text = text * (megabytes * 1_000_000 // len(text.encode()) + 1)
    kept, size = [], 0
    for begin in range(0, len(text), LINE):
        kept.append(text[begin:begin + LINE])
        size += len(kept[-1].encode())
        if size >= megabytes * 1_000_000:
            break
    return kept


def texts(megabytes):
    mix = json.loads((FILES / "mix.json").read_text())
    listed = subprocess.run(["git", "ls-files", "*.cpp", "*.h", "*.md", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    yield "mixed scripts", documents(make.mixed_text(mix, 7, 2_000_000), megabytes)
    yield "code and English", documents("\n".join((ROOT / name).read_text() for name in listed), megabytes)


def prepared(binary, path, tokenizer, out):
    """Processor seconds of the whole process."""
    words = ["data", "prepare", path, "--out", out, "--tokenizer", tokenizer, "--workers", "1", "--no-append-eos"]
    process = subprocess.Popen([binary, *map(str, words)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{words} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


def encoder(tokenizer):
    if tokenizer.suffix == ".json":
        from tokenizers import Tokenizer
        reference = Tokenizer.from_file(str(tokenizer))
        return lambda lines: reference.encode_batch(lines, add_special_tokens=False)
    import sentencepiece
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer))
    return lambda lines: [reference.encode(line) for line in lines]


def encoded(encode, lines):
    begin = time.process_time()
    encode(lines)
    return time.process_time() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("| text | tokenizer | prepare MB/s | reference MB/s | ratio |\n|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for kind, lines in texts(args.megabytes):
            path = folder / f"{kind}.jsonl"
            path.write_text("".join(json.dumps({"text": line}, ensure_ascii=False) + "\n" for line in lines))
            size = sum(len(line.encode()) for line in lines) / 1e6
            for tokenizer in [*sorted(FILES.glob("[glq]*.json")), *sorted(FILES.glob("*.model"))]:
                encode, ours, theirs = encoder(tokenizer), [], []
                for number in range(args.rounds):
                    ours.append(prepared(args.binary.resolve(), path, tokenizer, folder / f"{kind}-{tokenizer.name}-{number}"))
                    theirs.append(encoded(encode, lines))
                rates = size / median(ours), size / median(theirs)
                print(f"| {kind} | {tokenizer.name} | {rates[0]:.1f} | {rates[1]:.1f} | {rates[0] / rates[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
