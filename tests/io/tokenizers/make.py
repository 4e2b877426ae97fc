"""Makes the tokenizer files of this folder and the reference libraries' encodings of text.

  pip install tokenizers==0.23.3 sentencepiece==0.2.3 transformers==5.23.0 protobuf xxhash && python3 make.py [FILE ...]
  (Python 3.11: its tables are of Unicode 14; with names only these files are made again)

mix.json       what `mixed_text` draws from: words, odd texts, all ranges of code points that Unicode 14 assigns
gpt2.json ...  tokenizer files of 2,000 tokens with the patterns and normalizers of their families
llama2.json .. the vocabulary of bpe.model as transformers converts it, with the normalizers and pre-tokenizers of their families
*.model        SentencePiece models, trained by version 0.1.99; pieces/ has more with a script of their own
expected.json  by file: the number of ids of `mixed_text(7, 1_200_000)`, the XXH3 of the ids as int32, the first of them, the same with
               special tokens' texts as plain text; and the ids of each of "cases"

tests/io/tokenizer/mixed_text.h has `mixed_text` in C++.
"""

import json
import pathlib
import struct
import sys
import tempfile
import unicodedata

HERE = pathlib.Path(__file__).resolve().parent
TEXT_BYTES, SEED = 1_200_000, 7
TRAIN_SEED, TRAIN_BYTES = 11, 3_000_000
VOCAB = 2000

WORDS = """
the of and to in is that for it as was with on are this be at from or have an they which one had by word but not what all were when your
can said there use each she do how their if will up other about out many then them these so some her would make like him into time has
look two more write go see number no way could people my than first water been call who oil its now find long down day did get come made
may part over new sound take only little work know place year live me back give most very after thing our just name good sentence man
tokenizerization don't it's we'll I've you're he'd I'm isn't DON'T IT'S WE'LL I'VE training tokens tokenizer vocabulary Internationalization naïve café
façade Zürich Straße größer über Mädchen schön señor niño mañana corazón año élève être déjà garçon œuvre coração não irmão avô żółć
łódź święto český příliš žluťoučký kůň Őrség árvíztűrő tükörfúrógép İstanbul ışık ğüzel göçmen Việt Nam tiếng đường phố người được
Привет мир как дела сегодня хорошо язык обучение данных моделей ёлка йод объект Україна їжак ґанок Београд ђак
Καλημέρα κόσμε γλώσσα ελληνικά άνθρωπος ϊός ὁ ἄνθρωπος ᾧ
שלום עולם עברית שָׁלוֹם תּוֹרָה مرحبا بالعالم اللغة العربية كِتَابٌ مُحَمَّد فارسی زبان گفتگو می‌خواهم اردو ہے
नमस्ते दुनिया हिन्दी भाषा क्षत्रिय संस्कृतम् विद्यालय ড়াকা বাংলা ভাষা কৌশল ਪੰਜਾਬੀ ગુજરાતી தமிழ் மொழி வணக்கம் కన్నడ తెలుగు భాష ಕನ್ನಡ ಭಾಷೆ മലയാളം സിംഹല සිංහල
ภาษาไทย สวัสดี ชาวโลก ພາສາລາວ ភាសាខ្មែរ မြန်မာ བོད་སྐད་ ქართული ენა հայերեն լեզու አማርኛ ቋንቋ ᏣᎳᎩ
你好世界 中文 漢字 學習 模型 训练 数据 日本語 こんにちは カタカナ ガギグゲゴ 言語 モデル 한국어 안녕하세요 세계 언어 학습 데이터
0 1 12 123 1234 12345 3.14159 1,000,000 2024-01-31 0x7fff 1e-9 ٣٤٥ १२३ ๑๒๓ ²³ ½ Ⅷ ① 一二三
def return lambda self. import torch; if (x >= 0) { y[i] += f(x); } // comment /* */ #include <vector> std::vector<int> a->b && c || !d
https://example.org/path?query=1&b=2#frag user@example.com C:\\\\Users\\\\name $HOME/.config {"key": [1, 2, null]} <div class="a">&nbsp;</div>
""".split()

ODD = [
    "\r\n", "\n", "\n\n\n", "\t", "\t\t", "  ", "    ", "        ", " \n ", "\r", " \t\r\n  \n", "\u00a0", "\u2003\u2003", "\u3000", "\u200b", "\u180e",
    "\u0085", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c\x1f", "\ufeff", "\u0000", "\u0001\u007f",
    "e\u0301", "o\u0323\u0302", "o\u0302\u0323", "q\u0307\u0323", "a\u0315\u0300\u05ae\u0062", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0f71\u0f72\u0f74",
    "\u0344", "\u2126", "\u212b", "\ufb01", "\u0958", "\u09c7\u09be", "\u0b47\u0b3e", "\U0001d15e", "\u11935\u11930", "a\u1ac0\u0334", "\ufdfa", "ﬃ", "ｶﾞ",
    "'s", "'S", "'ſ", "'LL", "'ll", "'T", "'Ve", "’s", "''", "can't", "'K", "'d've",
    "👨\u200d👩\u200d👧\u200d👦", "👍🏽", "🏳\ufe0f\u200d🌈", "🇩🇪🇫🇷🇯", "☺\ufe0f", "🫠🫶", "❤\ufe0e",
    "\u202eabc\u202c", "\u2067שלום\u2069", "\u200fא", "\u061cب",
    "\ud7ff", "\ue000", "\uf8ff", "\ufffd", "\uffff", "\U0010fffd", "\U000f0000", "\U0010ffff",
    "1" * 7, "9" * 64, "٠١٢٣", "１２３", "a" * 70, "ab" * 60, "=" * 90, " " * 100, "\n" * 50, "ا" * 40, "語" * 30, "-" * 33, "́" * 40,
    "<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>", "<|endof", "|>", "<|", " <|im_end|> ", "<|endoftext|><|endoftext|>",
    "<tool_call>", "</tool_call>", "<café>", "<cafe\u0301>", "<s>", "</s>", "<unk>", "▁", "▁▁a", "<0x41>", "Ġ", "Ċ", "  x", "x  ", "_x_", "a_b",
]

CASES = ["", " ", "\n", "Hello, world!", "  two  spaces  ", "\ufeffwith a mark", "x\r\ny\r\n\r\nz", "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|"] + \
    ["(" + odd + ")" for odd in ODD] + ["a" + odd + "b" for odd in ODD]


class Random:
    """Splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, count):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return (z ^ (z >> 31)) % count


def mixed_text(mix, seed, size):
    random, parts, done = Random(seed), [], 0
    while done < size:
        kind = random.below(16)
        if kind < 12:
            part = mix["words"][random.below(len(mix["words"]))]
        elif kind < 14:
            part = mix["odd"][random.below(len(mix["odd"]))]
        else:
            first, last = mix["ranges"][random.below(len(mix["ranges"]))]
            part = "".join(chr(first + random.below(last - first + 1)) for _ in range(1 + random.below(6)))
        if random.below(4) != 0:
            part += " "
        parts.append(part)
        done += len(part.encode())
    return "".join(parts)


def assigned_ranges():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    ranges = []
    for c in range(0x110000):
        if unicodedata.category(chr(c)) in ("Cn", "Cs"):
            continue
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return ranges


# The patterns as in the families' files.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def make_bpe(name, text):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    tokenizer = Tokenizer(models.BPE())
    special = {"gpt2": ["<|endoftext|>"],
               "llama3": ["<|begin_of_text|>", "<|end_of_text|>"],
               "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]}[name]
    if name == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        split = pre_tokenizers.Split(Regex(LLAMA3 if name == "llama3" else QWEN2), behavior="isolated", invert=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(text.replace("tokenizerization", "tokens").split("\n"), trainer)
    if name == "llama3":
        file = json.loads(tokenizer.to_str())
        file["model"]["ignore_merges"] = True
        file["model"]["vocab"]["Ġtokenizerization"] = VOCAB  # a token that no merge makes
        tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    if name == "qwen2":
        tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
        tokenizer.add_tokens([AddedToken("<café>", normalized=True)])
    if name == "llama3":
        bos = tokenizer.token_to_id("<|begin_of_text|>")
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    file = json.loads(tokenizer.to_str())
    (HERE / f"{name}.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n")


def make_sentencepiece(name, text):
    """Like Llama 2 (BPE, bytes for unknown characters, unchanged text), and unigram with its own normalizer."""
    import sentencepiece
    options = {"bpe": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                           split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=["<tool_call>"]),
               "unigram": dict(model_type="unigram", user_defined_symbols=["</tool_call>"])}[name]
    with tempfile.TemporaryDirectory() as folder:
        if name == "unigram":
            rules = pathlib.Path(folder) / "rules.tsv"  # code points in hexadecimal: text and replacement
            pairs = [(a, b) for a, b in zip("０１２３４５６７８９", "0123456789")] + [("ﬁ", "fi"), ("ﬃ", "ffi"), ("é", "e\u0301"), ("e\u0301", "é"), ("\u00a0", " "), ("\u3000", " ")]
            rules.write_text("".join(" ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n" for a, b in pairs[:12] + pairs[13:]))
            options["normalization_rule_tsv"] = str(rules)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([line.replace("\0", " ") for line in text.split("\n") if line.strip()]), model_prefix=f"{folder}/model", vocab_size=VOCAB,
            character_coverage=0.98, num_threads=1, minloglevel=2, **options)
        (HERE / f"{name}.model").write_bytes((pathlib.Path(folder) / "model.model").read_bytes())


def make_pieces(name):
    """bpe.model as a tokenizer.json of Llama 2 (a space before each part between special tokens, which are found in normalized
    text), of Mistral (Metaspace) and of Gemma (no space before a text)."""
    from transformers import AutoTokenizer
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "tokenizer.model").write_bytes((HERE / "bpe.model").read_bytes())
        config = {"tokenizer_class": "GemmaTokenizer" if name == "gemma" else "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        if name == "gemma":
            config |= {"pad_token": "</s>", "mask_token": "<unk>"}
        (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
        file = json.loads(AutoTokenizer.from_pretrained(folder).backend_tokenizer.to_str())
    if name == "llama2":
        file["pre_tokenizer"] = None
        file["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
        for token in file["added_tokens"]:
            token["normalized"] = token["special"]
    file["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                              "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                              "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    (HERE / f"{name}.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n")


def expect_sentencepiece(name, text):
    import sentencepiece
    processor = sentencepiece.SentencePieceProcessor(model_file=str(HERE / f"{name}.model"))
    ids = processor.encode(text)
    return {"count": len(ids), "hash": hash_of(ids), "first": ids[:200], "around": processor.encode("a", add_bos=True),
            "cases": [processor.encode(case) for case in CASES]}


def hash_of(ids):
    import xxhash
    return xxhash.xxh3_128_hexdigest(struct.pack(f"<{len(ids)}i", *ids))


def expect_bpe(name, text):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(HERE / f"{name}.json"))
    encode = lambda t: tokenizer.encode(t, add_special_tokens=False).ids
    ids = encode(text)
    expected = {"count": len(ids), "hash": hash_of(ids), "first": ids[:200], "around": tokenizer.encode("a", add_special_tokens=True).ids,
                "cases": [encode(case) for case in CASES]}
    tokenizer.encode_special_tokens = True
    expected["plain_hash"] = hash_of(encode(text))
    return expected


def main():
    mix = {"words": WORDS, "odd": ODD, "ranges": assigned_ranges()}
    # ASCII, so that editors do not normalize it.
    (HERE / "mix.json").write_text(json.dumps(mix, separators=(",", ":")) + "\n")
    wanted = sys.argv[1:]
    train, text = mixed_text(mix, TRAIN_SEED, TRAIN_BYTES), mixed_text(mix, SEED, TEXT_BYTES)
    expected = {"seed": SEED, "bytes": TEXT_BYTES, "cases": CASES, "files": {}}
    if wanted:
        expected["files"] = json.loads((HERE / "expected.json").read_text())["files"]
    for name in ("gpt2", "llama3", "qwen2"):
        if not wanted or f"{name}.json" in wanted:
            make_bpe(name, train)
            expected["files"][f"{name}.json"] = expect_bpe(name, text)
    for name in ("bpe", "unigram"):
        if not wanted or f"{name}.model" in wanted:
            make_sentencepiece(name, mixed_text({**mix, "ranges": [[0x61, 0x7A]]}, TRAIN_SEED, TRAIN_BYTES // 5))
            expected["files"][f"{name}.model"] = expect_sentencepiece(name, text)
    for name in ("llama2", "mistral", "gemma"):
        if not wanted or f"{name}.json" in wanted:
            make_pieces(name)
            expected["files"][f"{name}.json"] = expect_bpe(name, text)
    (HERE / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    sys.exit(main())
