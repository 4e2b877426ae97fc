#!/usr/bin/env python3
"""Makes SentencePiece models of other kinds than those of ../make.py, and SentencePiece's encodings of random texts.

    pip install sentencepiece==0.2.3 && python3 make.py

unigram.model  nmt_nfkc, the trainer's default: a rule for each compatibility character, spaces in a row are one; bytes for unknown characters
spaces.model   BPE as Gemma: text as it is, no space before a text, runs of spaces and line ends as user-defined symbols
across.model   BPE with pieces across spaces, nfkc and user-defined symbols
pieces.json    texts drawn by a seed; by model their ids and the texts that these become again
"""

import json
import pathlib
import random
import sys
import tempfile

import sentencepiece

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import make  # noqa: E402

SEED, TEXTS = 5, 500
MODELS = {
    "unigram": dict(model_type="unigram", byte_fallback=True, vocab_size=1200),
    "spaces": dict(model_type="bpe", byte_fallback=True, vocab_size=900, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False,
                   allow_whitespace_only_pieces=True, split_digits=True, user_defined_symbols=["\n", "\n\n", "▁▁", "▁▁▁▁", "\t", "<start_of_turn>"],
                   bos_piece="<bos>", eos_piece="<eos>"),
    "across": dict(model_type="bpe", vocab_size=900, normalization_rule_name="identity", split_by_whitespace=False, user_defined_symbols=["the of", "<sep>"]),
}
PARTS = ["▁", " ", "  ", "\n", "\n\n", "\t", "a", "ab", "é", "e\u0301", "ﬁ", "<sep>", "<s>", "</s>", "<unk>", "<0x41>", " ⁇ ", "⁇", "\u3000", "\u00a0", "が", "か\u3099", "ﾞ", "Ａ", "１", "①", "㍿",
         "\u200b", "the", "the of", "of", "=", "a" * 9, "語" * 5, "🫠", "<start_of_turn>", "ا" * 20, "\u0344", "ǅ", "ß", "…", "½", "™", "ﷺ", "각", "\u1100\u1161\u11a8", "Å", "\u212b"]


def texts(mix):
    draw = random.Random(SEED)
    yield from ["", " ", "   ", "▁", "\n", " a ", "a  b"]
    for _ in range(TEXTS):
        parts = []
        for _ in range(draw.randrange(1, 16)):
            kind = draw.randrange(10)
            first, last = mix["ranges"][draw.randrange(len(mix["ranges"]))]
            parts.append(draw.choice(PARTS) if kind < 6 else draw.choice(mix["words"]) if kind < 9 else chr(draw.randrange(first, last + 1)))
        yield "".join(parts)


def main():
    mix = json.loads((HERE.parent / "mix.json").read_text())
    train = make.mixed_text({**mix, "ranges": [[0x61, 0x7A]]}, make.TRAIN_SEED, 200_000)
    lines = [line.replace("\0", " ") for line in train.split("\n") if line.strip()]
    made = {"version": sentencepiece.__version__, "texts": list(texts(mix)), "models": {}}
    for name, options in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=f"{folder}/model", character_coverage=0.98, num_threads=1, minloglevel=2, **options)
            (HERE / f"{name}.model").write_bytes((pathlib.Path(folder) / "model.model").read_bytes())
        processor = sentencepiece.SentencePieceProcessor(model_file=str(HERE / f"{name}.model"))
        ids = [processor.encode(text) for text in made["texts"]]
        made["models"][f"{name}.model"] = {"ids": ids, "decoded": [processor.decode(i) for i in ids]}
    (HERE / "pieces.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
