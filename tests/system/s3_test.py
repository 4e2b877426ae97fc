"""Training data in an object store: the same bytes and losses as from local files, despite failures, and error messages."""

import array
import re
import struct
import unittest

from s3_server import Store
from support import *

JOB = """\
name: store
seed: 5
output: {output}
device: cpu
threads: 1
model: {{layers: 1, hidden: 32, heads: 2, ffn: 64, vocab: 256, seq_len: 64}}
batch: {{global: 8, micro: 2}}
optimizer: {{lr: 1.0e-3, schedule: {{kind: constant}}}}
steps: {steps}
data:
  format: tokens
  dtype: auto
  sources:
    - {{path: "{place}/documents", weight: 1}}
    - {{path: "{place}/many/**/*.bin", weight: 2}}
  valid_fraction: 0.1
{cache}evaluate: {{every: 4, batches: 2}}
checkpoint: {{every: 4}}
metrics: {{listen: "{listen}"}}
"""


def write_indexed(path, documents, seed):
    """A Megatron data set."""
    rng = random.Random(seed)
    lengths = [rng.randrange(20, 400) for _ in range(documents)]
    offsets = [2 * sum(lengths[:i]) for i in range(documents)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".bin").write_bytes(array.array("H", iter(rng.randbytes(sum(lengths)))).tobytes())
    path.with_suffix(".idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, documents, documents + 1)
                                         + struct.pack(f"<{documents}i{documents}q{documents + 1}q", *lengths, *offsets, *range(documents + 1)))


@sliced(6)
class ObjectStore(RunTest):
    def setUp(self):
        super().setUp()
        self.local = self.root / "corpus"
        write_indexed(self.local / "documents", 2000, 1)
        for i, name in enumerate(["many/a", "many/deep/odd name+1%", "many/deep/\u00fc"]):
            write_indexed(self.local / name, 300, 2 + i)
        self.store = Store()
        self.addCleanup(self.store.server_close)
        self.addCleanup(self.store.shutdown)
        self.store.put_tree("corpora", self.local, "v1/")
        self.store.objects["corpora/v1/"] = b""  # a folder marker
        self.cache = self.root / "cache"

    def environment(self, **more):
        return {**{k: v for k, v in os.environ.items() if not k.startswith("AWS_")}, **self.store.environment(**more)}

    def write_job(self, name, place="s3://corpora/v1", steps=8, cache=64 << 20, listen="off"):
        path = self.root / f"{name}.yaml"
        keys = f"  cache: {{directory: {self.cache}, bytes: {cache}}}\n" if cache else "  cache: {bytes: 0}\n"
        path.write_text(JOB.format(output=self.root / name, place=place, steps=steps, listen=listen, cache=keys if place.startswith("s3") else ""))
        return path

    def identity(self, name):
        return json.loads((self.checkpoints(name)[-1] / "manifest.json").read_text())["identity"]

    def data_command(self, *args, status=0, **environment):
        done = subprocess.run([BINARY, "data", *args], env=self.environment(**environment), capture_output=True, text=True, timeout=PATIENCE * 2)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def cached_bytes(self):
        return sum(p.stat().st_size for p in self.cache.rglob("*") if p.is_file() and p.name != "usage")

    def test_losses_and_identity_are_those_of_local_files_through_failures_and_from_the_cache(self):
        self.run_job(self.write_job("local", str(self.local)))
        seen = []

        def fault(handler):
            with self.store.lock:
                seen.append(handler.path)
                turn = len(seen)
            return {0: 503, 3: "cut", 6: 500, 9: "drop"}.get(turn % 13)

        self.store.fault = fault
        output = self.run_job(self.write_job("remote"), "--set", "parallel.dp=2", env=self.environment())
        self.assertIn("s3://corpora/v1", (self.root / "remote" / "job.yaml").read_text())
        self.assertNotIn("secret", output)
        self.run_job(self.write_job("local2", str(self.local)), "--set", "parallel.dp=2")
        self.assertEqual(self.losses("remote"), self.losses("local2"))
        self.assertEqual([e["loss"] for e in self.events("remote") if e["event"] == "evaluation"],
                         [e["loss"] for e in self.events("local2") if e["event"] == "evaluation"])
        for key in ("data", "data.content", "data.valid"):
            self.assertEqual(self.identity("remote")[key], self.identity("local")[key])
        # Local files and objects count as the same source: a run can resume with the other.
        self.run_job(self.write_job("local", steps=10), env=self.environment())
        # Another run finds all blocks in the cache and fetches a damaged one again.
        blocks = [p for p in self.cache.rglob("*") if p.is_file() and p.name != "usage"]
        self.assertGreater(len(blocks), 4)
        damaged = bytearray(blocks[0].read_bytes())
        damaged[100] ^= 1
        blocks[0].write_bytes(damaged)
        self.store.fault = lambda handler: None
        self.run_job(self.write_job("again"), "--set", "parallel.dp=2", env=self.environment())
        self.assertEqual(self.losses("again"), self.losses("local2"))
        self.assertEqual(len([p for p in blocks if p.read_bytes() == bytes(damaged)]), 0)

    def test_objects_that_were_replaced_end_the_run_when_its_ranks_start_again(self):
        self.write_job("replaced", steps=100000)
        process = self.start(self.root / "replaced.yaml", "--set", "checkpoint={every: 0, memory: 1}", env=self.environment())
        self.wait_for_step(process, 6, "replaced")
        name = "corpora/v1/many/a.bin"
        self.store.objects[name] = self.store.objects[name][2:] + self.store.objects[name][:2]
        os.kill(self.children(process.pid)[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 4, output)
        self.assertIn("the training data has changed since the run read it", output)
        self.assertEqual(len(self.checkpoints("replaced")), 1)

    def test_the_cache_keeps_its_bound_and_none_is_fine(self):
        """A bound of 1 MiB with more data than that. Blocks of 256 KiB are not kept if they do not fit."""
        for i in range(8):
            write_indexed(self.local / f"many/more{i}", 700, 30 + i)
        self.store.put_tree("corpora", self.local, "v1/")
        self.run_job(self.write_job("local", str(self.local)))
        for cache in (1 << 20, 0):
            self.run_job(self.write_job(f"c{cache}", cache=cache), env=self.environment())
            self.assertEqual(self.losses(f"c{cache}"), self.losses("local"))
            self.assertLessEqual(self.cached_bytes(), cache or 1 << 20)
        self.assertGreater(self.cached_bytes(), 256 << 10)

    def test_what_packed_samples_read_is_fetched_once(self):
        """Samples of sixteen documents each, anywhere in a file of 4 GiB. Read-ahead requests at most the reader's 64 MiB."""
        documents, length, block = 1 << 20, 512, 1 << 18

        class Large(bytes):
            etag = '"index"'

        class Zeros:
            etag = '"zeros"'

            def __len__(self):
                return 8 * documents * length

            def __getitem__(self, part):
                return bytes(part.stop - part.start)

        self.store.objects["corpora/v1/large.bin"] = Zeros()
        lengths, offsets, numbers = array.array("i", [length]) * documents, array.array("q", range(0, 8 * documents * length, 8 * length)), array.array("q", range(documents + 1))
        self.store.objects["corpora/v1/large.idx"] = Large(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 5, documents, documents + 1) + lengths.tobytes()
                                                           + offsets.tobytes() + numbers.tobytes())
        fetched = []

        def note(handler):
            wanted = handler.headers.get("Range")
            if wanted and handler.path.endswith("large.bin"):
                first, last = map(int, wanted.removeprefix("bytes=").split("-"))
                if (last + 1 - first) % block == 0:  # requests of the check before the run are smaller
                    with self.store.lock:
                        fetched.extend(range(first // block, (last + 1) // block))

        self.store.fault = note
        path = self.root / "large.yaml"
        path.write_text(JOB.format(output=self.root / "large", place="s3://corpora/v1", steps=6, listen="off", cache="").partition("data:")[0]
                        + "data: {format: tokens, train: \"s3://corpora/v1/large\", packing: best_fit, document_mask: true, cache: {bytes: 0}}\n"
                        + "model: {layers: 1, hidden: 16, heads: 1, ffn: 16, vocab: 256, seq_len: 8192}\nmetrics: {listen: \"off\"}\n")
        path.write_text("".join(line for line in path.read_text().splitlines(True) if "seq_len: 64" not in line))
        self.run_job(path, "--set", "batch={global: 16, micro: 1}", env=self.environment())
        self.assertGreater(len(set(fetched)), 1000)
        self.assertLess(len(fetched), 1.15 * len(set(fetched)), f"{len(fetched)} blocks, of which {len(set(fetched))} different ones")

    def test_a_run_outlives_its_credentials_and_a_slow_store_and_counts_what_it_did(self):
        """Every twentieth request finds its credentials expired, whatever their lifetime. Training reads blocks after the first of
        a file only when needed: these ranges are slow, and several are in flight at once because of read-ahead."""
        for i in range(6):
            write_indexed(self.local / f"many/more{i}", 1800, 10 + i)
        self.store.put_tree("corpora", self.local, "v1/")
        slow, turns, at_once, most = [], [], set(), [0]

        def fault(handler):
            turns.append(handler.path)
            if len(turns) % 20 == 0:
                for access, (secret, token, _) in list(self.store.keys.items()):
                    self.store.keys[access] = (secret, token, 0)
            if slow and handler.headers.get("Range", "bytes=0-").split("=")[1] >= "2":  # 262144 and more
                with self.store.lock:
                    at_once.add(handler)
                    most.append(len(at_once))
                time.sleep(0.3)
                with self.store.lock:
                    at_once.discard(handler)

        self.store.fault = fault
        env = self.environment(AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None, AWS_CONTAINER_CREDENTIALS_FULL_URI=self.store.url + "/container",
                               AWS_CONTAINER_AUTHORIZATION_TOKEN="container-token")
        job = self.write_job("a", steps=1_000_000, cache=0, listen="127.0.0.1:0")
        process = self.start(job, *(f"--set={key}" for key in ("data.prefetch=1", "checkpoint.every=1000000", "evaluate.every=1000000")), env=env)
        self.read_until(process, "samples were checked")
        slow.append(True)
        address = re.search(r"http://(\S+)/metrics", self.read_until(process, "metrics at")).group(1)

        def metric(name):
            return sum(map(float, re.findall(rf"^trainerd_data_{name}_total\{{[^}}]*\}} (\S+)$", scrape(address), re.M)))

        self.wait_for(process, lambda: metric("credentials") > 0 and metric("retries") > 0, "credentials were renewed")
        self.wait_for_step(process, 20)
        self.assertGreater(metric("requests"), metric("retries"))
        self.assertGreater(metric("fetched_bytes"), 256 << 10)
        self.assertEqual(metric("cached_bytes"), 0)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 143)
        self.assertGreater(max(most), 3)
        self.assertGreater(sum(step["time"]["data_wait"] for step in self.steps()), 0.1)

    def test_prepare_makes_of_objects_what_it_makes_of_files(self):
        rng = random.Random(4)
        texts = self.root / "texts"
        (texts / "deep").mkdir(parents=True)
        word = lambda: "".join(rng.choice("abcdefgh\u00e9 ") for _ in range(rng.randrange(1, 400)))
        for name, count in (("a.jsonl", 9000), ("deep/b.jsonl", 300)):  # the first has several blocks
            (texts / name).write_text("".join(json.dumps({"text": word()}, ensure_ascii=False) + "\n" for _ in range(count)))
        (texts / "c.txt").write_text("\n\n".join(word() for _ in range(500)))
        self.store.put_tree("corpora", texts, "texts/")
        seen = []

        def fault(handler):
            with self.store.lock:
                seen.append(handler.path)
                return 503 if len(seen) % 5 == 0 else None

        self.store.fault = fault
        self.data_command("prepare", str(texts), "--out", str(self.root / "local"), "--split-documents")
        said = self.data_command("prepare", "s3://corpora/texts", "--out", str(self.root / "remote"), "--split-documents")
        self.assertIn("9,800 documents", said)
        self.assertIn("complete already", self.data_command("prepare", "s3://corpora/texts", "--out", str(self.root / "remote"), "--split-documents"))
        for kind in ("bin", "idx"):
            self.assertEqual(*(b"".join(p.read_bytes() for p in sorted((self.root / name).glob(f"*.{kind}"))) for name in ("local", "remote")))
        sources = json.loads((self.root / "remote" / "dataset.json").read_text())["sources"]
        self.assertEqual([s["path"] for s in sources], [f"s3://corpora/texts/{name}" for name in ("a.jsonl", "c.txt", "deep/b.jsonl")])
        # Other content of the same size is different data, and errors are reported with their line.
        self.store.fault = lambda handler: None
        self.store.objects["corpora/texts/c.txt"] = self.store.objects["corpora/texts/c.txt"].swapcase()
        self.assertIn("made of other inputs", self.data_command("prepare", "s3://corpora/texts", "--out", str(self.root / "remote"), "--split-documents", status=4))
        self.store.objects["corpora/texts/d.jsonl"] = b'{"text": "fine"}\n{"text": 3}\n'
        self.assertIn("s3://corpora/texts/d.jsonl, line 2: ", self.data_command("prepare", "s3://corpora/texts/*.jsonl", "--out", str(self.root / "wrong"), status=4))
        self.assertIn("s3://corpora/none", self.data_command("prepare", "s3://corpora/none.jsonl", "--out", str(self.root / "none"), status=4))

    @unittest.skipUnless(FULL, "takes 20 s")
    def test_many_workers_fetch_each_byte_once(self):
        """One worker's read-ahead does not evict another's."""
        class Named(bytes):
            etag = '"same"'

        line = json.dumps({"text": "x" * 4000}).encode() + b"\n"
        text = Named(line * ((16 << 20) // len(line) + 1))
        for n in range(48):
            self.store.objects[f"corpora/wide/{n:02}.jsonl"] = text
        self.data_command("prepare", "s3://corpora/wide", "--out", str(self.root / "wide"), "--workers", "48")
        self.assertLess(self.store.ranges, 1.2 * 48 * len(text))

    def test_inspect_and_verify_say_of_objects_what_they_say_of_files(self):
        for command in (["inspect"], ["inspect", "--all"], ["verify"]):
            for place in ("documents", "many", "many/**/*.bin"):
                with self.subTest(command=command, place=place):
                    local = self.data_command(*command, f"{self.local}/{place}")
                    remote = self.data_command(*command, f"s3://corpora/v1/{place}")
                    self.assertEqual(remote.replace("s3://corpora/v1/", f"{self.local}/"), local)
        self.store.objects["corpora/v1/documents.bin"] = self.store.objects["corpora/v1/documents.bin"][:-2]
        self.assertIn("cut short", self.data_command("verify", "s3://corpora/v1/documents", status=4))

    def test_errors_say_what_to_do(self):
        def told(path, status=4, **environment):
            return self.data_command("inspect", path, status=status, **environment)

        self.assertRegex(told("s3://corpora/v2"), r"s3://corpora/v2: there is no such object, and no key begins with \"v2/\"")
        self.assertRegex(told("s3://missing/x.bin"), "there is no bucket missing at http://127")
        self.assertRegex(told("s3://closed/x/"), r"s3://closed/.*403 AccessDenied: no right to it.*s3:ListBucket")
        self.assertRegex(told("s3://elsewhere/x/"), "in the region mars-1.*set AWS_REGION=mars-1")
        self.assertRegex(told("s3://corpora/v1/", AWS_SECRET_ACCESS_KEY="other"), "403 SignatureDoesNotMatch.*secret key")
        self.assertRegex(told("s3://corpora/v1/", AWS_ACCESS_KEY_ID="AKOTHER"), "InvalidAccessKeyId.*does not know the access key")
        self.assertRegex(told("s3://corpora/v1/", status=2, AWS_ACCESS_KEY_ID=None), "one of AWS_ACCESS_KEY_ID and")
        self.assertRegex(told("s3://corpora/v1/", status=2, AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None), "there are no credentials for s3://")
        self.assertRegex(told("s3:///x", status=2), "expected s3://bucket/key")
        self.assertRegex(self.run_job(self.write_job("bad", "gs://x"), status=2), r"data.sources: 'gs://x/documents': expected s3://")

    def test_replies_that_are_not_what_was_asked_for_are_asked_for_again_or_named(self):
        path, large = "s3://corpora/odd/a.bin", bytes(range(256)) * (8 << 10)
        self.store.objects["corpora/odd/a.bin"] = large
        asked = []

        def inspect(rewrite, status=4):
            asked.clear()

            def rewritten(*reply):
                with self.store.lock:
                    asked.append(reply)
                return rewrite(len(asked), *reply)

            self.store.rewrite = rewritten
            return self.data_command("inspect", path, "--dtype", "uint16", status=status)

        error = lambda code: f"<Error><Code>{code}</Code></Error>".encode()
        good = inspect(lambda n, *reply: reply, status=0)
        half = lambda n, status, body, headers: (status, body[:len(body) // 2], headers)
        # A truncated reply whose own length is consistent, and one from a proxy.
        self.assertEqual(inspect(lambda n, *reply: half(n, *reply) if n == 1 else (200, b"<html>", {}) if n == 2 else reply, status=0), good)
        self.assertRegex(inspect(half), r"the store gave others 3 times \(status 206, [0-9]+ bytes\): it, or a proxy before it, does not serve ranges")
        self.assertEqual(len(asked), 3)
        # A reply with the whole object fails at once, not after minutes.
        self.assertRegex(inspect(lambda n, *reply: (200, large, {})), "sent more than the [0-9]+ bytes that were asked for: it, or a proxy before it, does not")
        self.assertEqual(len(asked), 1)
        self.assertIn("the object became shorter since it was opened", inspect(lambda n, *reply: (416, error("InvalidRange"), {})))
        self.assertRegex(inspect(lambda n, *reply: (302, b"", {"Location": "http://elsewhere/x"})), "elsewhere, to http://elsewhere/x.*set AWS_ENDPOINT_URL")
        self.assertIn("the object is archived", inspect(lambda n, *reply: (403, error("InvalidObjectState"), {})))
        self.assertIn("have expired", inspect(lambda n, *reply: (400, error("ExpiredToken"), {})))
        self.assertEqual(len(asked), 1)

    def test_objects_are_written_listed_and_removed_through_failures(self):
        """Uses the client alone (`test_io [.s3-store]`), which writes of checkpoints use."""
        self.store.page = 2
        for failing in (False, True):
            turns = []

            def fault(handler):
                with self.store.lock:
                    turns.append(handler.path)
                    return {1: 503, 3: "cut", 5: "drop"}.get(len(turns) % 7) if failing else None

            self.store.fault = fault
            done = subprocess.run([os.environ["TRAINERD_TEST_IO"], "[.s3-store]"], env=self.environment(), capture_output=True, text=True,
                                  timeout=2 * PATIENCE)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertGreater(len(turns), 30)
            self.assertEqual([k for k in self.store.objects if k.startswith("written/")], [])
            self.assertEqual(self.store.uploads, {})

    def test_credentials_come_from_profiles_containers_and_roles(self):
        files = self.root / "aws"
        files.mkdir()
        (files / "credentials").write_text("[default]\naws_access_key_id = AKWRONG\naws_secret_access_key = x\n\n"
                                           "[trainer]\naws_access_key_id=AKTEST\naws_secret_access_key = secret/+key\n")
        (files / "config").write_text(f"[profile trainer]\nregion = eu-test-1\nendpoint_url = {self.store.url}\ns3 =\n  addressing_style = path\n"
                                      "[profile outside]\ncredential_process = /bin/true\n")
        none = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
        profile = {**none, "AWS_PROFILE": "trainer", "AWS_SHARED_CREDENTIALS_FILE": str(files / "credentials"), "AWS_CONFIG_FILE": str(files / "config")}
        self.data_command("inspect", "s3://corpora/v1/documents", AWS_ENDPOINT_URL=None, AWS_REGION=None, **profile)
        told = self.data_command("inspect", "s3://corpora/v1/documents", status=2, **{**profile, "AWS_PROFILE": "outside"})
        self.assertIn("credential_process, which this program does not follow", told)
        container = {**none, "AWS_CONTAINER_CREDENTIALS_FULL_URI": self.store.url + "/container"}
        self.data_command("inspect", "s3://corpora/v1/documents", AWS_CONTAINER_AUTHORIZATION_TOKEN="container-token", **container)
        self.assertIn("status 403", self.data_command("inspect", "s3://corpora/v1/documents", status=2, **container))
        role = {**none, "AWS_EC2_METADATA_DISABLED": None, "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.store.url}
        self.data_command("inspect", "s3://corpora/v1/documents", **role)
        self.assertEqual(self.store.issued, 2)


if __name__ == "__main__":
    unittest.main()
