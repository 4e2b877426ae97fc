"""The schema that `trainerd schema` prints and the parser judge alike: types, words, ranges, unknown and missing keys, keys that exclude
each other. Where they differ (other conditions between keys), the parser is the stricter. By two drafts of JSON Schema, because editors read older ones.

Jobs are read as YAML 1.2, as editors do. Mutants are written as JSON, which is valid YAML."""

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import jsonschema
    import yaml
except ImportError:
    if sys.executable != "/usr/bin/python3":  # Debian's packages are for its own interpreter
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    raise SystemExit("python3-jsonschema or python3-yaml is missing: deploy/install-deps.sh --tests installs them")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from slices import FULL, sliced

BINARY = pathlib.Path(os.environ["TRAINERD_BINARY"]).resolve()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCHEMA = json.loads(subprocess.run([BINARY, "schema"], capture_output=True, check=True).stdout)
JUDGED = itertools.count()
VALIDATORS = [jsonschema.Draft202012Validator(SCHEMA), jsonschema.Draft7Validator(SCHEMA)]

# The parser knows these keys only to report a replacement; they are not in the reference.
RESERVED = {"dropout.attention", "data.tokenizer"}
# Second names of keys: a job may use one of the two.
OTHER_NAMES = ["supervise.restarts"]

# The parser's messages about a single value. Other messages concern several keys or the form of a name.
OF_THE_VALUE = re.compile(r"^expected |^has no value|^must be (at least|at most|greater than|less than|finite)|is out of the range"
                          r"|^is empty$|is not available yet|^must not have control|^unknown preset")
# Keys that are refused if they have no effect, even with their default: for synthetic data, or without a receiver or a partner.
IDLE = {"data.dtype", "metrics.otlp.every", "metrics.mlflow.experiment", "checkpoint.partner.wait", "checkpoint.mtbf",
        "checkpoint.durable.every", "supervise.heartbeat", "supervise.dead_after", "cluster.failures.spares", "cluster.failures.elastic",
        "cluster.failures.min_replicas", "cluster.failures.elastic.replan", "supervise.coordinator"}
OF_SEVERAL = {"precision.params": "is not available yet", "precision.master": "is not available yet", "metrics.listen": "host:port",
              "metrics.otlp.endpoint": "http://host:port", "metrics.mlflow.uri": "http://host:port",
              "supervise.coordinator": "etcd://host:port"}

EDGES = [10, 64, 128, 1000, 1024, 4096, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 27, (1 << 31) - 1, 10**12, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]
VALUES = [True, False, None, -1, 0, 1, 2, 3, 4, 7, *EDGES, *(edge + 1 for edge in EDGES), -0.5, 0.5, 0.999, 1.5, 1e30, "", "x", "10", "auto", "true",
          "30s", "1h30m", "1h 30m", "30m1h", "0s", "0.0h", "-1s", "+1s", ".5s", "1.h", ".s", "1d2ms", "s", "1e3s", "1.2.3s",
          "two\nlines", "ends\n", "\x7f", "gpt2-124m", "local", "dgx-h100", "gpt2-124", "a.yaml", "${PRESET:-a.yaml}",
          [], [0], [1], [1, 2], [0.5, 0.5], [0.5, 0.5, 0.5], [0.5, 1], [0.5, "x"], ["a"], ["a", 1], ["", "a"], [None], [[1]], {}, {"x": 1}]


class Yaml12(yaml.SafeLoader):
    """Resolves plain scalars by the core schema of YAML 1.2."""


Yaml12.yaml_implicit_resolvers = {}
for tag, form in {"null": r"~|null|Null|NULL|", "bool": r"true|True|TRUE|false|False|FALSE", "int": r"[-+]?[0-9]+",
                  "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"}.items():
    Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{form})$"), None)


def from_yaml(text):
    return yaml.load(text, Yaml12)


# A value of each key that excludes another, or is excluded: one that is valid alone.
VALUE = {"restarts": 3, "supervise.restarts": 3, "data.train": "a.bin", "data.sources": [{"path": "a.bin", "weight": 1}], "data.mask": ["a.mask"],
         "data.valid": "b.bin", "data.valid_fraction": 0.1, "loss.dpo.beta": 0.1, "loss.expert_balance": 0.01, "loss.label_smoothing": 0.1, "loss.z_loss": 1.0e-4,
         "evaluate.choices": [{"name": "a", "path": "a.jsonl"}], "optimizer.name": "muon", "lora.rank": 4, "model.embedding_scale": 2,
         "model.scale_embeddings": True, "model.attention.scale": 0.5, "model.attention.query_pre_attn_scalar": 16,
         "model.mla.kv_lora_rank": 8, "model.qk_norm": True, "model.positions": "learned", "model.attention_bias": True,
         "model.qkv_bias": True, "model.bias": True, "model.mlp_bias": True, "parallel.ep": 2, "parallel.etp": 1, "parallel.zero_group": 2}

# Keys that have an effect only beside others: without those the parser reports nothing else of them.
NEEDED = {"loss.expert_balance": {"model.experts": {"count": 4, "per_token": 2}}}


def is_exclusion(error):
    return "then" in error.absolute_schema_path


def exclusions():
    """(the key that has it, what is forbidden there, the others with what they say) of each in the schema."""
    def leaves(schema, path):
        if "properties" not in schema:
            return [(path, schema)]
        [(name, below)] = schema["properties"].items()
        return leaves(below, f"{path}.{name}" if path else name)

    for section, schema in [("", SCHEMA), *properties(SCHEMA)]:
        for rule in schema.get("allOf", []):
            if "if" in rule:
                [(own, forbidden)] = leaves(rule["then"], section)
                yield own, forbidden, [leaf for other in rule["if"].get("allOf", [rule["if"]]) for leaf in leaves(other, section)]


def value_that_says(key, says):
    """A value for which what the schema asks of another key is true."""
    return says["const"] if "const" in says else VALUE[key]


def value_that_is_forbidden(key, forbidden):
    return forbidden["not"]["const"] if "not" in forbidden else VALUE[key]


def errors_of(error):
    """Errors of a map that matches no form of its key are reported for its entries, if one form is a map."""
    entries = [inner for inner in error.context if isinstance(error.instance, dict) and inner.absolute_path != error.absolute_path]
    for inner in entries or [error]:
        yield ".".join(part for part in inner.absolute_path if isinstance(part, str)), inner.validator


def schema_errors(job, which=lambda error: True):
    """(key, keyword) of each value that the schema refuses. Of runs that are not full, one job in four is judged by both drafts."""
    drafts = VALIDATORS if FULL or next(JUDGED) % 4 == 0 else VALIDATORS[:1]
    found = [{found for error in validator.iter_errors(job) if which(error) for found in errors_of(error)} for validator in drafts]
    assert found[0] == found[-1], (job, found)
    return found[0]


def reference():
    """Key -> the words that it accepts."""
    page = (ROOT / "configs" / "README.md").read_text()
    keys, section = {}, ""
    for line in page[page.index("spec-reference:begin"):page.index("spec-reference:end")].splitlines():
        if title := re.fullmatch(r"`([\w.]+)`", line):
            section = title.group(1) + "."
        elif row := re.match(r"\| `(\w+)` \| (.*?) \|", line):
            key = row.group(1) if row.group(1) == section[:-1] else section + row.group(1)
            keys[key] = re.findall(r"`([\w-]+)`", row.group(2))
    return keys


def put(job, key, value):
    *sections, last = key.split(".")
    for section in sections:
        job = job.setdefault(section, {})
    job[last] = value


def nested(keys, value):
    job = {}
    for key in keys:
        put(job, key, value)
    return job


def properties(schema, prefix=""):
    """(key, its schema) of each key, including sections."""
    for name, found in schema.get("properties", {}).items():
        yield prefix + name, found
        for form in [found, *found.get("anyOf", [])]:
            yield from properties(form, prefix + name + ".")


KEYS = reference()
# Keys with a short form: a single value stands for a map.
SHORT = {"precision", "checkpoint.memory", "checkpoint.partner", "cluster.failures.elastic", "attention"}
SECTIONS = sorted({key[:at] for key in KEYS for at in (m.start() for m in re.finditer(r"\.", key))} - SHORT)
OUTER, INNER = [s for s in SECTIONS if "." not in s], [s for s in [*SECTIONS, *sorted(SHORT)] if "." in s]
# Sections inside of those.
INNERMOST = [s for s in INNER if any(s.startswith(outer + ".") for outer in INNER)]


@sliced(6)
class Schema(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="trainerd-schema-")
        self.addCleanup(folder.cleanup)
        self.job = pathlib.Path(folder.name) / "job.yaml"

    def parse(self, text):
        self.job.write_text(text if isinstance(text, str) else json.dumps(text))
        return subprocess.run([BINARY, "validate", self.job], capture_output=True, text=True)

    def parser_errors(self, job):
        """The keys whose single values the parser refuses."""
        done, keys = self.parse(job), set()
        self.said = done.stderr
        self.assertIn(done.returncode, (0, 2), done.stderr)
        for line in done.stderr.splitlines():
            if found := re.match(rf"(?:trainerd: )?{re.escape(str(self.job))}:\d+:\d+: ([\w.]+)(?:\[\d+\])?: (.*)", line):
                key, what = found.groups()
                if OF_THE_VALUE.search(what) and not (key in OF_SEVERAL and OF_SEVERAL[key] in what):
                    keys.add(key)
        return keys

    def test_it_is_a_schema_and_has_every_key_of_the_reference(self):
        for validator in VALIDATORS:
            validator.check_schema(SCHEMA)
        known = {key: schema for key, schema in properties(SCHEMA) if key not in SECTIONS}
        self.assertEqual(set(known), set(KEYS) | RESERVED)
        self.assertGreater(len(KEYS), 75)
        for key, schema in known.items():
            self.assertGreater(len(schema["description"]), 5, key)

    def test_it_takes_the_jobs_that_are_there(self):
        jobs = [*(path for path in sorted((ROOT / "configs").glob("*.yaml")) if path.name != "sweep.yaml"), *(ROOT / "tests/fuzz/seeds/spec" / f"{n}.yaml" for n in ("all-keys", "quickstart"))]
        texts = {str(path): path.read_text() for path in jobs}
        for preset in sorted((ROOT / "configs" / "models").glob("*.yaml")):
            job = f"model: {{preset: {preset.stem}}}\nsteps: 1\nbatch: {{global: 1, micro: 1}}\ndata: {{format: synthetic}}\n"
            texts[preset.stem] = job
            texts[preset.stem + ", resolved"] = self.parse(job).stdout
        for path in (ROOT / "tests").rglob("*.cpp"):
            for at, raw in enumerate(re.findall(r'R"\(\n(name: .*?)\)"', path.read_text(), re.S)):
                texts[f"{path}, {at}"] = raw
        self.assertGreater(len(texts), 35)
        for name, text in texts.items():
            with self.subTest(name):
                self.assertEqual(self.parse(text).returncode, 0)
                self.assertEqual(schema_errors(from_yaml(text)), set())

    def test_a_value_of_any_key_is_judged_as_the_parser_judges_it(self):
        keys = [key for key in sorted({*KEYS, *RESERVED}) if key not in {"extends", *SHORT, *OTHER_NAMES}]
        values = VALUES + sorted({word for words in KEYS.values() for word in words})[::1 if FULL else 24]
        refused, step = 0, 1 if FULL else 2
        for number, value in enumerate(values):
            # The parser names at most 200 problems of a job. Except in full runs a value is given to half of the keys.
            for job in (nested(keys[::2], value), nested(keys[1::2], value), nested(["precision", *OUTER], value), nested([s for s in INNER if s not in INNERMOST], value),
                        nested(INNERMOST, value), nested(OTHER_NAMES, value))[number % step::step]:
                with self.subTest(value=value, keys=len(job)):
                    parser = self.parser_errors(job)
                    refused += len(parser)
                    schema = {key for key, keyword in schema_errors(job, lambda error: not is_exclusion(error)) if keyword != "required"}
                    if isinstance(value, str) and re.search(r"[\x00-\x1f\x7f]", value):
                        schema -= {"model.from"}  # the parser reports a missing directory here
                    if isinstance(value, dict) and value:  # the schema reports an unknown key for its section
                        parser = {key for key in parser if key not in {*SECTIONS, *SHORT}}
                        schema = {key for key in schema if key not in {*SECTIONS, *SHORT}}
                    self.assertEqual(schema, parser, self.said)
        self.assertGreater(refused, 3000)

    def test_unknown_and_missing_keys_are_refused_as_the_parser_refuses_them(self):
        whole = from_yaml((ROOT / "configs" / "tiny.yaml").read_text())
        self.assertEqual(schema_errors(whole), set())
        for section in ["", *(s + "." for s in [*SECTIONS, *SHORT])]:
            for key in [section + "zzz"]:
                job = json.loads(json.dumps(whole))
                put(job, key, 1)
                with self.subTest(key):
                    self.assertEqual(self.parse(job).returncode, 2)
                    self.assertNotEqual(schema_errors(job), set())
        missing = 0
        for key in KEYS:
            *sections, last = key.split(".")
            job = json.loads(json.dumps(whole))
            at = job
            for section in sections:
                at = at.get(section, {})
            if at.pop(last, None) is None:
                continue
            with self.subTest(missing=key):
                required = f"{key}: is required" in self.parse(job).stderr and key != "data.train"  # depends on data.format
                self.assertEqual("required" in {keyword for _, keyword in schema_errors(job)}, required)
                missing += required
        self.assertGreaterEqual(missing, 8)
        for section in ("model", "batch"):
            job = {key: value for key, value in whole.items() if key != section}
            self.assertEqual(schema_errors(job), {("", "required")})
        # A preset provides the model's keys, and so does the source of the weights.
        for model in ({"preset": "gpt2-124m"}, {"from": "runs/before"}):
            self.assertEqual(schema_errors({**whole, "model": model}), set())

    def said_of(self, key, job):
        """What the parser says of it."""
        return re.findall(rf"(?m)^(?:trainerd: )?{re.escape(str(self.job))}:\d+:\d+: {re.escape(key)}: (.*)", self.parse(job).stderr)

    def test_keys_that_exclude_each_other_are_refused_as_the_parser_refuses_them(self):
        tiny = from_yaml((ROOT / "configs" / "tiny.yaml").read_text())
        del tiny["data"]["train"]
        tiny["data"]["format"] = "tokens"
        seen = set()
        for own, forbidden, others in exclusions():
            seen |= {own, *(key for key, _ in others)}
            values = {own: value_that_is_forbidden(own, forbidden), **{key: value_that_says(key, says) for key, says in others}}
            base = json.loads(json.dumps(tiny))
            for key, value in NEEDED.get(own, {}).items():
                put(base, key, value)
            with self.subTest(values):
                job = json.loads(json.dumps(base))
                for key, value in values.items():
                    put(job, key, value)
                what = [error for error in VALIDATORS[0].iter_errors(job) if is_exclusion(error)]
                self.assertEqual({key for error in what for key, _ in errors_of(error)}, {own})
                [text] = [error.schema["errorMessage"] for error in what]
                self.assertIn(text, self.said_of(own, job))
                for left_out in values:  # each pair does without one of them
                    job = json.loads(json.dumps(base))
                    for key, value in values.items():
                        if key != left_out:
                            put(job, key, value)
                    self.assertEqual(schema_errors(job), set())
                    self.assertNotIn(text, self.said_of(own, job))
                # In a job that extends another `~` is no value.
                for taken in values:
                    job = {"extends": "base.yaml"}
                    for key, value in values.items():
                        put(job, key, None if key == taken else value)
                    self.assertEqual(schema_errors(job), set())
        biases = {"model.bias", "model.attention_bias", "model.qkv_bias", "model.mlp_bias"}
        self.assertEqual(seen - biases, set(VALUE) - biases)

    def test_keys_exclude_each_other_by_the_table_of_fields_alone(self):
        for source in (ROOT / "core" / "spec").glob("*.cpp"):
            if "FieldTable& t" not in (text := source.read_text()):
                with self.subTest(source.name):
                    self.assertNotRegex(text, r"is given (too|beside)|leave one of them|give one of them|which is given")

    def test_a_job_that_says_every_default_is_the_job_without_them(self):
        tiny = from_yaml((ROOT / "configs" / "tiny.yaml").read_text())
        tiny["data"] = {"format": "synthetic"}
        full, said = json.loads(json.dumps(tiny)), 0
        for key, schema in properties(SCHEMA):
            at = tiny
            for part in key.split("."):
                at = at.get(part, {}) if isinstance(at, dict) else {}
            if "default" in schema and at == {} and not key.startswith("precision.") and key not in {*IDLE, *SHORT, *OTHER_NAMES}:
                put(full, key, schema["default"])
                said += 1
        self.assertGreater(said, 40)
        self.assertEqual(schema_errors(full), set())
        done = self.parse(full)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, self.parse(tiny).stdout)

    def test_a_null_and_missing_keys_are_for_jobs_that_extend_another(self):
        base = self.job.parent / "base.yaml"
        base.write_text((ROOT / "configs" / "tiny.yaml").read_text() + "evaluate: {every: 0}\nthreads: 1\nprecision: bf16\n")
        for change in ({"optimizer": {"lr": None, "schedule": {"warmup": None}}}, {"evaluate": None}, {"threads": None}, {"precision": None}):
            with self.subTest(change):
                self.assertEqual(schema_errors({"extends": "base.yaml", **change}), set())
                self.assertEqual(self.parse({"extends": "base.yaml", **change}).returncode, 0)
                self.assertNotEqual(schema_errors({**from_yaml(base.read_text()), **change}), set())
                self.assertEqual(self.parse({**from_yaml(base.read_text()), **change}).returncode, 2)
        for wrong in (None, [], ["base.yaml"], {}, ""):
            with self.subTest(extends=wrong):
                self.assertIn(("extends", "minLength" if wrong == "" else "type"), schema_errors({"extends": wrong}))
                self.assertEqual(self.parse({"extends": wrong}).returncode, 2)
        self.assertNotEqual(schema_errors({"extends": "base.yaml", "data": {"train": [None]}}), set())
        self.assertNotEqual(schema_errors({"extends": "base.yaml", "sed": 1}), set())


if __name__ == "__main__":
    unittest.main()
