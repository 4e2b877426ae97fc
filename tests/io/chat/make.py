#!/usr/bin/env python3
"""Makes expected.json: conversations as `apply_chat_template` of transformers writes and encodes them.

    pip install transformers==5.23.0 trl==1.16.0 jinja2 tokenizers
    python3 tests/io/chat/make.py

The templates of the models are those that trl carries for comparison (trl/chat_templates); chatml and Qwen2's are
too short to be anyone's. The tokenizers are those of ../tokenizers with the models' tokens added. The tests need none
of these packages: they import `with_tokens` alone.
"""

import importlib.util
import json
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
TOKENIZERS = HERE.parent / "tokenizers"

CHATML = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
QWEN2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
         "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}" + CHATML[len("{% for message in messages %}"):])
# Name here, trl's name or the template, tokenizer.
TEMPLATES = [("chatml", CHATML, "qwen2"), ("qwen2", QWEN2, "qwen2"), ("qwen2.5", "qwen2_5", "qwen2"), ("qwen3", "qwen3", "qwen2"),
             ("qwen3-instruct", "qwen3_instruct_2507", "qwen2"), ("llama3", "llama3", "llama3"), ("llama3.1", "llama3_1", "llama3")]
ADDED = {"qwen2": ["<think>", "</think>"], "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]}
SPECIAL = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}
BOS = {"qwen2": None, "llama3": "<|begin_of_text|>"}


def with_tokens(name):
    """A tokenizer of ../tokenizers with the tokens that the templates write."""
    tokenizer = json.loads((TOKENIZERS / f"{name}.json").read_text())
    next_id = 1 + max(max(tokenizer["model"]["vocab"].values()), max(token["id"] for token in tokenizer["added_tokens"]))
    for i, text in enumerate(ADDED[name]):
        tokenizer["added_tokens"].append({"id": next_id + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                                          "normalized": False, "special": text in SPECIAL})
    return json.dumps(tokenizer, ensure_ascii=False)


def turns(*contents, system=None):
    messages = [] if system is None else [{"role": "system", "content": system}]
    for i, content in enumerate(contents):
        messages.append({"role": "assistant" if i % 2 else "user", "content": content})
    return messages


CONVERSATIONS = [
    turns("Hello there", "Hi! How can I help?"),
    turns("What is 2+2?", "4", "And 3+3?", "6.\n\nAnything else?", system="You add."),
    turns("  spaces before and after  ", "\n\n  an answer with space around\n "),
    turns("多言語の質問 мир", "naïve e\u0301 café 你好 12345", "ok", "\u00a0\u3000wide spaces\u2003", system=" \x1f Ein System.\n"),
    turns("a question that has no answer"),
    turns("Think.", "<think>\nFirst this,\nthen that.\n</think>\n\nDone.", "Again?", "<think>again</think>Yes.", "Once more", "<think>\n\n</think>\n\nNo."),
    turns("a", "", "b", "\n", "c", "last"),
    [{"role": "user", "content": "one"}, {"role": "assistant", "content": "first half,"}, {"role": "assistant", "content": "second half"}],
    [{"role": "assistant", "content": "I begin"}, {"role": "user", "content": "go on"}, {"role": "system", "content": "late"}, {"role": "assistant", "content": "</think>odd"}],
    turns("a tool?", "calling", "<tool_response>7</tool_response>", "it says 7"),
    turns("quote <|im_end|> and <|eot_id|> and <tool_call>", "as <think> text"),
]
THOUGHTS = [{"role": "user", "content": "Why?"}, {"role": "assistant", "reasoning_content": "\nbecause\n", "content": "\nSo."}]


def answers(text, name):
    """Where the assistant speaks, by the frame around each turn."""
    llama = name.startswith("llama")
    frame = re.compile(re.escape("<|start_header_id|>assistant<|end_header_id|>\n\n") if llama else re.escape("<|im_start|>assistant\n"))
    return frame, "<|eot_id|>" if llama else "<|im_end|>"


def expect(name, template, tokenizer_name):
    from transformers import PreTrainedTokenizerFast
    from tokenizers import Tokenizer
    if "{" not in template:
        package = pathlib.Path(importlib.util.find_spec("trl").origin).parent
        template = (package / "chat_templates" / f"{template}.jinja").read_text()
    fast = Tokenizer.from_str(with_tokens(tokenizer_name))
    hf = PreTrainedTokenizerFast(tokenizer_object=fast, bos_token=BOS[tokenizer_name], chat_template=template)
    out = []
    for messages in CONVERSATIONS + ([THOUGHTS] if name == "qwen3" else []):
        text = hf.apply_chat_template(messages, tokenize=False)
        ids = hf.apply_chat_template(messages, tokenize=True, return_dict=False)
        # By the offsets of the reference library: a token counts when one of its characters is the assistant's. Offsets
        # are into the text before normalization, as are the spans.
        encoding = fast.encode(text, add_special_tokens=False)
        assert encoding.ids == ids, (name, messages)
        frame, end = answers(text, name)
        spans, at = [], 0
        for message in messages:
            if message["role"] != "assistant":
                continue
            begin = frame.search(text, at).end()
            # Up to the end of the turn that is not inside the content.
            skip = message["content"].count(end)
            stop = begin
            for _ in range(skip + 1):
                stop = text.index(end, stop) + len(end)
            spans.append((begin, stop))
            at = stop
        mask = [int(any(a < e and s < b for a, b in spans)) for s, e in encoding.offsets]
        out.append({"text": text, "ids": ids, "mask": "".join(map(str, mask))})
    return out


def main():
    templates = {name: {"tokenizer": tokenizer, "rows": expect(name, template, tokenizer)} for name, template, tokenizer in TEMPLATES}
    content = {"conversations": CONVERSATIONS, "thoughts": THOUGHTS, "templates": templates}
    (HERE / "expected.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
