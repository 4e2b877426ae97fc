"""`trainerd data prepare`: token files that are ready for training, despite kills and bad input."""

import array
import pathlib
import re
import struct
import sys
import unicodedata
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "io" / "chat")]
import make as chat_fixture
from documents import documented
from support import *

TOKENIZERS = ROOT / "tests" / "io" / "tokenizers"
CHAT = ROOT / "tests" / "io" / "chat"


class Prepare(RunTest):
    def prepare(self, *args, status=0, **kwargs):
        done = subprocess.run([BINARY, "data", "prepare", *args], cwd=self.root, capture_output=True, text=True,
                              timeout=600 if SANITIZED else 120, **kwargs)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def write_lines(self, name, texts, key="text"):
        path = self.root / name
        path.write_text("".join(json.dumps({"id": i, key: text}) + "\n" for i, text in enumerate(texts)))
        return path

    def texts(self, count, words=30):
        rng = random.Random(5)
        return [" ".join(rng.choice(["naïve", "мир", "你好", "train", "12345", "e\u0301"]) for _ in range(words)) for _ in range(count)]

    def files(self, name):
        return {path.name: path.read_bytes() for path in sorted((self.root / name).iterdir()) if path.name != "dataset.json"}


@sliced(4)
class TokenFiles(Prepare):
    def test_json_lines_become_tokens_with_document_boundaries_that_a_job_trains_on(self):
        texts = self.texts(3000)
        self.write_lines("a.jsonl", texts + [""])
        tokenizer = TOKENIZERS / "qwen2.json"
        output = self.prepare("a.jsonl", "--out", "tokens", "--tokenizer", tokenizer, "--eos", "<|endoftext|>")
        self.assertIn("3,000 documents", output)
        self.assertIn("1 empty documents were left out", output)
        dataset = json.loads((self.root / "tokens" / "dataset.json").read_text())
        self.assertEqual((dataset["documents"], dataset["empty_documents"], dataset["dtype"]), (3000, 1, "uint16"))
        self.assertEqual(sorted(p.name for p in self.root.iterdir()), ["a.jsonl", "data.txt", "tokens"])
        # The index, read by Megatron's description of the format.
        index = (self.root / "tokens" / "tokens-00000.idx").read_bytes()
        magic, version, code, sequences, documents = struct.unpack_from("<9sQBQQ", index)
        self.assertEqual((magic, version, code, sequences, documents), (b"MMIDIDX\0\0", 1, 8, 3000, 3001))
        lengths = struct.unpack_from("<3000i", index, 34)
        offsets = struct.unpack_from("<3000q", index, 34 + 4 * 3000)
        self.assertEqual(struct.unpack_from("<3001q", index, 34 + 12 * 3000), tuple(range(3001)))
        tokens = array.array("H", (self.root / "tokens" / "tokens-00000.bin").read_bytes())
        self.assertEqual(sum(lengths), len(tokens))
        self.assertEqual(dataset["tokens"], len(tokens))
        end = dataset["after"][0]
        for length, offset in zip(lengths, offsets):
            self.assertEqual(tokens[offset // 2 + length - 1], end)
        self.assertEqual(list(tokens).count(end), 3000)
        vocab = dataset["tokenizer"]["vocab"]
        data = ["--set", "data.format=tokens", "--set", f"data.train=[{self.root}/tokens]", "--set", f"data.valid=[{self.root}/tokens]"]
        # The beginning of the data is decoded with its own tokenizer, but not with another.
        inspect = [BINARY, "data", "inspect", self.root / "tokens"]
        shown = json.loads(subprocess.run([*inspect, "--json"], capture_output=True, check=True, text=True).stdout)
        self.assertEqual((shown["documents"], shown["tokens"], shown["tokenizer"]), (3000, len(tokens), str(tokenizer)))
        self.assertEqual(shown["tokenizer_hash"], dataset["tokenizer"]["hash"])
        self.assertEqual(shown["tokenizer_vocab"], dataset["tokenizer"]["vocab"])
        sample = shown["first_document"]
        self.assertGreater(len(sample), 30)
        self.assertTrue((unicodedata.normalize("NFC", texts[0]) + "<|endoftext|>").startswith(sample.rstrip("\ufffd")), sample)
        lines = subprocess.run(inspect, capture_output=True, check=True, text=True).stdout
        self.assertIn(f"  tokens          {len(tokens)}\n  documents       3000\n", lines)
        self.assertEqual(json.loads(re.search(r"^  first document  (.*)$", lines, re.M)[1]), sample)
        other = subprocess.run([*inspect, "--tokenizer", TOKENIZERS / "gpt2.json"], capture_output=True, text=True)
        self.assertEqual(other.returncode, 4)
        self.assertIn("name the one that made the data by --tokenizer", other.stderr)
        # If an id does not fit the model's vocabulary, the run does not start.
        output = self.run_job(self.job(), *data, "--set", f"model.vocab={vocab - 1}", status=4)
        self.assertIn(f"vocabulary of {vocab}, but model.vocab is {vocab - 1}", output)
        self.run_job(self.job(), *data, "--set", f"model.vocab={vocab}", "--set", "steps=2", "--set", "optimizer.schedule.warmup=1")
        self.assertEqual(len(self.steps()), 2)
        # From now on the model's tokenizer is that of its data.
        self.assertEqual((self.root / "a" / "tokenizer" / "tokenizer.json").read_bytes(), tokenizer.read_bytes())
        exported = subprocess.run([BINARY, "export", self.root / "a", "--out", self.root / "hf"], capture_output=True, text=True)
        self.assertEqual(exported.returncode, 0, exported.stderr)
        self.assertIn("tokenizer: tokenizer.json", exported.stdout)
        self.assertEqual(json.loads((self.root / "hf" / "config.json").read_text())["eos_token_id"], end)
        self.assertEqual(json.loads((self.root / "hf" / "generation_config.json").read_text())["eos_token_id"], end)
        said = subprocess.run([BINARY, "generate", self.root / "a", "--prompt", "train", "--max-tokens", "2"], capture_output=True, text=True)
        self.assertEqual(said.returncode, 0, said.stderr)
        # The same text with another tokenizer is different data.
        shutil.rmtree(self.root / "tokens")
        other = self.root / "other.json"
        other.write_bytes(tokenizer.read_bytes() + b"\n")
        self.prepare("a.jsonl", "--out", "tokens", "--tokenizer", other, "--eos", "<|endoftext|>")
        output = self.run_job(self.job(), *data, "--set", f"model.vocab={vocab}", "--set", "steps=4", "--set", "optimizer.schedule.warmup=1", status=5)
        self.assertRegex(output, "the checkpoint has tokens.* tokenizer [0-9a-f]{32}, the job tokens.* tokenizer [0-9a-f]{32}")
        # A missing tokenizer is reported.
        other.unlink()
        output = self.run_job(self.job("c"), *data, "--set", f"model.vocab={vocab}", "--set", "steps=2", "--set", "optimizer.schedule.warmup=1")
        self.assertIn("checkpoints and exported models will have no tokenizer; name its file by evaluate.tokenizer", output)
        self.assertFalse((self.root / "c" / "tokenizer").exists())
        # Training and validation data must have the same tokenizer.
        self.prepare("a.jsonl", "--out", "valid", "--tokenizer", tokenizer)
        output = self.run_job(self.job("b"), *data, "--set", f"data.valid=[{self.root}/valid]", "--set", f"model.vocab={vocab}", status=4)
        self.assertIn("name different tokenizers", output)

    def test_text_files_are_documents_or_parted_by_blank_lines(self):
        (self.root / "in").mkdir()
        (self.root / "in" / "a.txt").write_bytes(b"one\r\n\r\ntwo\nlines\n \t\n\nthree")
        (self.root / "in" / "b.txt").write_bytes(b"four\n")
        self.prepare("in", "--out", "whole")
        self.assertEqual(self.files("whole")["tokens-00000.bin"], b"one\r\n\r\ntwo\nlines\n \t\n\nthreefour\n")
        self.prepare("in", "--out", "parted", "--split-documents", "--dtype", "int32")
        self.assertEqual(bytes(list(array.array("i", self.files("parted")["tokens-00000.bin"]))), b"onetwo\nlinesthreefour")
        lengths = struct.unpack_from("<4i", self.files("parted")["tokens-00000.idx"], 34)
        self.assertEqual(lengths, (3, 9, 5, 4))

    def test_the_rule_of_the_tokenizer_is_applied_where_it_is_asked_for(self):
        self.write_lines("a.jsonl", ["a", "<|end_of_text|>"], key="body")
        llama = ["--field", "body", "--tokenizer", TOKENIZERS / "llama3.json", "--out"]
        self.prepare("a.jsonl", *llama, "plain")
        self.prepare("a.jsonl", *llama, "around", "--add-special-tokens")
        self.prepare("a.jsonl", *llama, "text", "--specials-as-text")
        ids = {name: list(array.array("H", self.files(name)["tokens-00000.bin"])) for name in ("plain", "around", "text")}
        begin = json.loads((self.root / "around" / "dataset.json").read_text())["before"]
        self.assertEqual(len(begin), 1)
        self.assertEqual(ids["around"], begin + ids["plain"][:1] + begin + ids["plain"][1:])
        self.assertEqual(len(ids["plain"]), 2)
        self.assertGreater(len(ids["text"]), 5)
        output = self.prepare("a.jsonl", *llama, "none", "--append-eos", status=2)
        self.assertIn("give its text by --eos", output)
        self.assertIn("no token \"<nothing>\"", self.prepare("a.jsonl", *llama, "none", "--eos", "<nothing>", status=2))


@sliced(6)
class Chat(Prepare):
    def tokenizer(self, name):
        folder = self.root / f"tokenizer-{name}"
        if not folder.exists():
            folder.mkdir()
            (folder / "tokenizer_config.json").write_text(json.dumps(chat_fixture.config_of(name)))
            if name.endswith(".model"):
                (folder / "tokenizer.model").write_bytes(chat_fixture.model_with_tokens(name.removesuffix(".model")))
            else:
                (folder / "tokenizer.json").write_text(chat_fixture.with_tokens(name))
        return folder / ("tokenizer.model" if name.endswith(".model") else "tokenizer.json")

    def documents(self, name, width="H"):
        """Ids and masks of each document."""
        index = (self.root / name / "tokens-00000.idx").read_bytes()
        count, = struct.unpack_from("<Q", index, 18)
        tokens = list(array.array(width, (self.root / name / "tokens-00000.bin").read_bytes()))
        mask = list((self.root / name / "tokens-00000.mask").read_bytes())
        self.assertEqual(len(tokens), len(mask))
        documents, at = [], 0
        for length in struct.unpack_from(f"<{count}i", index, 34):
            documents.append((tokens[at:at + length], mask[at:at + length]))
            at += length
        return documents

    def test_templates_write_and_encode_what_apply_chat_template_does(self):
        expected = json.loads((CHAT / "expected.json").read_text())
        self.assertEqual(len(expected["templates"]), 20)
        for template in expected["templates"]:
            name, tokenizer = template["chat"], self.tokenizer(template["tokenizer"])
            conversations = expected["conversations"] + ([expected["thoughts"]] if name == "qwen3" else [])
            self.assertEqual(len(template["rows"]), len(conversations))

            def prepare(out, taken, status=0):
                (self.root / "chat.jsonl").write_text("".join(json.dumps({"id": 1, "messages": messages}) + "\n" for messages in taken))
                return self.prepare("chat.jsonl", "--out", out, "--chat", name, "--tokenizer", tokenizer, status=status)

            rows = []
            for messages, row in zip(conversations, template["rows"]):
                system = messages[0]["role"] == "system"
                if row is None:  # the template refuses it, too
                    self.assertRegex(prepare("none", [messages], 4), "has no place for a system message|take turns, and the user begins")
                elif name == "mistral" and system:  # the template omits a part silently
                    self.assertIn("leaves the system message out where the last message is an answer", prepare("none", [messages], 4))
                else:
                    rows.append((messages, row))
            self.assertGreater(len(rows), 6)
            out = f"{name}-{template['tokenizer']}"
            output = prepare(out, [messages for messages, _ in rows])
            dataset = json.loads((self.root / out / "dataset.json").read_text())
            learned = sum(row["mask"].count("1") for _, row in rows)
            self.assertEqual((dataset["chat"], dataset["loss_mask"], dataset["learned_tokens"]), (name, True, learned))
            self.assertIn(f"{learned:,} of the tokens count in the loss", output)
            for (messages, row), (ids, mask) in zip(rows, self.documents(out), strict=True):
                self.assertEqual(ids, row["ids"], (out, messages))
                self.assertEqual("".join(map(str, mask)), row["mask"], (out, messages))

    def test_pairs_and_completions_of_a_sentencepiece_model_count_the_answer(self):
        tokenizer = self.tokenizer("llama2.model")
        (self.root / "a.jsonl").write_text(json.dumps({"prompt": "Two and two?", "completion": " four", "chosen": " four", "rejected": " five 你"}) + "\n")
        self.prepare("a.jsonl", "--out", "out", "--completion", "completion", "--tokenizer", tokenizer, "--no-append-eos")
        self.prepare("a.jsonl", "--out", "plain", "--field", "completion", "--tokenizer", tokenizer, "--no-append-eos")
        self.prepare("a.jsonl", "--out", "pairs", "--pairs", "--tokenizer", tokenizer, "--no-append-eos")
        (ids, mask), = self.documents("out")
        chosen, rejected = self.documents("pairs")
        self.assertEqual((ids, mask), chosen)
        # " four" is "▁four" after other text, and "▁▁four" at the start of a text.
        learned = [id for id, m in zip(ids, mask) if m]
        self.assertEqual(bytes(mask), bytes(sorted(mask)))
        plain = list(array.array("H", (self.root / "plain" / "tokens-00000.bin").read_bytes()))
        self.assertEqual(learned[1:], plain[-len(learned) + 1:])
        self.assertEqual(mask[:4], [0, 0, 0, 0])
        common = sum(1 for _ in os.path.commonprefix([ids, rejected[0]]))
        self.assertEqual(sum(rejected[1]), len(rejected[0]) - (len(mask) - sum(mask)))
        self.assertGreaterEqual(common, len(mask) - sum(mask))

    def test_the_documented_command(self):
        (self.root / "chats.jsonl").write_text(json.dumps({"messages": chat_fixture.turns("a", "b")}) + "\n")
        words = documented("io/README.md", "trainerd data prepare chats.jsonl", {"qwen3/tokenizer.json": self.tokenizer("qwen2")})
        self.assertIn("in 1 documents", self.prepare(*words[3:]))

    def test_share_gpt_and_bytes(self):
        (self.root / "a.jsonl").write_text(json.dumps({"conversations": [{"from": "human", "value": "hé"}, {"from": "gpt", "value": "yo"}]}) + "\n")
        self.prepare("a.jsonl", "--out", "out", "--chat", "chatml", "--field", "conversations")
        (ids, mask), = self.documents("out", "B")
        self.assertEqual(bytes(ids).decode(), "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n")
        self.assertEqual(bytes(id for id, m in zip(ids, mask) if m).decode(), "yo<|im_end|>")

    def test_of_prompt_and_completion_the_completion_counts(self):
        lines = [{"prompt": "Two and two?", "completion": " four"}, {"prompt": "", "completion": "alone"}, {"prompt": "nothing", "completion": ""}]
        (self.root / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        tokenizer = self.tokenizer("qwen2")
        self.prepare("a.jsonl", "--out", "out", "--completion", "completion", "--tokenizer", tokenizer, "--eos", "<|endoftext|>")
        self.prepare("a.jsonl", "--out", "bytes", "--completion", "completion", "--field", "prompt")
        for line, (ids, mask), (text, bytes_mask) in zip(lines, self.documents("out"), self.documents("bytes", "B")):
            self.assertEqual(bytes(text).decode(), line["prompt"] + line["completion"])
            self.assertEqual(bytes(t for t, m in zip(text, bytes_mask) if m).decode(), line["completion"])
            self.assertEqual(mask[-1], 1)  # the end token
            self.assertEqual(sum(mask) > 1, line["completion"] != "")
            if line["prompt"]:
                self.assertEqual(mask[0], 0)

    def test_what_no_template_writes_is_refused_by_line(self):
        tokenizer = self.tokenizer("llama3")
        good = json.dumps({"messages": chat_fixture.turns("a", "b")}) + "\n"

        def refused(line, *args, chat="llama3", file=tokenizer, status=4):
            (self.root / "a.jsonl").write_text(good + (line if isinstance(line, str) else json.dumps(line)) + "\n")
            output = self.prepare("a.jsonl", "--out", "out", "--chat", chat, "--tokenizer", file, *args, status=status)
            self.assertEqual([p.name for p in self.root.glob("out*")], [])
            return output

        self.assertIn("a.jsonl, line 2: no field \"messages\" in this object (it has: text)", refused({"text": "a"}))
        self.assertIn("line 2: the field \"messages\" is not a list", refused({"messages": "a"}))
        self.assertIn("line 2: the conversation has no messages", refused({"messages": []}))
        self.assertIn("line 2: the role \"tool\"", refused({"messages": [{"role": "tool", "content": "a"}]}))
        self.assertIn("line 2: message 2: ", refused({"messages": [{"role": "user", "content": "a"}, {"role": "user"}]}))
        self.assertIn("tool_calls", refused({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}))
        self.assertIn("it has \"tools\"", refused({"messages": chat_fixture.turns("a", "b"), "tools": [{"name": "a"}]}))
        self.assertIn("its weight is 0", refused({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}))
        self.assertIn("list of parts", refused({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}))
        self.assertIn("no place for reasoning_content", refused({"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}]}))
        torn = refused("{")
        self.assertIn("line 2: not valid JSON", torn)
        self.assertIn("repair the line, or remove it", torn)
        self.assertNotIn("json.exception", torn)
        good = ""
        self.assertIn("no token counts in the loss", refused({"messages": [{"role": "user", "content": "a"}]}))
        good = json.dumps({"messages": chat_fixture.turns("a", "b")}) + "\n"
        self.assertIn("has no token <|im_start|>", refused(good, chat="chatml", status=2))
        self.assertIn("there is no template \"llama\"; there are chatml", refused(good, chat="llama", status=2))
        self.assertIn("is written in special tokens", refused(good, "--specials-as-text", status=2))
        # A model that changes the text (NFKC, white space) is refused.
        self.assertIn("this SentencePiece model changes the text", refused(good, chat="llama2", file=TOKENIZERS / "unigram.model", status=2))
        self.assertIn("has no token [INST]", refused(good, chat="mistral", file=TOKENIZERS / "bpe.model", status=2))
        self.assertIn("has a system message alone", refused({"messages": [{"role": "system", "content": "a"}]}, chat="llama2", file=TOKENIZERS / "bpe.model"))
        (tokenizer.parent / "tokenizer_config.json").unlink()
        self.assertIn("names no token that begins a text", refused(good, status=2))
        (self.root / "a.txt").write_text("text")
        self.assertIn("--chat reads JSON lines", self.prepare("a.txt", "--out", "out", "--chat", "chatml", status=4))


class Verify(Prepare):
    def test_verify_holds_the_files_against_dataset_json(self):
        (self.root / "a.jsonl").write_text("".join(json.dumps({"messages": chat_fixture.turns("a question", f"answer {i}")}) + "\n" for i in range(50)))
        self.prepare("a.jsonl", "--out", "out", "--chat", "chatml")

        def verify(status):
            done = subprocess.run([BINARY, "data", "verify", "out"], cwd=self.root, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
            return done.stdout + done.stderr

        self.assertIn("no problems", verify(0))
        # One flipped bit per file, which the reader alone would not detect.
        for ending, at in (("bin", 700), ("mask", 900), ("idx", -8)):
            path = self.root / "out" / f"tokens-00000.{ending}"
            was = path.read_bytes()
            changed = bytearray(was)
            changed[at] ^= 1
            path.write_bytes(changed)
            said = verify(4)
            if ending != "idx":  # a damaged index has a wrong length, which is reported first
                self.assertIn(f"tokens-00000.{ending}: its checksum is ", said)
                self.assertIn("dataset.json says", said)
            path.write_bytes(was)
        (self.root / "out" / "tokens-00000.mask").unlink()
        self.assertIn("tokens-00000.mask: it is not there", verify(4))


@sliced(4)
class Changes(Prepare):
    def test_inputs_that_change_meanwhile_and_files_that_go_are_noticed(self):
        self.write_lines("a.jsonl", ["a text"])
        self.prepare("a.jsonl", "--out", "out")
        self.assertIn("complete already", self.prepare("a.jsonl", "--out", "out"))
        (self.root / "out" / "tokens-00000.bin").unlink()
        self.assertIn("tokens-00000.bin: this file of a finished data set is missing", self.prepare("a.jsonl", "--out", "out", status=4))
        texts = self.texts(60_000, words=60)
        path = self.write_lines("b.jsonl", texts)
        process = subprocess.Popen([BINARY, "data", "prepare", "b.jsonl", "--out", "b", "--workers", "1", "--tokenizer", TOKENIZERS / "gpt2.json"], cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(Kills.end, process)
        self.wait_for(process, lambda: (self.root / "b.partial" / "tokens-00000.bin.partial").exists(), "it had begun")
        os.utime(path, ns=(1, 1))
        output = process.communicate(timeout=PATIENCE)[0]
        self.assertEqual(process.returncode, 4, output)
        self.assertIn("b.jsonl: the file was changed while the command worked on it", output)
        self.assertFalse((self.root / "b").exists())


@sliced(4)
class Kills(Prepare):
    def test_a_killed_command_goes_on_and_its_files_do_not_depend_on_it_or_on_workers(self):
        texts = self.texts(100_000, words=60)  # several parts of 16 MiB
        self.write_lines("a.jsonl", texts)
        self.assertGreater((self.root / "a.jsonl").stat().st_size, 40 << 20)
        command = ["a.jsonl", "--tokenizer", TOKENIZERS / "gpt2.json", "--out"]
        process = subprocess.Popen([BINARY, "data", "prepare", *command, "killed", "--workers", "1"], cwd=self.root)
        self.addCleanup(self.end, process)
        records = self.root / "killed.partial" / "records"
        end = time.monotonic() + 120
        while not list(records.glob("*.json")) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        process.kill()
        process.wait()
        finished = len(list(records.glob("*.json")))
        self.assertGreaterEqual(finished, 1)
        self.assertFalse((self.root / "killed").exists())
        output = self.prepare(*command, "killed", "--workers", "2")
        self.assertRegex(output, f"{finished} of [0-9] parts were finished by an earlier command")
        self.prepare(*command, "whole", "--workers", "3")
        self.assertGreater(len(self.files("whole")), 4)
        self.assertEqual(self.files("killed"), self.files("whole"))
        self.assertFalse((self.root / "killed.partial").exists())
        self.assertIn("complete already", self.prepare(*command, "killed"))
        self.assertIn("made of other inputs", self.prepare("data.txt", "--out", "killed", status=4))

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.wait()


@sliced(4)
class Others(Prepare):
    def test_what_is_not_of_an_interrupted_command_is_left_alone(self):
        self.write_lines("a.jsonl", ["a text"])
        (self.root / "out.partial").mkdir()
        notes = self.root / "out.partial" / "notes.txt"
        notes.write_text("mine")
        self.assertIn("notes.txt: is not of an interrupted", self.prepare("a.jsonl", "--out", "out", status=4))
        self.assertEqual(notes.read_text(), "mine")

    def test_a_tokenizer_that_does_not_say_its_type_is_bpe(self):
        self.write_lines("a.jsonl", ["some words, and others"] * 20)
        content = json.loads((TOKENIZERS / "gpt2.json").read_text())
        del content["model"]["type"]
        (self.root / "old.json").write_text(json.dumps(content))
        for name, tokenizer in (("new", TOKENIZERS / "gpt2.json"), ("old", self.root / "old.json")):
            self.prepare("a.jsonl", "--out", name, "--tokenizer", tokenizer)
        self.assertEqual(self.files("old")["tokens-00000.bin"], self.files("new")["tokens-00000.bin"])


class BadInput(Prepare):
    def refused(self, name, content, *args, status=4):
        (self.root / name).write_bytes(content)
        output = self.prepare(name, *args, "--out", "out", status=status)
        self.assertEqual([p.name for p in self.root.glob("out*")], [])
        return output

    def test_bad_input_is_named_by_file_and_line_and_nothing_is_left(self):
        good = b'{"text": "a"}\n'
        self.assertIn("a.jsonl, line 3: not valid JSON", self.refused("a.jsonl", good + b"\n" + b'{"text": "b"\n'))
        self.assertIn('a.jsonl, line 2: no field "text" in this object (it has: body)', self.refused("a.jsonl", good + b'{"body": "b"}\n'))
        self.assertIn('a.jsonl, line 2: the field "text" is a number', self.refused("a.jsonl", good + b'{"text": 3}\n'))
        self.assertIn('the key "text" is given twice', self.refused("a.jsonl", b'{"text": "a", "text": "b"}\n'))
        self.assertIn("name it by --chat", self.refused("a.jsonl", b'{"messages": [{"role": "user", "content": "a"}]}\n'))
        self.assertIn("name it by --chat", self.refused("a.jsonl", b'{"messages": []}\n', "--field", "messages"))
        self.assertIn("a.jsonl, line 1: not valid JSON", self.refused("a.jsonl", b'{"text": "a\xff"}\n'))
        self.assertIn("surrogate", self.refused("a.jsonl", b'{"text": "a\\ud800"}\n'))
        self.assertIn("a.txt, line 2: byte 7 is not UTF-8", self.refused("a.txt", b"one\ntwo\xc3\nthree"))
        self.assertIn("byte 3 is NUL", self.refused("a.txt", b"one\0"))
        self.assertIn("Parquet", self.refused("a.parquet", b"PAR1\x15 and so on"))
        self.assertIn("text in UTF-16: convert it first", self.refused("a.jsonl", '{"text": "a"}\n'.encode("utf-16")))
        overflow = self.refused("a.jsonl", b'{"text": "a", "b": 1e999}\n')
        self.assertIn("line 1: not valid JSON: number overflow", overflow)
        self.assertNotIn("json.exception", overflow)
        self.assertIn("--out: it is empty", self.prepare("a.jsonl", "--out", "", status=2))
        self.assertIn("gzip", self.refused("a.jsonl", b"\x1f\x8b\x08\0\0\0\0\0\0\x03"))
        self.assertIn("--format jsonl", self.refused("a.json", good))
        self.assertIn("the file is empty", self.refused("a.txt", b""))
        self.assertIn("there is no text", self.refused("a.jsonl", b'{"text": ""}\n'))
        self.assertIn("cannot hold a vocabulary", self.refused("a.txt", b"one", "--tokenizer", TOKENIZERS / "gpt2.json", "--dtype", "uint8", status=2))
        self.assertIn("none: cannot be read", self.refused("a.txt", b"one", "--tokenizer", "none"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
