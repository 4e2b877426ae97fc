#include <fstream>
#include <limits>
#include <sstream>

#include "spec_test_support.h"

namespace trainerd::core {
namespace {

TEST_CASE("a minimal job gets every default", "[spec]") {
  const job::JobSpec job = spec::parse_job(kJob, "job.yaml");
  CHECK(job.name == "tiny");
  CHECK(job.output == "runs/tiny");
  CHECK(job.model.head_dim == 16);
  CHECK(job.model.kv_heads == 2);
  CHECK(job.device == job::DeviceChoice::automatic);
  CHECK(job.precision == job::PrecisionRecipe{});
  CHECK(job.checkpoint.every == io::Interval{.steps = 0, .seconds = 600});
  CHECK(job.metrics.listen == "127.0.0.1:9464");
  CHECK(job.data.train == std::vector<std::string>{"a.txt"});
  CHECK(job.microbatches() == 4);
  CHECK(job.tokens_per_step() == 8 * 32);
  CHECK(spec::parse_job("model: {layers: 1, hidden: 64, heads: 4, ffn: 8, vocab: 9, seq_len: 3}\nsteps: 1\n"
                        "batch: {global: 1, micro: 1}\ndata: {format: synthetic}\n",
                        "j")
            .model.kv_heads == 4);
}

TEST_CASE("every key that can be given is stored", "[spec]") {
  const job::JobSpec job = spec::parse_job(R"(
name: all
seed: 18446744073709551615
output: some/where
device: cpu
threads: 2
model: {layers: 4, hidden: 64, heads: 4, kv_heads: 2, head_dim: 32, ffn: 176, vocab: 300, seq_len: 64, norm: layer,
        positions: rope, rope_theta: 5e5, mlp: gelu, bias: true, qkv_bias: true, qk_norm: true, tie_embeddings: true,
        norm_eps: 1e-6, init: .5}
parallel: {tp: 1, pp: 1, dp: 1, cp: 1, ep: 1, sequence_parallel: false, zero: 0, schedule: 1f1b, virtual_stages: 1}
recompute: {kind: full, every: 3}
batch: {global: 16, micro: 2}
precision: bf16
optimizer: {name: adamw, lr: +1.0e-3, betas: [0.8, 0.99], eps: 1e-9, weight_decay: 0, grad_clip: 0.5,
            schedule: {kind: wsd, warmup: 5, min_lr: 1.0e-5, decay: 3}}
steps: 20
data: {train: [a.bin, "b c.bin"], valid: v.bin, format: tokens, dtype: int32, on_change: continue, prefetch: 4}
checkpoint: {every: 5, keep: 2, async: FALSE}
evaluate: {every: 10, batches: 4}
metrics: {listen: "[::1]:0", discovery: d, otlp: {endpoint: 'http://c:4318', every: 1m}, powercap: p,
          tensorboard: true, mlflow: {uri: 'http://m:5000', experiment: e}}
trace: {steps: [3, 20]}
cluster: {preset: local, nodes: 1}
)",
                                           "job.yaml");
  CHECK(job.seed == std::numeric_limits<std::uint64_t>::max());
  CHECK(job.output == "some/where");
  CHECK(job.device == job::DeviceChoice::cpu);
  CHECK(job.threads == 2);
  CHECK(job.model.head_dim == 32);
  CHECK(job.model.norm == job::Norm::layer);
  CHECK(job.model.mlp == job::Mlp::gelu);
  CHECK(job.model.rope_theta == 500000.0);
  CHECK((job.model.linear_bias && job.model.qkv_bias && job.model.qk_norm && job.model.tie_embeddings));
  CHECK(job.model.norm_eps == 1e-6);
  CHECK(job.model.init == 0.5);
  CHECK(job.parallel.zero == 0);
  CHECK(job.recompute == job::RecomputeOptions{job::RecomputeKind::full, 3});
  CHECK(job.precision.compute == kernels::DType::bf16);
  CHECK(job.precision.params == kernels::DType::bf16);
  CHECK(job.precision.grads == kernels::DType::f32);
  CHECK(job.precision.master == kernels::DType::f32);
  CHECK(job.optimizer.lr == 1e-3);
  CHECK(job.optimizer.beta1 == 0.8);
  CHECK(job.optimizer.beta2 == 0.99);
  CHECK(job.optimizer.eps == 1e-9);
  CHECK(job.optimizer.weight_decay == 0.0);
  CHECK(job.optimizer.grad_clip == 0.5);
  CHECK(job.optimizer.schedule == job::LrSchedule{job::LrKind::wsd, 5, 1e-5, 3});
  CHECK(job.data.train == std::vector<std::string>{"a.bin", "b c.bin"});
  CHECK(job.data.valid == std::vector<std::string>{"v.bin"});
  CHECK(job.data.format == io::DataFormat::tokens);
  CHECK(job.data.dtype == io::TokenType::int32);
  CHECK(job.data.on_change == io::DataChange::go_on);
  CHECK(job.data.prefetch == 4);
  CHECK(job.checkpoint == io::CheckpointOptions{.every = {.steps = 5}, .keep = 2, .async = false});
  CHECK(job.evaluate == job::EvaluateOptions{10, 4});
  CHECK(job.metrics.listen == "[::1]:0");
  CHECK(job.metrics.discovery == "d");
  CHECK(job.metrics.otlp == io::OtlpOptions{"http://c:4318", 60});
  CHECK(job.metrics.powercap == "p");
  CHECK(job.metrics.tensorboard);
  CHECK(job.metrics.mlflow == io::MlflowOptions{"http://m:5000", "e"});
  CHECK(job.trace.steps == std::vector<std::int64_t>{3, 20});
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml") == job);
}

TEST_CASE("texts of any content survive the resolved job", "[spec]") {
  job::JobSpec job = spec::parse_job(kJob, "job.yaml");
  for (const std::string text : {"yes",
                                 "1e3",
                                 "a b",
                                 "a: b",
                                 "#x",
                                 "\"q\" \\ 'r'",
                                 "~",
                                 "null",
                                 "-",
                                 "*.txt",
                                 "/usr/include/c++/*/ext",
                                 "\xc3\xa9t\xc3\xa9",
                                 "{a}",
                                 "[b",
                                 "a,b",
                                 " lead",
                                 "trail ",
                                 "NO",
                                 "0x10",
                                 "&a",
                                 "!t",
                                 "%d",
                                 "@x"}) {
    INFO(text);
    job.data.train = {text, "z"};
    job.output = text;
    const job::JobSpec back = spec::parse_job(spec::to_yaml(job), "resolved.yaml");
    CHECK(back == job);
  }
}

TEST_CASE("numbers survive the resolved job to the last bit", "[spec]") {
  job::JobSpec job = spec::parse_job(kJob, "job.yaml");
  for (const double x : {1e-5, 0.1, 1.0 / 3, 6e-4, 1e20, 5e-324, 12345678.9, 3e-5}) {
    job.optimizer.lr = x;
    CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml").optimizer.lr == x);
  }
}

TEST_CASE("a precision map is the recipe that it spells, or a custom one", "[spec]") {
  const auto precision = [](const std::string& map) {
    return spec::parse_job(kJob + "precision: " + map + "\n", "j").precision;
  };
  CHECK(precision("{compute: bf16}").name == "bf16");
  CHECK(precision("{compute: bf16}") == precision("bf16"));
  CHECK(precision("{}") == precision("fp32"));
  const job::PrecisionRecipe reduced = precision("{compute: bf16, reduce: bf16}");
  CHECK(reduced.name == "custom");
  CHECK(reduced.reduce == kernels::DType::bf16);
  CHECK(precision("{compute: bf16, reduce: fp32}") == precision("bf16"));
  const job::PrecisionRecipe custom = precision("{compute: bf16, grads: bf16, loss_scale: none}");
  CHECK(custom.name == "custom");
  CHECK(custom.grads == kernels::DType::bf16);
  CHECK(custom.params == kernels::DType::bf16);
  const job::JobSpec job = spec::parse_job(kJob + "precision: {compute: bf16, grads: bf16}\n", "j");
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml") == job);
  CHECK(precision("{compute: fp16}") == precision("fp16"));
  CHECK(precision("fp16").loss_scale.dynamic);
  CHECK(precision("fp16").params == kernels::DType::f16);
  CHECK(precision("fp16").master == kernels::DType::f32);
  CHECK_FALSE(precision("{compute: fp16, loss_scale: none}").loss_scale.dynamic);
  const job::JobSpec scaled = spec::parse_job(
      kJob +
          "precision: {compute: fp16, initial_loss_scale: 1024, min_loss_scale: 2, loss_scale_window: 50}\n",
      "j");
  CHECK(scaled.precision.name == "custom");
  CHECK(scaled.precision.loss_scale == job::LossScaling{true, 1024, 2, 50});
  CHECK(spec::parse_job(spec::to_yaml(scaled), "resolved.yaml") == scaled);
  const job::JobSpec narrow = spec::parse_job(
      kJob + "precision: {compute: bf16, grads: bf16, master: bf16, moments: bf16, rounding: stochastic}\n",
      "j");
  CHECK(narrow.precision.master == kernels::DType::bf16);
  CHECK(narrow.precision.moments == kernels::DType::bf16);
  CHECK(narrow.precision.rounding == kernels::Rounding::stochastic);
  CHECK(spec::parse_job(spec::to_yaml(narrow), "resolved.yaml") == narrow);
}

TEST_CASE("snapshots in memory and partners have a short form and a map", "[spec]") {
  const auto of = [](const std::string& checkpoint) {
    return spec::parse_job(
               "steps: 20\nmodel: {layers: 2, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32}\n"
               "batch: {global: 8, micro: 2}\ndata: {format: synthetic}\nparallel: {dp: 2}\n"
               "cluster: {nodes: 2}\ncheckpoint: " +
                   checkpoint + "\n",
               "job.yaml")
        .checkpoint;
  };
  CHECK(of("{}").memory.never());
  CHECK(of("{memory: 10}").memory.steps == 10);
  CHECK(of("{memory: {every: 10}}") == of("{memory: 10}"));
  CHECK(of("{memory: {every: 30s}}").memory.seconds == 30);
  CHECK_FALSE(of("{}").partner);
  CHECK((of("{partner: true}").partner && of("{partner: true}").partner_wait_seconds == 60));
  CHECK((of("{partner: {wait: 5m}}").partner && of("{partner: {wait: 5m}}").partner_wait_seconds == 300));
  CHECK(of("{partner: {}}") == of("{partner: true}"));
  for (const char* text : {"{memory: 10}", "{memory: 30s, partner: true}", "{partner: {wait: 5m}}"}) {
    job::JobSpec job;
    job.checkpoint = of(text);
    job.cluster.nodes = 2;
    const std::string yaml = spec::to_yaml(job);
    CHECK(yaml.find("every: 30s") == std::string::npos);
    CHECK((yaml.find("partner:\n    wait:") != std::string::npos) == job.checkpoint.partner);
  }
  CHECK_THROWS_WITH(of("{memory: ten}"), Catch::Contains("checkpoint.memory: expected an integer of steps"));
  CHECK_THROWS_WITH(of("{partner: {wait: 0s}}"), Catch::Contains("checkpoint.partner.wait: must be greater"));
  CHECK_THROWS_WITH(
      spec::parse_job(
          "steps: 20\nmodel: {layers: 2, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32}\n"
          "batch: {global: 8, micro: 2}\ndata: {format: synthetic}\ncheckpoint: {partner: true}\n",
          "job.yaml"),
      Catch::Contains("checkpoint.partner: has no effect: cluster.nodes is 1"));
}

TEST_CASE("overrides replace values of the file, in order, and pass the same checks", "[spec]") {
  const job::JobSpec job = spec::parse_job(
      kJob, "job.yaml",
      {"optimizer.schedule.warmup=3", "steps=5", "steps=6", "data.train=[x, y]", "model.norm=layer",
       "precision={compute: bf16}", "evaluate={every: 2, batches: 1}", "precision.grads=bf16"});
  CHECK(job.optimizer.schedule.warmup == 3);
  CHECK(job.steps == 6);
  CHECK(job.data.train == std::vector<std::string>{"x", "y"});
  CHECK(job.model.norm == job::Norm::layer);
  CHECK(job.precision.name == "custom");
  CHECK(job.evaluate == job::EvaluateOptions{2, 1});

  // `~` removes a key or a section, if it exists.
  const std::string said = kJob + "optimizer: {lr: 0.5, schedule: {min_lr: 0.1}}\nseed: 3\n";
  const job::JobSpec without =
      spec::parse_job(said, "job.yaml", {"optimizer.schedule=~", "seed=null", "threads=~", "data.valid=~"});
  CHECK(without.optimizer.lr == 0.5);
  CHECK(without.optimizer.schedule.min_lr == 0);
  CHECK(without.seed == job::JobSpec{}.seed);
  CHECK(problems(kJob, {"steps=~"}) ==
        Lines{"job.yaml:1:1: steps: is required: optimizer steps of the whole run"});
  CHECK(problems(kJob, {"optimizer.lrr=~"}) ==
        Lines{"--set optimizer.lrr=~: optimizer.lrr: unknown key (nearest valid: lr)"});
  CHECK(problems(kJob, {"optimizer.lrr=1"}) ==
        Lines{"--set optimizer.lrr=1: optimizer.lrr: unknown key (nearest valid: lr)"});
  CHECK(problems(kJob, {"steps=many"}) == Lines{"--set steps=many: steps: expected an integer, got 'many'"});
  CHECK(problems(kJob, {"steps="}) == Lines{"--set steps=: steps: has no value; expected an integer"});
  CHECK(problems(kJob, {"steps"}) ==
        Lines{"--set steps: expected key.path=value, for example optimizer.lr=1e-3"});
  CHECK(problems(kJob, {"a..b=1"}) == Lines{"--set a..b=1: the key path 'a..b' has an empty part"});
  CHECK(problems(kJob, {"steps.x=1"}) == Lines{"--set steps.x=1: steps.x: 'steps' is '20' in the job, not a "
                                               "map: set it as a whole, as in --set 'steps={x: VALUE}'"});
  CHECK(problems(kJob, {"data.train=[a"}) ==
        Lines{"--set data.train=[a: data.train: is not valid YAML: end of sequence flow not found"});
  CHECK(
      problems(kJob, {"batch.global=1", "model.heads=3"}) ==
      Lines{"job.yaml:3:28: model.hidden: 64 is not divisible by heads 3, and head_dim is not given (nearest "
            "valid: 63)",
            "job.yaml:3:52: model.kv_heads: 2 does not divide heads 3 (nearest valid: 3)",
            "job.yaml:4:27: batch.micro: 2 is more than the global batch of 1 sequences (nearest valid: 1)"});
}

TEST_CASE("a job file that is absent or a directory is a SpecError that names it", "[spec]") {
  CHECK_THROWS_AS(spec::load_job("no/such/job.yaml"), base::SpecError);
  CHECK_THROWS_WITH(spec::load_job("no/such/job.yaml"),
                    Catch::Contains("no/such/job.yaml") && Catch::Contains("No such file"));
  CHECK_THROWS_AS(spec::load_job("."), base::SpecError);
}

TEST_CASE("heartbeats and spares need several nodes and must fit each other", "[spec]") {
  const auto of = [](const std::string& keys, int nodes = 2) {
    return spec::parse_job(
        "steps: 20\nmodel: {layers: 2, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32}\n"
        "batch: {global: 8, micro: 2}\ndata: {train: [a.txt]}\nparallel: {dp: 2}\ncluster: {nodes: " +
            std::to_string(nodes) + keys,
        "job.yaml");
  };
  const job::JobSpec plain = of("}");
  CHECK((plain.supervise.heartbeat_seconds == 1 && plain.supervise.dead_after_seconds == 5));
  CHECK(plain.cluster.spares == 0);
  const job::JobSpec job = of(", failures: {spares: 3}}\nsupervise: {heartbeat: 250ms, dead_after: 2s}\n");
  CHECK((job.supervise.heartbeat_seconds == 0.25 && job.supervise.dead_after_seconds == 2));
  CHECK(job.cluster.spares == 3);
  CHECK(spec::parse_job(spec::to_yaml(job), "again") == job);
  CHECK_THROWS_WITH(of("}\nsupervise: {heartbeat: 2s}"),
                    Catch::Contains("supervise.dead_after: 5s is less than 3 times supervise.heartbeat (2s"));
  CHECK_THROWS_WITH(of("}\nsupervise: {dead_after: 500ms}"),
                    Catch::Contains("supervise.dead_after: 0.5s is out of 1s to 1h (nearest valid: 1s)"));
  CHECK_THROWS_WITH(of("}\nsupervise: {heartbeat: 1ms}"),
                    Catch::Contains("supervise.heartbeat: 0.001s is out of 0.05s to 20m"));
  CHECK_THROWS_WITH(of(", failures: {spares: 1}}", 1),
                    Catch::Contains("cluster.failures.spares: has no effect: cluster.nodes is 1"));
  CHECK_THROWS_WITH(of("}\nsupervise: {dead_after: 2m}", 1),
                    Catch::Contains("supervise.dead_after: has no effect: cluster.nodes is 1"));
  const std::string url = "etcd://10.0.0.8:2379,10.0.0.9:2379";
  const job::JobSpec led = of("}\nsupervise: {coordinator: \"" + url + "\"}\n");
  CHECK(led.supervise.coordinator == url);
  CHECK(spec::parse_job(spec::to_yaml(led), "again") == led);
  CHECK_THROWS_WITH(
      of("}\nsupervise: {coordinator: \"http://10.0.0.8:2379\"}"),
      Catch::Contains("supervise.coordinator: expected etcd://host:port[,host:port...], got 'http:"));
  CHECK_THROWS_WITH(of("}\nsupervise: {coordinator: \"" + url + "\"}", 1),
                    Catch::Contains("supervise.coordinator: has no effect: cluster.nodes is 1"));
}

TEST_CASE("configs/README.md holds the reference that the parser's table makes", "[spec][readme]") {
  std::ifstream file(std::string(TRAINERD_SOURCE_DIR) + "/configs/README.md");
  std::ostringstream text;
  text << file.rdbuf();
  const std::string readme = text.str();
  const std::string begin = "<!-- spec-reference:begin -->\n";
  const std::size_t from = readme.find(begin);
  REQUIRE(from != std::string::npos);
  const std::size_t to = readme.find("<!-- spec-reference:end -->", from);
  REQUIRE(to != std::string::npos);
  const std::string section = readme.substr(from + begin.size(), to - from - begin.size());
  std::istringstream rows(spec::reference_markdown());
  for (std::string row; std::getline(rows, row);)
    if (section.find(row) == std::string::npos) FAIL_CHECK("configs/README.md has no line\n" << row);
  CHECK(section.find(spec::reference_markdown()) != std::string::npos);
}

TEST_CASE("the reference has a row for every key of the issue's list", "[spec]") {
  const std::string reference = spec::reference_markdown();
  for (const char* key : {"name",
                          "seed",
                          "output",
                          "device",
                          "preset",
                          "layers",
                          "kv_heads",
                          "rope_theta",
                          "tie_embeddings",
                          "tp",
                          "sequence_parallel",
                          "tp_overlap_chunks",
                          "zero",
                          "virtual_stages",
                          "global",
                          "micro",
                          "precision",
                          "lr",
                          "betas",
                          "grad_clip",
                          "warmup",
                          "min_lr",
                          "steps",
                          "train",
                          "every",
                          "keep",
                          "async",
                          "batches",
                          "listen",
                          "nodes"}) {
    INFO(key);
    const std::string cell = std::string(key).append("` |");
    CHECK((reference.find("| `" + cell) != std::string::npos ||
           reference.find("." + cell) != std::string::npos));
  }
}

TEST_CASE("a key that cannot be set is not in the reference", "[spec]") {
  const std::string reference = spec::reference_markdown();
  CHECK(reference.find("attn_pdrop") == std::string::npos);
  // data.tokenizer is not listed; evaluate.tokenizer can be set.
  CHECK(reference.find("how text becomes tokens") == std::string::npos);
}

// ./test_core "[.print-reference]" prints the text between the markers of configs/README.md.
TEST_CASE("print the reference", "[.print-reference]") {
  const std::string reference = spec::reference_markdown();
  std::fwrite(reference.data(), 1, reference.size(), stdout);
  CHECK(!reference.empty());
}

}  // namespace
}  // namespace trainerd::core
