#!/usr/bin/env python3
"""Makes expected.json: conversations as rendered and encoded by `apply_chat_template` of transformers.

    pip install transformers==5.23.0 trl==1.16.0 jinja2 tokenizers sentencepiece==0.2.3 protobuf
    python3 tests/io/chat/make.py

The models' templates are the copies in trl (trl/chat_templates); chatml, Qwen2's, Llama 2's and Mistral's (without tools) are too
short for a copyright. The tokenizers are those of ../tokenizers plus the models' tokens. The tests need none of these packages:
they import only `with_tokens`.
"""

import importlib.util
import json
import pathlib
import re
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOKENIZERS = HERE.parent / "tokenizers"

CHATML = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
QWEN2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
         "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}" + CHATML[len("{% for message in messages %}"):])
# Our name, trl's name or the template, tokenizer.
TEMPLATES = [("chatml", CHATML, "qwen2"), ("qwen2", QWEN2, "qwen2"), ("qwen2.5", "qwen2_5", "qwen2"), ("qwen3", "qwen3", "qwen2"),
             ("qwen3-instruct", "qwen3_instruct_2507", "qwen2"), ("llama3", "llama3", "llama3"), ("llama3.1", "llama3_1", "llama3")]
LLAMA2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
          "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
          "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
          "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
          "{% else %}{% set content = message['content'] %}{% endif %}"
          "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
          "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
MISTRAL = ("{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}"
           "{%- else %}{%- set loop_messages = messages %}{%- endif %}{{- bos_token }}{%- for message in loop_messages %}"
           "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}"
           "{%- if message['role'] == 'user' %}{%- if loop.last and system_message is defined %}{{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}"
           "{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}"
           "{%- elif message['role'] == 'assistant' %}{{- ' ' + message['content']|trim + eos_token }}{%- endif %}{%- endfor %}")
# The last three use the SentencePiece models from which these tokenizers were converted.
TEMPLATES += [("llama2", LLAMA2, "llama2"), ("mistral", MISTRAL, "mistral"), ("gemma", "gemma", "gemma"), ("gemma3", "gemma3", "gemma"),
              ("llama2", LLAMA2, "llama2.model"), ("mistral", MISTRAL, "mistral.model"), ("gemma", "gemma", "gemma.model")]
ADDED = {"qwen2": ["<think>", "</think>"], "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "llama2": [], "mistral": ["[INST]", "[/INST]"],
         "gemma": ["<start_of_turn>", "<end_of_turn>"]}
SPECIAL = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>"}
BOS = {"qwen2": None, "llama3": "<|begin_of_text|>"} | {name + end: "<s>" for name in ("llama2", "mistral", "gemma") for end in ("", ".model")}
EOS = {name: bos and bos.replace("<s>", "</s>").replace("begin", "end") for name, bos in BOS.items()}
PIECES = ("llama2", "mistral", "gemma")


def model_with_tokens(name):
    """bpe.model with control pieces for these tokens after its own. Gemma's adds no space before a text."""
    message = (TOKENIZERS / "bpe.model").read_bytes()
    for text in ADDED[name]:
        piece = b"\x0a" + bytes([len(text)]) + text.encode() + b"\x18\x03"  # text, type: control
        message += b"\x0a" + bytes([len(piece)]) + piece
    return message + (b"\x1a\x02\x18\x00" if name == "gemma" else b"")  # normalizer_spec.add_dummy_prefix: false


def config_of(name):
    kind = {"gemma": "GemmaTokenizer"}.get(name.removesuffix(".model"), "LlamaTokenizer")
    config = {"bos_token": BOS[name], "eos_token": EOS[name]}
    return config | ({"tokenizer_class": kind, "unk_token": "<unk>", "pad_token": "</s>", "mask_token": "<unk>"} if name.endswith(".model") else {})


def with_tokens(name):
    """A tokenizer of ../tokenizers plus the tokens of the templates."""
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
    """Patterns of the start and end of the assistant's turns."""
    if name in ("llama2", "mistral"):  # an answer is all from the question's end
        return re.compile(re.escape("[/INST]")), "</s>"
    if name.startswith("gemma"):
        return re.compile(re.escape("<start_of_turn>model\n")), "<end_of_turn>"
    llama = name.startswith("llama")
    frame = re.compile(re.escape("<|start_header_id|>assistant<|end_header_id|>\n\n") if llama else re.escape("<|im_start|>assistant\n"))
    return frame, "<|eot_id|>" if llama else "<|im_end|>"


def expect(name, template, tokenizer_name):
    import jinja2
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from tokenizers import Tokenizer
    if "{" not in template:
        package = pathlib.Path(importlib.util.find_spec("trl").origin).parent
        template = (package / "chat_templates" / f"{template}.jinja").read_text()
    if tokenizer_name.endswith(".model"):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "tokenizer.model").write_bytes(model_with_tokens(tokenizer_name.removesuffix(".model")))
            (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(config_of(tokenizer_name)))
            hf = AutoTokenizer.from_pretrained(folder)
        hf.chat_template = template
        fast = hf.backend_tokenizer
    else:
        fast = Tokenizer.from_str(with_tokens(tokenizer_name))
        hf = PreTrainedTokenizerFast(tokenizer_object=fast, bos_token=BOS[tokenizer_name], eos_token=EOS[tokenizer_name], chat_template=template)
    out = []
    for messages in CONVERSATIONS + ([THOUGHTS] if name == "qwen3" else []):
        try:
            text = hf.apply_chat_template(messages, tokenize=False)
        except jinja2.TemplateError:
            out.append(None)  # the template rejects it
            continue
        ids = hf.apply_chat_template(messages, tokenize=True, return_dict=False)
        # Uses the reference library's offsets: a token counts if one of its characters is the assistant's.
        # Offsets and spans refer to the text before normalization.
        encoding = fast.encode(text, add_special_tokens=False)
        assert encoding.ids == ids, (name, messages)
        frame, end = answers(text, name)
        spans, at = [], 0
        for message in messages:
            if message["role"] != "assistant":
                continue
            begin = frame.search(text, at).end()
            # Up to the end of the turn, skipping end texts inside the content.
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
    templates = [{"chat": name, "tokenizer": tokenizer, "rows": expect(name, template, tokenizer)} for name, template, tokenizer in TEMPLATES]
    content = {"conversations": CONVERSATIONS, "thoughts": THOUGHTS, "templates": templates}
    (HERE / "expected.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
