"""Data of another kind than the run expects, and changes between a checkpoint and the run that resumes from it."""

import array
import socket
import struct
import unittest

from support import *


def sets(*settings):
    return [argument for setting in settings for argument in ("--set", setting)]


class Data(RunTest):
    def events(self, kind, name="a"):
        lines = (self.root / name / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def token_job(self, path, *settings):
        return sets("data.format=tokens", f"data.train=[{path}]", f"data.valid=[{path}]", *settings)

    def write_ids(self, name, type_code, ids):
        path = self.root / name
        path.write_bytes(array.array(type_code, ids).tobytes())
        return path

    def replace_data(self, first_word):
        """Writes other text of the same length into the same file."""
        size = self.data.stat().st_size
        self.data.write_text((first_word + make_text(60_000))[:size])
        self.assertEqual(self.data.stat().st_size, size)


class TokenFiles(Data):
    def test_int32_tokens_are_refused_until_their_type_is_known_and_then_train(self):
        ids = [i * 7 % 200 for i in range(20_000)]
        path = self.write_ids("ids.bin", "i", ids)
        output = self.run_job(self.job(), *self.token_job(path), status=4)
        self.assertIn("data.dtype", output)
        output = self.run_job(self.job(), *self.token_job(path, "data.dtype=uint16"), status=4)
        self.assertIn("set data.dtype: int32", output)
        self.assertEqual(self.steps(), [])
        self.run_job(self.job(), *self.token_job(path, "data.dtype=int32", "steps=5"))
        # Megatron's index has the type.
        header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2)
        path.with_suffix(".idx").write_bytes(header + struct.pack("<iqqq", len(ids), 0, 0, 1))
        self.run_job(self.job("b"), *self.token_job(path, "steps=5"))
        self.assertEqual(self.losses("b"), self.losses("a"))
        # The same tokens in another type give the same samples.
        narrow = self.write_ids("narrow.bin", "H", ids)
        self.run_job(self.job("c"), *self.token_job(narrow, "data.dtype=uint16", "steps=5"))
        self.assertEqual(self.losses("c"), self.losses("a"))

    def test_an_id_outside_the_vocabulary_ends_the_run_before_its_first_step(self):
        ids = [i % 256 for i in range(20_000)]
        ids[12_345] = 256
        path = self.write_ids("ids.bin", "H", ids)
        output = self.run_job(self.job(), *self.token_job(path, "data.dtype=uint16"), status=4)
        self.assertRegex(output, r"ids\.bin: token 256 at position 12345 .*vocabulary of 256")
        self.assertEqual(self.steps(), [])
        # Validation data is checked, too.
        good = self.write_ids("good.bin", "H", [i % 256 for i in range(20_000)])
        self.run_job(self.job(), *self.token_job(good, f"data.valid=[{path}]", "data.dtype=uint16"), status=4)


@sliced(4)
class ChangedData(Data):
    def test_other_content_in_files_of_the_same_size_is_refused_before_a_step_is_taken(self):
        job = self.job()
        self.run_job(job, *sets("steps=5"))
        self.replace_data("other ")
        output = self.run_job(job, status=5)
        self.assertRegex(output, "data: the checkpoint has content [0-9a-f]{32}, the job [0-9a-f]{32}")
        self.assertIn("data.on_change: continue", output)
        self.assertEqual(len(self.steps()), 5)

    def test_a_run_that_goes_on_with_changed_data_says_so_and_resumes_bit_for_bit(self):
        first = self.data.read_bytes()
        for name, stops in (("whole", (24,)), ("parts", (13, 19, 24))):
            self.data.write_bytes(first)
            job = self.job(name, schedule=CONSTANT)
            self.run_job(job, *sets("steps=10"))
            self.replace_data("other ")
            for steps in stops:
                self.run_job(job, *sets(f"steps={steps}", "data.on_change=continue"))
            changed = [e for e in self.events("change", name) if "training data changed" in e["message"]]
            self.assertEqual([e["step"] for e in changed], [10])
            self.assertIn("data: the checkpoint has content", changed[0]["details"][0])
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        # Unchanged data continues in its order, whatever the key says.
        self.data.write_bytes(first)
        job = self.job("same", schedule=CONSTANT)
        self.run_job(job, *sets("steps=10"))
        self.run_job(job, *sets("data.on_change=continue"))
        self.run_job(self.job("reference", schedule=CONSTANT))
        self.assertEqual(self.losses("same"), self.losses("reference"))
        self.assertNotEqual(self.losses("same")[10:], self.losses("whole")[10:])

    def nodes_with_own_files(self, *keys):
        """Runs two agents, each in its own folder. Returns their outputs."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        agents = [self.start(self.job(), "--nodes", "2", "--node", str(node), "--rendezvous", f"127.0.0.1:{port}",
                             *sets("parallel.dp=2", *keys), cwd=self.root / f"node{node}") for node in (0, 1)]
        outputs = [agent.communicate(timeout=PATIENCE)[0] for agent in agents]
        self.assertEqual([agent.returncode for agent in agents], [4, 4], "\n----\n".join(outputs))
        self.assertEqual(self.steps(), [])
        return outputs[0]

    def own_files(self):
        for node in (0, 1):
            place = self.root / f"node{node}"
            place.mkdir()
            yield node, place

    def test_a_node_with_other_content_of_the_same_size_is_named(self):
        for node, place in self.own_files():
            (place / "own.txt").write_bytes(self.data.read_bytes())
            if node == 0:
                self.replace_data("other ")
        said = self.nodes_with_own_files("data.train=[own.txt]", "data.valid=[own.txt]")
        self.assertRegex(said, r"node 1 .*sees other data than node 0 .*give it the files that node 0 .*has")

    def test_a_node_with_other_validation_data_or_questions_is_named(self):
        text = self.data.read_bytes()
        question = '{"prompt": "a", "choices": ["b", "%s"], "answer": 0}\n'
        for node, place in self.own_files():
            (place / "same.txt").write_bytes(text)
            (place / "own.txt").write_bytes(text[::-1] if node else text)
            (place / "same.jsonl").write_text(question % "c")
            (place / "own.jsonl").write_text(question % "cd"[node])
        valid = ("data.valid_sets=[{name: web, path: same.txt}, {name: code, path: own.txt}]", "data.valid=[same.txt]", "evaluate.every=2", "evaluate.batches=1")
        self.assertRegex(self.nodes_with_own_files(*valid), r"node 1 .*has other files for data.valid_sets: code than node 0 .*give it the files that node 0")
        questions = ("evaluate.choices=[{name: same, path: same.jsonl}, {name: facts, path: own.jsonl}]", "evaluate.every=2", "evaluate.batches=1")
        self.assertRegex(self.nodes_with_own_files(*questions), r"node 1 .*has other files for evaluate.choices: facts than node 0 .*\(xxh3 \w{32}, not xxh3 \w{32}\)")


@sliced(4)
class ChangedKeys(Data):
    def test_keys_that_changed_since_the_checkpoint_are_in_the_log_and_the_events(self):
        job = self.job()
        self.run_job(job, *sets("steps=10"))
        output = self.run_job(job, *sets("optimizer.lr=5.0e-4", "precision=fp32"))
        details = ["steps: 10 -> 24", "precision: bf16 -> fp32", "optimizer.lr: 0.001 -> 5.0e-04"]
        [change] = self.events("change")
        self.assertEqual((change["step"], change["details"]), (10, details))
        for line in details:
            self.assertIn(line, output)

    def test_a_change_is_reported_against_the_checkpoint_even_if_the_run_that_made_it_never_saved(self):
        job = self.job()
        self.run_job(job, *sets("steps=10"))
        process = self.start(job, *sets("optimizer.lr=5.0e-4", "steps=100000", "checkpoint.every=0"))
        self.wait_for_step(process, 12)
        process.kill()
        process.communicate()
        self.run_job(job, *sets("optimizer.lr=5.0e-4"))
        self.assertEqual([("optimizer.lr: 0.001 -> 5.0e-04" in e["details"]) for e in self.events("change")], [True, True])

    def test_a_key_that_cannot_change_is_refused_with_both_values_and_a_way_on(self):
        job = self.job()
        self.run_job(job, *sets("steps=5"))
        output = self.run_job(job, *sets("model.ffn=192"), status=5)
        self.assertRegex(output, "model.ffn: the checkpoint has 176, the job 192")
        self.assertIn("give these keys the checkpoint's values", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
