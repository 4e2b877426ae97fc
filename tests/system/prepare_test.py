"""`trainerd data prepare`: token files that train at once, in spite of kills and bad input."""

import array
import struct
import unittest

from support import *

TOKENIZERS = ROOT / "tests" / "io" / "tokenizers"


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
        # The index, by Megatron's own description of it.
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
        # Every id has a place in the model, or the run does not begin.
        output = self.run_job(self.job(), *data, "--set", f"model.vocab={vocab - 1}", status=4)
        self.assertIn(f"vocabulary of {vocab}, but model.vocab is {vocab - 1}", output)
        self.run_job(self.job(), *data, "--set", f"model.vocab={vocab}", "--set", "steps=2", "--set", "optimizer.schedule.warmup=1")
        self.assertEqual(len(self.steps()), 2)
        # The same data by another tokenizer is other data.
        shutil.rmtree(self.root / "tokens")
        other = self.root / "other.json"
        other.write_bytes(tokenizer.read_bytes() + b"\n")
        self.prepare("a.jsonl", "--out", "tokens", "--tokenizer", other, "--eos", "<|endoftext|>")
        output = self.run_job(self.job(), *data, "--set", f"model.vocab={vocab}", "--set", "steps=4", "--set", "optimizer.schedule.warmup=1", status=5)
        self.assertRegex(output, "the checkpoint has tokens.* tokenizer [0-9a-f]{32}, the job tokens.* tokenizer [0-9a-f]{32}")
        # Training and validation data are of one tokenizer.
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
        self.assertIn("chat messages need the template", self.refused("a.jsonl", b'{"messages": [{"role": "user", "content": "a"}]}\n'))
        self.assertIn("chat messages need the template", self.refused("a.jsonl", b'{"messages": []}\n', "--field", "messages"))
        self.assertIn("a.jsonl, line 1: not valid JSON", self.refused("a.jsonl", b'{"text": "a\xff"}\n'))
        self.assertIn("surrogate", self.refused("a.jsonl", b'{"text": "a\\ud800"}\n'))
        self.assertIn("a.txt, line 2: byte 7 is not UTF-8", self.refused("a.txt", b"one\ntwo\xc3\nthree"))
        self.assertIn("byte 3 is NUL", self.refused("a.txt", b"one\0"))
        self.assertIn("Parquet", self.refused("a.parquet", b"PAR1\x15 and so on"))
        self.assertIn("gzip", self.refused("a.jsonl", b"\x1f\x8b\x08\0\0\0\0\0\0\x03"))
        self.assertIn("--format jsonl", self.refused("a.json", good))
        self.assertIn("the file is empty", self.refused("a.txt", b""))
        self.assertIn("there is no text", self.refused("a.jsonl", b'{"text": ""}\n'))
        self.assertIn("cannot hold a vocabulary", self.refused("a.txt", b"one", "--tokenizer", TOKENIZERS / "gpt2.json", "--dtype", "uint8", status=2))
        self.assertIn("none: cannot be read", self.refused("a.txt", b"one", "--tokenizer", "none"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
