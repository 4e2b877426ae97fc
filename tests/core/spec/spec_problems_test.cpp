#include <filesystem>

#include "core/spec/machines.h"
#include "spec_test_support.h"
#include "tests/io/temp_dir.h"

namespace trainerd::core {
namespace {

TEST_CASE("traced steps must exist", "[spec]") {
  CHECK(with_line("trace: {steps: 3}") ==
        Lines{"job.yaml:6:16: trace.steps: expected a list of integers, got '3'"});
  CHECK(with_line("trace: {steps: [1, x]}") ==
        Lines{"job.yaml:6:20: trace.steps: expected an integer, got 'x'"});
  CHECK(with_line("trace: {steps: [0]}") ==
        Lines{"job.yaml:6:17: trace.steps: must be at least 1, got '0' (nearest valid: 1)"});
  CHECK(with_line("trace: {steps: [2, 21]}") ==
        Lines{"job.yaml:6:16: trace.steps: step 21 is after the last one (nearest valid: 20)"});
}

TEST_CASE("each stage of a growing batch has sequences for all ranks, and memory", "[spec][ramp]") {
  const auto with = [](const std::string& ramp) {
    return problems(
        "name: r\nmodel: {preset: gpt2-124m}\nsteps: 9\ndata: {format: synthetic}\n"
        "parallel: {dp: 4}\nbatch: {global: 32, micro: 2, ramp: " +
        ramp + "}\n");
  };
  CHECK(with("[{global: 7, steps: 2}, {global: 32, steps: 1}]").empty());
  CHECK(with("[{global: 6, steps: 2}]") == Lines{"job.yaml:6:47: batch.ramp[0].global: 6 leaves "
                                                 "data-parallel ranks without a sequence at micro 2 and "
                                                 "dp 4 (nearest valid: 7)"});
  CHECK(with("[{global: 8, steps: 2}, {global: 33, steps: 1}]") ==
        Lines{"job.yaml:6:70: batch.ramp[1].global: 33 is more than batch.global, which is the largest "
              "(nearest valid: 32)"});
  CHECK(with("[{global: 8}]") ==
        Lines{"job.yaml:6:38: batch.ramp[0].steps: is required: how many steps it has"});
  CHECK(with("[{global: 8, steps: 0}]").size() == 1);
  CHECK(problems(kJob, {"parallel.dp=1", "batch={global: 6, micro: 3, ramp: [{global: 2, steps: 1}]}"}) ==
        Lines{"--set batch={global: 6, micro: 3, ramp: [{global: 2, steps: 1}]}: batch.ramp[0].global: 2 is "
              "less than micro 3 (nearest valid: 3)"});
  CHECK(with("3") == Lines{"job.yaml:6:37: batch.ramp: expected a list of maps, got '3'"});
}

TEST_CASE("the number of restarts and the timeout of a communication have limits", "[spec]") {
  CHECK(with_line("restarts: -1") ==
        Lines{"job.yaml:6:11: restarts: must be at least 0, got '-1' (nearest valid: 0)"});
  CHECK(with_line("restarts: 1001") ==
        Lines{"job.yaml:6:11: restarts: must be at most 1000, got '1001' (nearest valid: 1000)"});
  CHECK(with_line("restarts: often") == Lines{"job.yaml:6:11: restarts: expected an integer, got 'often'"});
  CHECK(with_line("cluster: {timeout: 0s}").size() == 1);
  CHECK(with_line("cluster: {timeout: 0s}").front().starts_with("job.yaml:6:20: cluster.timeout: "));
}

TEST_CASE("supervise.restarts is another name of restarts", "[spec]") {
  const auto restarts = [](const std::string& lines, const std::vector<std::string>& overrides = {}) {
    return spec::parse_job(kJob + lines + "\n", "job.yaml", overrides).restarts;
  };
  CHECK(restarts("supervise: {restarts: 7, hang_factor: 2}") == 7);
  for (const char* first : {"restarts: 7", "restarts: 8"})
    CHECK(
        with_line(std::string("supervise: {restarts: 7}\n") + first) ==
        Lines{
            "job.yaml:6:23: supervise.restarts: is the same key as `restarts`, which is given too: give one "
            "of them"});
  // A later layer goes over an earlier one, by whichever name.
  CHECK(restarts("supervise: {restarts: 7}", {"restarts=9"}) == 9);
  CHECK(restarts("restarts: 7", {"supervise.restarts=9"}) == 9);
  CHECK(restarts("restarts: 7", {"supervise={restarts: 9}"}) == 9);
  CHECK(restarts("restarts: 7", {"supervise.restarts=9", "restarts=5"}) == 5);
  CHECK(with_line("supervise: {restarts: -1}") ==
        Lines{"job.yaml:6:23: supervise.restarts: must be at least 0, got '-1' (nearest valid: 0)"});
  // The resolved job uses one name.
  const std::string written = spec::to_yaml(spec::parse_job(kJob + "supervise: {restarts: 7}\n", "job.yaml"));
  CHECK_THAT(written, Catch::Contains("\nrestarts: 7\n"));
  CHECK_THAT(written, !Catch::Contains("  restarts:"));
}

TEST_CASE("the time without progress of a rank has limits", "[spec]") {
  CHECK(with_line("supervise: {hang_factor: -1}") ==
        Lines{"job.yaml:6:26: supervise.hang_factor: must be at least 0, got '-1' (nearest valid: 0)"});
  CHECK(with_line("supervise: {hang_minimum: 0s}")
            .front()
            .starts_with("job.yaml:6:27: supervise.hang_minimum: "));
  CHECK(
      with_line("supervise: {hang_factor: 0, hang_minimum: 9s}") ==
      Lines{"job.yaml:6:43: supervise.hang_minimum: has no effect: supervise.hang_factor: 0 judges nothing; "
            "leave it out"});
  CHECK(with_line("supervise: {hang_factor: 0}").empty());
}

TEST_CASE("unknown keys are reported with the nearest valid one", "[spec]") {
  CHECK(with_line("optimiser: {lr: 1e-3}") ==
        Lines{"job.yaml:6:1: optimiser: unknown key (nearest valid: optimizer)"});
  CHECK(with_line("checkpoint: {evry: 3}") ==
        Lines{"job.yaml:6:14: checkpoint.evry: unknown key (nearest valid: every)"});
  CHECK(with_line("optimizer: {schedule: {warmpu: 3}}") ==
        Lines{"job.yaml:6:24: optimizer.schedule.warmpu: unknown key (nearest valid: warmup)"});
  // A valid key in the wrong section.
  CHECK(with_line("grad_clip: 1") ==
        Lines{"job.yaml:6:1: grad_clip: unknown key (nearest valid: optimizer.grad_clip)"});
  CHECK(with_line("metrics: {qqqqqqqq: 1}") ==
        Lines{"job.yaml:6:11: metrics.qqqqqqqq: unknown key; the keys of metrics are listen, discovery, "
              "tensorboard, powercap, mlflow, otlp or grad_norms"});
  CHECK(with_line("optimizer.lr: 1e-3").size() == 1);  // a dotted key is a key with a dot, not a path
  CHECK(with_line("<<: {seed: 1}") ==
        Lines{"job.yaml:6:1: <<: merge keys are not supported: write the keys out"});
}

TEST_CASE("values of the wrong type are reported at their place", "[spec]") {
  CHECK(with_line("seed: -1") == Lines{"job.yaml:6:7: seed: expected an integer of 0 or more, got '-1'"});
  CHECK(with_line("seed: \"1\"") ==
        Lines{"job.yaml:6:7: seed: expected an integer of 0 or more, got the text '1'"});
  CHECK(with_line("threads: 1.5") == Lines{"job.yaml:6:10: threads: expected an integer, got '1.5'"});
  CHECK(with_line("threads: 1e1") ==
        Lines{"job.yaml:6:10: threads: expected an integer, got '1e1' (nearest valid: 10)"});
  CHECK(with_line("threads: [1]") == Lines{"job.yaml:6:10: threads: expected an integer, got a list"});
  CHECK(with_line("threads:") == Lines{"job.yaml:6:1: threads: has no value; expected an integer"});
  CHECK(with_line("threads: 0x10") == Lines{"job.yaml:6:10: threads: expected an integer, got '0x10'"});
  CHECK(with_line("threads: ++1") == Lines{"job.yaml:6:10: threads: expected an integer, got '++1'"});
  CHECK(with_line("threads: true") == Lines{"job.yaml:6:10: threads: expected an integer, got 'true'"});
  CHECK(with_line("optimizer: {lr: fast}") ==
        Lines{"job.yaml:6:17: optimizer.lr: expected a number, got 'fast'"});
  CHECK(with_line("optimizer: {lr: \"1e-3\"}") ==
        Lines{"job.yaml:6:17: optimizer.lr: expected a number, got the text '1e-3'"});
  CHECK(with_line("optimizer: {lr: 1e-3x}") ==
        Lines{"job.yaml:6:17: optimizer.lr: expected a number, got '1e-3x'"});
  CHECK(with_line("optimizer: {betas: 0.9}") ==
        Lines{"job.yaml:6:20: optimizer.betas: expected a list of two numbers, got '0.9'"});
  CHECK(with_line("optimizer: {betas: [0.9, x]}") ==
        Lines{"job.yaml:6:26: optimizer.betas[1]: expected a number, got 'x'"});
  CHECK(with_line("checkpoint: {async: yes}") ==
        Lines{"job.yaml:6:21: checkpoint.async: expected true or false, got 'yes' (nearest valid: true)"});
  CHECK(with_line("checkpoint: 5") == Lines{"job.yaml:6:13: checkpoint: expected a map of keys, got '5'; its "
                                            "keys are every, mtbf, keep, keep_every, good_after, read_back, "
                                            "async, give_up, memory, partner or durable"});
  CHECK(with_line("checkpoint:") ==
        Lines{"job.yaml:6:1: checkpoint: expected a map of keys, got nothing; "
              "its keys are every, mtbf, keep, keep_every, good_after, read_back, async, "
              "give_up, memory, partner or durable"});
  CHECK(with_line("output: {a: b}") == Lines{"job.yaml:6:9: output: expected a text, got a map"});
  CHECK(with_line("output: \"a\\nb\"") ==
        Lines{"job.yaml:6:9: output: must not have control characters, got 'a\\x0ab'"});
  CHECK(with_line("device: gpu") ==
        Lines{"job.yaml:6:9: device: expected auto, cpu or cuda, got 'gpu' (nearest valid: cpu)"});
  CHECK(
      with_line("precision: bf61") ==
      Lines{"job.yaml:6:12: precision: expected fp32, bf16, fp16 or fp8, got 'bf61' (nearest valid: bf16)"});
}

TEST_CASE("an empty path is refused alone and in a list", "[spec]") {
  CHECK(problems(kJob, {"data.valid=''"}) == Lines{"--set data.valid='': data.valid: is empty"});
  CHECK(problems(kJob, {"data.valid=[b, '']"}) == Lines{"--set data.valid=[b, '']: data.valid[1]: is empty"});
}

TEST_CASE("numbers outside their limits are reported with the limit", "[spec]") {
  CHECK(with_line("threads: 99999999999999999999") ==
        Lines{"job.yaml:6:10: threads: '99999999999999999999' is out of the range of a 64-bit integer"});
  CHECK(with_line("seed: 18446744073709551616") ==
        Lines{"job.yaml:6:7: seed: '18446744073709551616' is out of the range of a 64-bit integer"});
  CHECK(with_line("threads: -1") ==
        Lines{"job.yaml:6:10: threads: must be at least 0, got '-1' (nearest valid: 0)"});
  CHECK(with_line("checkpoint: {keep: 0}") ==
        Lines{"job.yaml:6:20: checkpoint.keep: must be at least 1, got '0' (nearest valid: 1)"});
  CHECK(with_line("optimizer: {lr: 0}") ==
        Lines{"job.yaml:6:17: optimizer.lr: must be greater than 0, got '0'"});
  CHECK(with_line("optimizer: {lr: 1e999}") ==
        Lines{"job.yaml:6:17: optimizer.lr: '1e999' is out of the range of a 64-bit number"});
  for (const std::string text : {".inf", "-.inf", ".nan", "nan", "inf", "-inf", "infinity", ".NaN", "+.Inf"})
    CHECK(with_line("optimizer: {lr: " + text + "}") ==
          Lines{"job.yaml:6:17: optimizer.lr: must be finite, got '" + text + "'"});
  CHECK(with_line("optimizer: {betas: [0.9, 1.0]}") ==
        Lines{"job.yaml:6:26: optimizer.betas[1]: must be less than 1, got '1.0'"});
  CHECK(with_line("optimizer: {weight_decay: -0.1}") ==
        Lines{"job.yaml:6:27: optimizer.weight_decay: must be at least 0, got '-0.1' (nearest valid: 0)"});
  CHECK(problems(kJob, {"model.ffn=0"}) ==
        Lines{"--set model.ffn=0: model.ffn: must be at least 1, got '0' (nearest valid: 1)"});
  CHECK(problems(kJob, {"model.vocab=4294967296"}) ==
        Lines{"--set model.vocab=4294967296: model.vocab: must be at most 2147483647, got '4294967296' "
              "(nearest valid: 2147483647)"});
  CHECK(problems(kJob, {"steps=1000000000000", "model.seq_len=100000000", "batch.global=100000",
                        "batch.micro=1"}) ==
        Lines{"--set steps=1000000000000: steps: steps x batch.global x seq_len does not fit in 63 bits: "
              "train on fewer tokens"});
}

TEST_CASE("missing keys are reported at the section that lacks them", "[spec]") {
  CHECK(
      problems("name: x\nmodel:\n  layers: 2\n  hidden: 64\n  heads: 4\n  ffn: 8\n  vocab: 256\nbatch: "
               "{global: 4}\n") ==
      Lines{"job.yaml:1:1: steps: is required: optimizer steps of the whole run",
            "job.yaml:1:1: data.train: is required: files, directories or glob patterns (`*`, `?`, `[]`, "
            "`**`) of the training data; relative ones are in the job file's directory when they exist there",
            "job.yaml:2:1: model.seq_len: is required: tokens of a training sequence",
            "job.yaml:8:1: batch.micro: is required: sequences of one forward pass of a rank"});
}

TEST_CASE("all problems are reported together, in order of position", "[spec]") {
  CHECK(
      problems("steps: 0\n"
               "modl: {}\n"
               "model: {layers: two, hidden: 64, heads: 5, ffn: 8, vocab: 10, seq_len: 4, norm: rsm}\n"
               "batch: {global: 2, micro: 2}\n"
               "data: {train: []}\n"
               "steps: 3\n"
               "parallel: {tp: 2, dp: 2}\n",
               {"seed=x", "metrics.listen=here"}) ==
      Lines{"job.yaml:2:1: modl: unknown key (nearest valid: model)",
            "job.yaml:3:17: model.layers: expected an integer, got 'two'",
            "job.yaml:3:30: model.hidden: 64 is not divisible by heads 5, and head_dim is not given "
            "(nearest valid: 65)",
            "job.yaml:3:59: model.vocab: 10 is too small for tokenizer: bytes (nearest valid: 256)",
            "job.yaml:3:81: model.norm: expected rms or layer, got 'rsm' (nearest valid: rms)",
            "job.yaml:4:17: batch.global: 2 leaves data-parallel ranks without a sequence at micro 2 and dp "
            "2 (nearest valid: 3)",
            "job.yaml:5:15: data.train: is empty: give at least one file, directory or pattern",
            "job.yaml:6:1: steps: is given twice: keep one",
            "job.yaml:7:16: parallel.tp: 5 heads cannot be split evenly over tp 2 (nearest valid: 1)",
            "--set seed=x: seed: expected an integer of 0 or more, got 'x'",
            "--set metrics.listen=here: metrics.listen: expected a numeric host:port with a port of 0 to "
            "65535, or off, got "
            "'here' "
            "(nearest valid: 127.0.0.1:9464)"});
}

TEST_CASE("duplicates are found at every level", "[spec]") {
  CHECK(with_line("name: other") == Lines{"job.yaml:6:1: name: is given twice: keep one"});
  CHECK(with_line("optimizer: {schedule: {warmup: 1, kind: linear, warmup: 1}}") ==
        Lines{"job.yaml:6:49: optimizer.schedule.warmup: is given twice: keep one"});
  CHECK(with_line("\"name\": other") == Lines{"job.yaml:6:1: name: is given twice: keep one"});
}

TEST_CASE("sizes that do not divide are errors", "[spec]") {
  CHECK(problems(kJob, {"model.heads=3"}).size() == 2);
  CHECK(problems(kJob, {"model.heads=3", "model.head_dim=16", "model.kv_heads=3"}).empty());
  CHECK(problems(kJob, {"model.kv_heads=3"}) ==
        Lines{"--set model.kv_heads=3: model.kv_heads: 3 does not divide heads 4 (nearest valid: 4)"});
  CHECK(problems(kJob, {"model.head_dim=15"}) ==
        Lines{"--set model.head_dim=15: model.head_dim: head_dim 15 is odd: positions: rope turns pairs of "
              "features (nearest valid: 16)"});
  CHECK(problems(kJob, {"model.head_dim=15", "model.positions=learned"}).empty());
  CHECK(problems(kJob, {"model.head_dim=258", "device=cuda"}) ==
        Lines{"--set model.head_dim=258: model.head_dim: head_dim 258 is more than the 256 that device: cuda "
              "computes: choose more "
              "heads, or device: cpu"});
  CHECK(problems(kJob, {"model.head_dim=258", "device=cpu"}).empty());
  const auto latent = [](const std::string& size) {
    return problems(kJob, {"device=cuda", "model.mla.kv_lora_rank=16", "model.mla.qk_nope_head_dim=12",
                           "model.mla.qk_rope_head_dim=6", "model.mla.v_head_dim=10", size});
  };
  CHECK(latent("model.mla.v_head_dim=300").back() ==
        "--set model.mla.v_head_dim=300: model.mla.v_head_dim: 300 is more than the 256 that device: cuda "
        "computes: make it smaller, or choose device: cpu");
  CHECK(latent("model.mla.qk_nope_head_dim=254").back() ==
        "--set model.mla.qk_nope_head_dim=254: model.mla.qk_nope_head_dim: with qk_rope_head_dim 260 is more "
        "than the 256 that device: cuda computes: make it smaller, or choose device: cpu");
  CHECK(problems(kJob, {"batch.micro=16"}) ==
        Lines{"--set batch.micro=16: batch.micro: 16 is more than the global batch of 8 sequences (nearest "
              "valid: 8)"});
  // A batch that does not divide is padded, as long as every rank has a sequence in every step.
  CHECK(problems(kJob, {"batch.global=7", "batch.micro=2", "parallel.dp=3"}).empty());
  CHECK(
      problems(kJob, {"batch.global=4", "batch.micro=2", "parallel.dp=3"}) ==
      Lines{"--set batch.global=4: batch.global: 4 leaves data-parallel ranks without a sequence at micro 2 "
            "and dp 3 (nearest valid: 5)"});
}

TEST_CASE("contradictions are errors", "[spec]") {
  CHECK(problems(kJob, {"model.positions=learned", "model.rope_theta=5"}) ==
        Lines{"--set model.rope_theta=5: model.rope_theta: has no effect: positions: learned has no rotary "
              "angles; leave it out"});
  CHECK(problems(kJob, {"model.bias=true", "model.qkv_bias=false"}) ==
        Lines{"--set model.qkv_bias=false: model.qkv_bias: false contradicts bias: true, which puts a bias "
              "on every linear layer"});
  CHECK(
      problems(kJob, {"model.vocab=255"}) ==
      Lines{
          "--set model.vocab=255: model.vocab: 255 is too small for tokenizer: bytes (nearest valid: 256)"});
  CHECK(problems(kJob, {"optimizer.schedule.warmup=21"}) ==
        Lines{"--set optimizer.schedule.warmup=21: optimizer.schedule.warmup: 21 is more than steps 20 "
              "(nearest valid: 20)"});
  CHECK(problems(kJob, {"optimizer.schedule.min_lr=1"}) ==
        Lines{"--set optimizer.schedule.min_lr=1: optimizer.schedule.min_lr: 1.0 is more than lr 3.0e-04 "
              "(nearest valid: 3.0e-04)"});
  CHECK(problems(kJob, {"optimizer.schedule={kind: wsd, warmup: 5, decay: 16}"}) ==
        Lines{"--set optimizer.schedule={kind: wsd, warmup: 5, decay: 16}: optimizer.schedule.decay: 16 is "
              "more than the 15 "
              "steps after the warm-up (nearest valid: 15)"});
  CHECK(problems(kJob, {"optimizer.schedule.decay=2"}) ==
        Lines{"--set optimizer.schedule.decay=2: optimizer.schedule.decay: has no effect: only kind: wsd has "
              "a decay phase; leave it out"});
  CHECK(problems(kJob, {"optimizer.schedule={kind: constant, min_lr: 1e-5}"}).size() == 1);
  for (const std::string kind : {"none", "selective"})
    CHECK(problems(kJob, {"recompute={kind: " + kind + ", every: 2}"}) ==
          Lines{"--set recompute={kind: " + kind +
                ", every: 2}: recompute.every: has no effect: only kind: full "
                "chooses layers; leave it out"});
  CHECK(problems(kJob, {"recompute={kind: full, every: 2}"}).empty());
  CHECK(problems(kJob, {"optimizer.schedule={kind: constant, min_lr: 0}"}).empty());
  CHECK(problems(kJob, {"data.valid=[]", "evaluate={every: 2, batches: 1}"}) ==
        Lines{"--set evaluate={every: 2, batches: 1}: evaluate.every: there is nothing to evaluate on: give "
              "data.valid, data.valid_sets or data.valid_fraction, or set it to 0"});
  CHECK(problems(kJob, {"evaluate.every=2"}) ==
        Lines{"--set evaluate.every=2: evaluate.batches: is required: global batches of an evaluation, from "
              "the start of the "
              "validation data; at most the whole batches that it holds"});
  CHECK(problems(kJob, {"data.format=synthetic"}) ==
        Lines{"job.yaml:5:15: data.train: has no effect: format: synthetic reads no files; leave it out",
              "job.yaml:5:31: data.valid: has no effect: format: synthetic reads no files; leave it out"});
  CHECK(problems(kJob, {"precision={compute: bf16, rounding: stochastic}"}) ==
        Lines{"--set precision={compute: bf16, rounding: stochastic}: precision.rounding: stochastic is for "
              "master weights or moments in "
              "bf16, and both are fp32: set precision.master or precision.moments to bf16, or leave it out"});
  CHECK(problems(kJob, {"precision={compute: bf16, moments: bf16, rounding: stochastic}"}).empty());
  CHECK(problems(kJob, {"name=a/b"}).size() == 1);
  CHECK(problems(kJob, {"name=..", "output=x"}).size() == 1);
  CHECK(problems(kJob, {"output=''"}) == Lines{"--set output='': output: is empty: give a directory"});
  for (const std::string listen : {"9464", ":9464", "host:", "host:x", "host:65536", "host:-1", "a:b:1",
                                   "[::1]", "''", "myhost:1", "127.0.0.1:+1", "1.2.3:1"})
    CHECK(problems(kJob, {"metrics.listen=\"" + listen + "\""}).size() == 1);
  for (const std::string listen : {"localhost:1", "0.0.0.0:65535", "[::]:9464", "off"})
    CHECK(problems(kJob, {"metrics.listen=\"" + listen + "\""}).empty());
  CHECK(problems(kJob, {"metrics.otlp={endpoint: 'https://h:4318'}"}) ==
        Lines{"--set metrics.otlp={endpoint: 'https://h:4318'}: metrics.otlp.endpoint: expected "
              "http://host:port, got "
              "'https://h:4318'; for TLS let a collector on this host send it on"});
  CHECK(problems(kJob, {"metrics.otlp.every=10s"}) ==
        Lines{"--set metrics.otlp.every=10s: metrics.otlp.every: has no effect: there is no "
              "metrics.otlp.endpoint; leave it out"});
  CHECK(problems(kJob, {"metrics.otlp={endpoint: 'http://h:4318', every: 0s}"}).size() == 1);
  CHECK(problems(
            kJob,
            {"metrics={listen: off, otlp: {endpoint: 'http://h:4318', every: 1m}, powercap: /host/powercap}"})
            .empty());
  CHECK(problems(kJob, {"metrics={listen: off, powercap: /host/powercap}"}).size() == 1);
  for (const std::string uri :
       {"mlflow", "http://", "http:///x", "https://h/?a=b", "ftp://h:1", "http://h h", "http://u:p@h:1"})
    CHECK(problems(kJob, {"metrics.mlflow={uri: \"" + uri + "\"}"}).size() == 1);
  for (const std::string uri : {"http://h", "https://h:5000", "http://[::1]:5000/below/a/path", "https://h/"})
    CHECK(problems(kJob, {"metrics.mlflow={uri: \"" + uri + "\", experiment: a}"}).empty());
  CHECK(problems(kJob, {"metrics.mlflow={uri: \"http://h\", experiment: \"\"}"}).size() == 1);
  CHECK(problems(kJob, {"metrics.mlflow.experiment=a"}) ==
        Lines{"--set metrics.mlflow.experiment=a: metrics.mlflow.experiment: has no effect: there is no "
              "metrics.mlflow.uri; leave it out"});
  CHECK(
      problems(kJob, {"metrics={listen: off, discovery: d}"}) ==
      Lines{
          "--set metrics={listen: off, discovery: d}: metrics.discovery: has no effect: metrics.listen: off "
          "serves none; leave it out"});
}

TEST_CASE("the durable tier is not the run's own directory, under any name", "[spec]") {
  const test::TempDir dir;
  std::filesystem::create_directories(dir / "run/checkpoints");
  std::filesystem::create_symlink(dir / "run", dir / "link");
  const auto with = [&](const std::string& output, const std::string& to) {
    return problems(kJob, {"output=" + output, "checkpoint.durable.to=" + to});
  };
  const std::string run = dir / "run";
  for (const std::string& to : {run, run + "/", run + "/checkpoints/", run + "/./checkpoints",
                                "file://" + run, dir / "link/checkpoints", dir / "link"}) {
    CAPTURE(to);
    const Lines lines = with(run, to);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find("is the run's own directory") != std::string::npos);
  }
  CHECK(with("runs/a", "./runs/x/../a/checkpoints").size() == 1);
  CHECK(with(run, dir / "tier").empty());
  CHECK(with(run, "s3://safe/run").empty());
}

TEST_CASE("keys of one update rule need it, and its learning rate has its own default", "[spec]") {
  const auto idle = [](const std::string& rule, const std::string& key, const std::string& why) {
    CAPTURE(rule, key);
    CHECK(problems(kJob, {"optimizer.name=" + rule, "optimizer." + key}) ==
          Lines{"--set optimizer." + key + ": optimizer." + key.substr(0, key.find('=')) +
                ": has no effect: " + why + "; leave it out"});
  };
  for (const std::string rule : {"adamw", "lion"})
    for (const std::string key : {"momentum=0.9", "nesterov=false"})
      idle(rule, key, "only muon and sgd have it");
  for (const std::string rule : {"adamw", "lion", "sgd"})
    idle(rule, "adamw_lr=1e-3", "only name: muon has it");
  for (const std::string rule : {"lion", "sgd"}) idle(rule, "eps=1e-6", "lion and sgd divide by nothing");
  idle("sgd", "betas=[0.9, 0.95]", "sgd has none: its decay is `momentum`");
  const auto rule_of = [](const std::string& text) {
    const job::JobSpec job = spec::parse_job(kJob, "job.yaml", {"optimizer=" + text});
    CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml") == job);
    return job.optimizer;
  };
  const job::OptimizerOptions lion = rule_of("{name: lion}"), sgd = rule_of("{name: sgd}");
  CHECK(lion.lr == 1e-4);
  CHECK(lion.beta1 == 0.9);
  CHECK(lion.beta2 == 0.99);
  CHECK(rule_of("{name: lion, betas: [0.95, 0.98], lr: 1e-5}").beta2 == 0.98);
  CHECK(sgd.lr == 0.01);
  CHECK(sgd.momentum == 0.9);
  CHECK_FALSE(sgd.nesterov);
  CHECK(rule_of("{name: sgd, nesterov: true, momentum: 0.5}").nesterov);
  CHECK(rule_of("{name: muon}").momentum == 0.95);
  CHECK(rule_of("{name: muon}").nesterov);
  CHECK(problems(kJob, {"optimizer={name: muon, momentum: 1.0}"}).size() == 1);
  CHECK(problems(kJob, {"optimizer={name: muon, adamw_lr: 0}"}).size() == 1);
  const job::JobSpec job =
      spec::parse_job(kJob, "job.yaml", {"optimizer={name: muon, momentum: 0.9, nesterov: false}"});
  CHECK(job.optimizer.lr == 0.02);
  CHECK(job.optimizer.adamw_lr == 3e-4);
  CHECK(job.optimizer.momentum == 0.9);
  CHECK_FALSE(job.optimizer.nesterov);
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml") == job);
}

TEST_CASE("a group of hybrid sharding divides the data-parallel ranks", "[spec]") {
  const Lines four =
      problems(kJob, {"parallel.dp=4", "batch.global=16", "parallel.zero=3", "parallel.zero_group=3"});
  REQUIRE(four.size() == 1);
  CHECK_THAT(four[0], Catch::EndsWith("parallel.zero_group: 3 does not divide dp 4 (nearest valid: 4)"));
  CHECK(problems(kJob, {"parallel.zero_group=1"}).size() == 1);
  CHECK(problems(kJob, {"parallel.zero=0", "parallel.zero_group=2"}).size() == 1);
}

TEST_CASE("what is offloaded must be sharded, or all that a layer keeps", "[spec]") {
  const Lines on = {"device=cuda", "cluster.preset=dgx-h100", "parallel.dp=4", "batch.global=16"};
  const auto with = [&](const Lines& more) {
    Lines all = on;
    all.insert(all.end(), more.begin(), more.end());
    return problems(kJob, all);
  };
  const auto told = [&](const Lines& more, const std::string& what) {
    const Lines found = with(more);
    REQUIRE(found.size() == 1);
    CHECK_THAT(found[0], Catch::Contains(what));
  };
  told({"parallel.offload_params=true", "parallel.zero=2"},
       "parallel.offload_params: offloads parameters by layers, as zero 3 shards them");
  told({"parallel.offload_grads=true"},
       "parallel.offload_grads: offloads gradients by layers, as zero 2 and 3");
  told({"parallel.offload_grads=true", "parallel.zero=2", "parallel.zero_group=2"},
       "parallel.offload_grads: replicas (zero_group) sum their gradients on devices");
  told({"parallel.offload_activations=true"},
       "parallel.offload_activations: offloads the inputs of layers, which are all that recompute: {kind: "
       "full}");
  CHECK(with({"parallel.offload_params=true", "parallel.offload_grads=true", "parallel.zero=3",
              "parallel.offload_activations=true", "recompute.kind=full"})
            .empty());
  // On CPUs all of it is in host memory.
  for (const char* key : {"params", "grads", "activations"})
    CHECK_THAT(problems(kJob, {std::string("parallel.offload_") + key + "=true", "parallel.zero=3",
                               "recompute.kind=full"})
                   .at(0),
               Catch::Contains("on CPUs they are in host memory anyway"));
}

TEST_CASE("context-parallel ranks have two chunks of each sequence", "[spec]") {
  CHECK(problems(kJob, {"parallel.cp=2", "model.seq_len=64"}).empty());
  CHECK(problems(kJob, {"parallel.cp=3", "model.seq_len=64"}) ==
        Lines{"--set parallel.cp=3: parallel.cp: seq_len 64 cannot be cut into 2 x cp = 6 chunks of the same "
              "size (nearest valid: 4)"});
  CHECK(problems(kJob, {"parallel.cp=2", "model.seq_len=63"}) ==
        Lines{"--set parallel.cp=2: parallel.cp: seq_len 63 cannot be cut into 2 x cp = 4 chunks of the same "
              "size (nearest valid: 1)"});
  const Lines split = problems(kJob, {"parallel.cp=2", "model.seq_len=36", "batch.micro=1", "parallel.tp=4",
                                      "parallel.sequence_parallel=true"});
  REQUIRE(split.size() == 1);
  CHECK_THAT(split[0], Catch::Contains("18 tokens of a microbatch's part cannot be split evenly over tp 4"));
  CHECK(problems(kJob, {"parallel.cp=2", "model.seq_len=64", "parallel.cp_comm=all_to_all"}).empty());
  CHECK(problems(kJob, {"parallel.cp=8", "model.seq_len=64"}).empty());
  const Lines heads = problems(kJob, {"parallel.cp=8", "model.seq_len=64", "parallel.cp_comm=all_to_all"});
  REQUIRE(heads.size() == 1);
  CHECK_THAT(heads[0], Catch::Contains("parallel.cp_comm: cp 8 must divide the heads of a rank, ") &&
                           Catch::Contains("(nearest valid: all_gather)"));
  CHECK(problems(kJob, {"parallel.cp_comm=all_to_all"}).size() == 1);  // nothing to exchange
  const Lines group = problems(kJob, {"parallel.cp=2", "model.seq_len=64", "parallel.zero_group=3"});
  REQUIRE(group.size() == 1);
  CHECK_THAT(group[0], Catch::Contains("3 does not divide dp x cp 2"));
}

TEST_CASE("keys that no code supports yet are refused by name", "[spec]") {
  const auto refused = [](const std::string& set, const std::string& path, const std::string& rest) {
    CHECK(problems(kJob, {set}) == Lines{"--set " + set + ": " + path + ": " + rest});
  };
  refused("precision={master: bf16}", "precision.master", "bf16 is not available yet: set it to fp32");
  refused("precision={compute: bf16, params: fp32}", "precision.params",
          "fp32 is not available yet: make it the same as precision.compute");
  refused("precision={gemm: {qkv: fp8}}", "precision.gemm", "expected compute or fp8, got a map");
  refused("precision={gemm: fp8}", "precision.gemm",
          "fp8 is rounded from bf16, and compute is fp32: set precision.compute to bf16");
  refused("optimizer.name=adagrad", "optimizer.name", "expected adamw, lion, sgd or muon, got 'adagrad'");
  refused("data.tokenizer=bpe.json", "data.tokenizer",
          "'bpe.json' is not available yet: set it to bytes, or give token files with format: tokens");
}

TEST_CASE("fp16 needs fp32 gradients and loss scales that are powers of two", "[spec]") {
  const auto refused = [](const std::string& set, const std::string& path, const std::string& rest) {
    CHECK(problems(kJob, {set}) == Lines{"--set " + set + ": " + path + ": " + rest});
  };
  refused("precision={loss_scale: dynamic}", "precision.loss_scale",
          "dynamic is for gradients in fp16, and compute is fp32: set it to none");
  refused("precision={compute: fp16, grads: bf16}", "precision.grads",
          "gradients of fp16 weights are accumulated in fp32: set it to fp32");
  refused("precision={compute: fp16, gemm: fp8}", "precision.gemm",
          "fp8 is rounded from bf16, and compute is fp16: set precision.compute to bf16");
  refused("precision={compute: fp16, initial_loss_scale: 1000}", "precision.initial_loss_scale",
          "1000.0 is no power of two (nearest valid: 1024.0)");
  refused("precision={compute: fp16, min_loss_scale: 3}", "precision.min_loss_scale",
          "3.0 is no power of two (nearest valid: 4.0)");
  refused("precision={compute: fp16, initial_loss_scale: 2, min_loss_scale: 8}",
          "precision.initial_loss_scale", "2.0 is less than min_loss_scale (nearest valid: 8.0)");
  CHECK(problems(kJob, {"precision=fp16"}).empty());
}

TEST_CASE("ranks are divided evenly among local nodes, and a tensor-parallel group stays on one", "[spec]") {
  const auto job = [](const std::vector<std::string>& sets) {
    return spec::parse_job(kJob, "job.yaml", sets);
  };
  const job::JobSpec two = job({"parallel.dp=4", "cluster.nodes=2"});
  CHECK(spec::job_topology(two).nodes == 2);
  CHECK(spec::job_topology(two).devices_per_node == 2);
  CHECK(spec::place_job(two).placement[2] == parallel::DeviceLocation{1, 0});
  CHECK(spec::parse_job(spec::to_yaml(two), "resolved.yaml") == two);
  CHECK(problems(kJob, {"cluster.nodes=2"}) ==
        Lines{"--set cluster.nodes=2: cluster.nodes: 1 rank (tp x cp "
              "x pp x dp) cannot be divided evenly among 2 nodes (nearest "
              "valid: 1)"});
  CHECK(problems(kJob, {"cluster={preset: dgx-h100, nodes: 16}"}).size() == 1);
  const Lines split = problems(kJob, {"parallel.dp=3", "batch.global=6", "cluster.nodes=2"});
  REQUIRE(split.size() == 1);
  CHECK_THAT(split[0], Catch::Contains("3 ranks") && Catch::Contains("nearest valid: 1"));
  const Lines crossing = problems(kJob, {"parallel.tp=2", "cluster.nodes=2"});
  REQUIRE(crossing.size() == 1);
  CHECK_THAT(crossing[0], Catch::Contains("parallel.tp: ranks 0 1 are one tensor-parallel group") &&
                              Catch::Contains("parallel.allow_tp_across_nodes"));
  CHECK(job({"parallel.tp=2", "cluster.nodes=2", "parallel.allow_tp_across_nodes=true"}).cluster.nodes == 2);
}

TEST_CASE("a layout that the model or the batch cannot have is refused with the reason", "[spec]") {
  const auto refused = [](const std::vector<std::string>& sets, const std::string& path) {
    CAPTURE(sets, path);
    const Lines found = problems(kJob, sets);
    REQUIRE(found.size() == 1);
    CHECK(found[0].find(path) != std::string::npos);
  };
  refused({"parallel.tp=3"}, "parallel.tp: ");
  refused({"parallel.pp=64"}, "parallel.pp: ");
  refused({"parallel.virtual_stages=2"}, "parallel.schedule: 2 virtual stages need schedule: interleaved");
  refused({"parallel.virtual_stages=2", "parallel.schedule=interleaved"},
          "parallel.virtual_stages: a pipeline of one stage");
  refused({"parallel.pp=2", "parallel.schedule=zb-v"},
          "parallel.schedule: zb-v has two chunks on each stage, not 1");
  refused({"parallel.virtual_stages=2", "parallel.schedule=zb-v"},
          "parallel.schedule: zb-v has one chunk on a single stage, not 2");
  refused({"parallel.dp=64"}, "batch.global: ");
  refused({"parallel.sequence_parallel=true"}, "parallel.sequence_parallel: ");
  refused({"parallel.tp_overlap_chunks=2"}, "parallel.tp_overlap_chunks: has no effect");
  refused({"parallel.tp=2", "parallel.tp_overlap_chunks=0"}, "parallel.tp_overlap_chunks: ");
  CHECK(problems(kJob, {"parallel.tp=2"}).empty());
  CHECK(problems(kJob, {"parallel.tp=2", "parallel.tp_overlap_chunks=2"}).empty());
  CHECK(problems(kJob, {"parallel.pp=2", "parallel.schedule=zb-h1"}).empty());
  CHECK(problems(kJob, {"parallel.schedule=zb-v"}).empty());
}

TEST_CASE("a text that is no job is one problem", "[spec]") {
  CHECK(problems("") ==
        Lines{"job.yaml:1:1: is empty: write a job, for example from configs/quickstart.yaml"});
  CHECK(problems("# only a comment\n") == problems(""));
  CHECK(problems("---\n") == problems(""));
  CHECK(problems("- a\n- b\n") == Lines{"job.yaml:1:1: a job is a map of keys, got a list"});
  CHECK(problems("just text\n") == Lines{"job.yaml:1:1: a job is a map of keys, got 'just text'"});
  CHECK(problems("a: b\n---\nc: d\n") ==
        Lines{"job.yaml:2:1: the job has ended before this, but more follows: a job is one document"});
  CHECK(problems(",") ==
        Lines{"job.yaml:1:1: the job has ended before this, but more follows: a job is one document"});
  CHECK(problems("a: [b\n").size() == 1);
  // A section that cannot be read has no vocabulary that would be too small.
  for (const std::string& line : problems(kJob, {"model=llama"}))
    CHECK(line.find("tokenizer") == std::string::npos);
  CHECK(problems("a: b: c\n") == Lines{"job.yaml:1:5: is not valid YAML: illegal map value"});
  CHECK(
      problems("a: 1\nmodel:\n\tlayers: 2\n") ==
      Lines{"job.yaml:3:8: is not valid YAML: illegal map value; line 3 is indented by a tab, and YAML takes "
            "spaces alone"});
  CHECK(problems("x: 1\n\ty: 2\n").size() == 1);
  CHECK(problems(std::string("a: b\0c", 6)) ==
        Lines{"job.yaml:1:5: has a control character: write plain UTF-8 text"});
  CHECK(problems("name: x\nsteps: 3\x04\nqq: 1\n") ==
        Lines{"job.yaml:2:9: has a control character: write plain UTF-8 text"});
  CHECK(problems("name: \xff\n") == Lines{"job.yaml:1:7: is not UTF-8 here: write plain UTF-8 text"});
  CHECK(problems("name: \xed\xa0\x80\n").size() == 1);
  CHECK(problems(std::string(2 << 20, 'a')) == Lines{"job.yaml:1:1: is longer than 1 MiB: not a job"});
}

TEST_CASE("YAML's indirections are refused, not followed", "[spec]") {
  CHECK(with_line("output: &a x") ==
        Lines{"job.yaml:6:9: output: anchors ('&name') are not supported: remove it"});
  CHECK(problems("name: &a x\noutput: *a\n" + kJob.substr(kJob.find("steps"))) ==
        Lines{"job.yaml:1:7: name: anchors ('&name') are not supported: remove it",
              "job.yaml:2:9: output: aliases ('*name') are not supported: write the value out"});
  CHECK(with_line("seed: !!int 5") ==
        Lines{"job.yaml:6:7: seed: tags ('tag:yaml.org,2002:int') are not supported: remove it"});
  CHECK(with_line("? [a, b]\n: c").size() == 1);
  CHECK(with_line("? {a: b}\n: c").size() == 1);
  CHECK(with_line(": c").size() == 1);
}

TEST_CASE("deep nesting and huge texts are refused in little time", "[spec]") {
  CHECK(problems(std::string(100000, '[')).size() == 1);
  CHECK(problems("a: " + std::string(40, '[') + std::string(40, ']')) ==
        Lines{"job.yaml:1:19: a[0][0][0][0][0][0][0][0][0][0][0][0][0][0]: is nested too deeply: not a job"});
  std::string blocks;
  for (int i = 0; i < 600; ++i) blocks += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  CHECK(problems(blocks).size() == 1);
  CHECK(with_line("name2: " + std::string(500000, 'x')).size() == 1);
  const Lines many = problems(kJob + [] {
    std::string keys;
    for (int i = 0; i < 20000; ++i) keys.append("k").append(std::to_string(i)).append(": 1\n");
    return keys;
  }());
  CHECK(many.size() == 201);  // 200 problems, and the number of further ones
  CHECK(with_line("device: " + std::string(500000, 'x')).at(0).size() < 200);
}

}  // namespace
}  // namespace trainerd::core
