#include <filesystem>
#include <fstream>
#include <map>

#include "spec_test_support.h"

namespace trainerd::core {
namespace {

/// A directory with job files. It is the working directory during its lifetime.
class JobFiles {
 public:
  explicit JobFiles(const std::map<std::string, std::string>& files)
      : before_(std::filesystem::current_path()) {
    std::string name = (std::filesystem::temp_directory_path() / "trainerd-bases-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = std::filesystem::canonical(name);
    std::filesystem::current_path(path_);
    for (const auto& [file, text] : files) {
      if (const auto folder = std::filesystem::path(file).parent_path(); !folder.empty())
        std::filesystem::create_directories(folder);
      std::ofstream(file) << text;
    }
  }
  ~JobFiles() {
    std::error_code ignored;
    std::filesystem::current_path(before_, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path before_, path_;
};

/// The problems of a job in a file, line by line.
Lines file_problems(const std::string& path, const std::vector<std::string>& overrides = {}) {
  try {
    spec::load_job(path, overrides);
  } catch (const base::SpecError& e) {
    Lines lines{""};
    for (const char c : std::string(e.what()))
      if (c == '\n') lines.emplace_back();
      else lines.back() += c;
    return lines;
  }
  return {};
}

/// Problems of a job with `text`, which extends base.yaml: kJob followed by `below`.
Lines over_base(const std::string& text, const std::string& below = "") {
  const JobFiles files({{"job.yaml", "extends: base.yaml\n" + text}, {"base.yaml", kJob + below}});
  return file_problems("job.yaml");
}

TEST_CASE("a job overrides the file that it extends, maps key by key and other values as a whole",
          "[spec][bases]") {
  const JobFiles files(
      {{"job.yaml",
        "extends: base.yaml\n"
        "name: variant\n"
        "model: {layers: 3}\n"
        "optimizer: {betas: [0.8, 0.9], schedule: {warmup: 2}}\n"
        "data: {train: [x.txt]}\n"},
       {"base.yaml",
        kJob + "optimizer: {lr: 0.5, betas: [0.7, 0.6], schedule: {kind: linear, warmup: 1}}\n"}});
  const job::JobSpec merged = spec::load_job("job.yaml");
  CHECK(merged ==
        spec::parse_job(
            "name: variant\nsteps: 20\n"
            "model: {layers: 3, hidden: 64, heads: 4, kv_heads: 2, ffn: 176, vocab: 256, seq_len: 32}\n"
            "batch: {global: 8, micro: 2}\ndata: {train: [x.txt], valid: [b.txt]}\n"
            "optimizer: {lr: 0.5, betas: [0.8, 0.9], schedule: {kind: linear, warmup: 2}}\n",
            "flat.yaml"));
  CHECK(spec::to_yaml(merged).find("extends") == std::string::npos);
  CHECK(spec::parse_job(spec::to_yaml(merged), "resolved.yaml") == merged);
  CHECK(spec::load_job("job.yaml", {"model.layers=5", "optimizer.schedule.warmup=4"}).model.layers == 5);
}

TEST_CASE("a preset's file is found beside the job, or else from the working directory", "[spec][presets]") {
  const JobFiles files({
      {"jobs/job.yaml", kJob + "cluster: {preset: machine.yaml}\n"},
      {"jobs/other.yaml",
       "steps: 20\nmodel: {preset: ./small.yaml}\nbatch: {global: 8, micro: 2}\n"
       "data: {train: [a.txt], valid: [b.txt]}\n"},
      {"jobs/small.yaml",
       "{layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 176, vocab: 256, seq_len: 32}\n"},
  });
  std::filesystem::copy(std::string(TRAINERD_SOURCE_DIR) + "/configs/clusters/dgx-h100.yaml", "machine.yaml");
  CHECK(spec::load_job("jobs/job.yaml").cluster.preset == files.path() + "/machine.yaml");
  const job::JobSpec job = spec::load_job("jobs/other.yaml");
  CHECK(job.model.ffn == 176);
  std::filesystem::rename("machine.yaml", "jobs/machine.yaml");
  const job::JobSpec beside = spec::load_job("jobs/job.yaml");
  CHECK(beside.cluster.preset == files.path() + "/jobs/machine.yaml");
  std::filesystem::current_path("jobs");
  CHECK(spec::load_job("job.yaml") == beside);
  CHECK(spec::load_job("other.yaml") == job);
  CHECK(spec::parse_job(spec::to_yaml(beside), "resolved.yaml") == beside);
}

TEST_CASE("a base may extend another, each path relative to the file that contains it", "[spec][bases]") {
  const JobFiles files({{"runs/today/job.yaml", "steps: 3\nextends: ../../bases/small.yaml\n"},
                        {"bases/small.yaml", "extends: root.yaml\nsteps: 2\nmodel: {layers: 1}\n"},
                        {"bases/root.yaml", kJob + "seed: 7\n"}});
  const job::JobSpec job = spec::load_job("runs/today/job.yaml");
  CHECK(job.steps == 3);
  CHECK(job.model.layers == 1);
  CHECK(job.seed == 7);
  CHECK(spec::load_job(files.path() + "/runs/today/job.yaml") == job);
  std::filesystem::current_path("runs/today");
  CHECK(spec::load_job("job.yaml") == job);
}

TEST_CASE("the path of a base takes variables of the environment", "[spec][bases]") {
  const JobFiles files({{"job.yaml", "extends: ${BASE}.yaml\n"}, {"common.yaml", kJob}});
  const spec::Environment environment = [](const std::string& name) {
    return name == "BASE" ? std::optional<std::string>("common") : std::nullopt;
  };
  CHECK(spec::load_job("job.yaml", {}, {.environment = environment}).name == "tiny");
  CHECK(file_problems("job.yaml") ==
        Lines{"job.yaml:1:10: extends: the variable BASE is not set in the environment: set it, or write "
              "${BASE:-default}"});
}

TEST_CASE("data of a base is looked up like the job's own", "[spec][bases]") {
  const JobFiles files({{"here/job.yaml", "extends: ../bases/base.yaml\n"},
                        {"bases/base.yaml", kJob},
                        {"bases/a.txt", "the base's"},
                        {"here/a.txt", "the job's"}});
  CHECK(spec::load_job("here/job.yaml").data.train == Lines{files.path() + "/here/a.txt"});
}

TEST_CASE("a null removes a key or a section of the base", "[spec][bases]") {
  const JobFiles files(
      {{"job.yaml", "extends: middle.yaml\noptimizer: {betas: null}\nevaluate: ~\nseed: 4\n"},
       {"middle.yaml", "extends: base.yaml\nmodel: {kv_heads: Null}\nseed: ~ # again above\n"},
       {"base.yaml", kJob + "seed: 3\noptimizer: {betas: [0.1, 0.2], lr: 0.5}\n"
                            "evaluate: {every: 5, batches: 1}\n"}});
  const job::JobSpec job = spec::load_job("job.yaml");
  CHECK(job.optimizer.beta1 == job::OptimizerOptions{}.beta1);
  CHECK(job.optimizer.lr == 0.5);
  CHECK(job.evaluate == job::EvaluateOptions{});
  CHECK(job.model.kv_heads == 4);
  CHECK(job.seed == 4);
}

TEST_CASE("a null removes only what exists, and never a required value", "[spec][bases]") {
  CHECK(
      over_base("seed: ~\noptimizer: {lr: ~}\nprecision: {grads: null}\n", "precision: bf16\n") ==
      Lines{
          "job.yaml:2:1: seed: `~` takes away what a base says, and none says anything: leave it out",
          "job.yaml:3:13: optimizer.lr: `~` takes away what a base says, and none says anything: leave it "
          "out",
          "job.yaml:4:13: precision.grads: `~` takes away what a base says, and none says anything: leave it "
          "out"});
  CHECK(over_base("steps: ~\n") ==
        Lines{"job.yaml:1:1: steps: is required: optimizer steps of the whole run"});
  CHECK(with_line("seed: ~") == Lines{"job.yaml:6:1: seed: has no value; expected an integer of 0 or more"});
  CHECK(with_line("seed: 1\nextends: ~") ==
        Lines{"job.yaml:7:1: extends: has no value; expected the path of a job file"});
}

TEST_CASE("a key whose value was left out is an error, not a null", "[spec][bases]") {
  CHECK(over_base("steps:\nbatch: {global: , micro: 1}\nevaluate:\n  # every: 3\nname: x\n",
                  "evaluate: {every: 2, batches: 1}\n") ==
        Lines{"job.yaml:2:1: steps: has no value; expected an integer",
              "job.yaml:3:9: batch.global: has no value; expected an integer",
              "job.yaml:4:1: evaluate: expected a map of keys, got nothing; its keys are every, batches, "
              "tokenizer, choices or ema"});
  // The next line begins like a null.
  CHECK(over_base("steps:\nnullify: 3\n").at(0) == "job.yaml:2:1: steps: has no value; expected an integer");
}

TEST_CASE("a map replaces a scalar, and a scalar replaces a map", "[spec][bases]") {
  const JobFiles files({{"map.yaml", "extends: named.yaml\nprecision: {grads: bf16}\n"},
                        {"named.yaml", "extends: custom.yaml\nprecision: bf16\n"},
                        {"custom.yaml", kJob + "precision: {compute: bf16, reduce: bf16}\n"}});
  CHECK(spec::load_job("named.yaml") == spec::parse_job(kJob + "precision: bf16\n", "flat.yaml"));
  CHECK(spec::load_job("map.yaml") == spec::parse_job(kJob + "precision: {grads: bf16}\n", "flat.yaml"));
}

TEST_CASE("problems of a base are placed in it, whether the job uses the value or not", "[spec][bases]") {
  const std::string wrong =
      "sed: 1\n"                                            // 6
      "seed: many\n"                                        // 7
      "threads: -1\n"                                       // 8
      "restarts: 1\n"                                       // 9
      "restarts: 2\n"                                       // 10
      "optimizer: {lr: &a 0.5, schedule: {kinds: wsd}}\n";  // 11
  const Lines in_base{"base.yaml:6:1: sed: unknown key (nearest valid: seed)",
                      "base.yaml:7:7: seed: expected an integer of 0 or more, got 'many'",
                      "base.yaml:8:10: threads: must be at least 0, got '-1' (nearest valid: 0)",
                      "base.yaml:10:1: restarts: is given twice: keep one",
                      "base.yaml:11:17: optimizer.lr: anchors ('&name') are not supported: remove it",
                      "base.yaml:11:36: optimizer.schedule.kinds: unknown key (nearest valid: kind)"};
  CHECK(over_base("name: a\n", wrong) == in_base);
  CHECK(over_base("sed: ~\nseed: 1\nthreads: 1\nrestarts: 1\noptimizer: {lr: 1, schedule: ~}\n", wrong) ==
        in_base);
  Lines both = in_base;
  both.insert(both.begin(), "job.yaml:2:7: seed: expected an integer of 0 or more, got 'few'");
  CHECK(over_base("seed: few\n", wrong) == both);
}

TEST_CASE("rules over several keys are checked on the merged job", "[spec][bases]") {
  CHECK(
      over_base("optimizer: {name: adamw}\n", "optimizer: {name: muon, momentum: 0.9, lr: 0.01}\n") ==
      Lines{"base.yaml:6:35: optimizer.momentum: has no effect: only muon and sgd have it; leave it out, or "
            "take it "
            "away in the job: `momentum: ~`"});
  CHECK(over_base("optimizer: {name: adamw, momentum: ~}\n", "optimizer: {name: muon, momentum: 0.9}\n")
            .empty());
  CHECK(over_base("optimizer: {name: muon}\n", "optimizer: {name: adamw, betas: [0.9, 0.99]}\n").empty());
  CHECK(over_base("optimizer: {name: adagrad}\n", "optimizer: {lr: 0.1}\n") ==
        Lines{"job.yaml:2:19: optimizer.name: expected adamw, lion, sgd or muon, got 'adagrad'"});
  CHECK(over_base("optimizer: {schedule: {kind: constant}}\n", "optimizer: {schedule: {min_lr: 1e-5}}\n") ==
        Lines{"base.yaml:6:32: optimizer.schedule.min_lr: has no effect: kind: constant stays at lr; leave "
              "it out, "
              "or take it away in the job: `min_lr: ~`"});
  const Lines files = over_base("data: {format: synthetic}\n");
  REQUIRE(files.size() == 2);
  CHECK(files[0].starts_with("base.yaml:5:15: data.train: has no effect"));
  CHECK(files[1].starts_with("base.yaml:5:31: data.valid: has no effect"));
  CHECK(over_base("data: {format: synthetic, train: ~, valid: ~}\n").empty());
  // The job's own key is an error: the job can leave it out.
  CHECK(over_base("optimizer: {momentum: 0.9}\n") ==
        Lines{"job.yaml:2:23: optimizer.momentum: has no effect: only muon and sgd have it; leave it out"});
  CHECK(
      over_base("parallel: {dp: 9}\nbatch: {micro: 1}\n") ==
      Lines{
          "base.yaml:4:17: batch.global: 8 leaves data-parallel ranks without a sequence at micro 1 and dp 9 "
          "(nearest valid: 9)"});
}

TEST_CASE("a preset is below the bases", "[spec][bases]") {
  const JobFiles files(
      {{"job.yaml", "extends: base.yaml\nmodel: {preset: gpt2-124m, kv_heads: ~}\n"}, {"base.yaml", kJob}});
  const job::JobSpec job = spec::load_job("job.yaml");
  CHECK(job.model.layers == 2);  // from the base
  CHECK(job.model.kv_heads == job.model.heads);
  CHECK(job.model.tie_embeddings);  // from the preset
}

TEST_CASE("overrides go over the merged job, and give it no base", "[spec][bases]") {
  const JobFiles files({{"job.yaml", "extends: base.yaml\nsteps: 2\n"}, {"base.yaml", kJob}});
  CHECK(spec::load_job("job.yaml", {"steps=5", "model.layers=4"}).steps == 5);
  CHECK(file_problems("job.yaml", {"extends=other.yaml"}) ==
        Lines{"--set extends=other.yaml: extends: is read from the job's file alone: write it there"});
}

TEST_CASE("a base that cannot be read is a problem that names the chain", "[spec][bases]") {
  const JobFiles files({{"job.yaml", "extends: base.yaml\nsed: 1\n"},
                        {"base.yaml", "seed: 1\nextends: no/such.yaml\n"},
                        {"folder.yaml", "extends: .\n"},
                        {"empty.yaml", "extends: nothing.yaml\n"},
                        {"nothing.yaml", "# nothing\n"},
                        {"of_list.yaml", "extends: list.yaml\n"},
                        {"list.yaml", "- 1\n"},
                        {"broken.yaml", "extends: syntax.yaml\n"},
                        {"syntax.yaml", "seed: 1\nmodel: {layers: [}\n"},
                        {"several.yaml", "extends: [a.yaml, b.yaml]\n"},
                        {"twice.yaml", "extends: base.yaml\nextends: base.yaml\n"},
                        {"control.yaml", "extends: \"base.yaml\\0x\"\n"}});
  CHECK(file_problems("job.yaml") ==
        Lines{"job.yaml:2:1: sed: unknown key (nearest valid: seed)",
              "base.yaml:2:10: extends: cannot open 'no/such.yaml': No such file or directory (job.yaml -> "
              "base.yaml -> no/such.yaml)"});
  CHECK(file_problems("folder.yaml") ==
        Lines{"folder.yaml:1:10: extends: '.' is not a plain file (folder.yaml -> .)"});
  CHECK(file_problems("empty.yaml") ==
        Lines{"nothing.yaml:1:1: is empty: a job is a map of keys (empty.yaml -> "
              "nothing.yaml)"});
  CHECK(file_problems("of_list.yaml") ==
        Lines{"list.yaml:1:1: a job is a map of keys, got a list (of_list.yaml -> "
              "list.yaml)"});
  const Lines broken = file_problems("broken.yaml");
  REQUIRE(broken.size() == 1);
  CHECK(broken[0].starts_with("syntax.yaml:2:"));
  CHECK(file_problems("several.yaml") ==
        Lines{"several.yaml:1:10: extends: expected the path of a job file, got a list"});
  CHECK(file_problems("twice.yaml") == Lines{"twice.yaml:2:1: extends: is given twice: keep one"});
  CHECK(file_problems("control.yaml") ==
        Lines{"control.yaml:1:10: extends: must not have control characters, got 'base.yaml\\x00x'"});
}

TEST_CASE("files that extend each other in a circle are a problem that names it", "[spec][bases]") {
  const JobFiles files({{"self.yaml", "extends: ./self.yaml\n"},
                        {"a.yaml", "extends: b.yaml\n"},
                        {"b.yaml", "extends: folder/../c.yaml\n"},
                        {"folder/x", ""},
                        {"c.yaml", "extends: b.yaml\n"}});
  CHECK(file_problems("self.yaml") == Lines{"self.yaml:1:10: extends: is a cycle: self.yaml -> self.yaml"});
  CHECK(file_problems("a.yaml") ==
        Lines{"c.yaml:1:10: extends: is a cycle: a.yaml -> b.yaml -> c.yaml -> b.yaml"});
  std::filesystem::create_symlink("a.yaml", "d.yaml");
  std::ofstream("c.yaml") << "extends: d.yaml\n";
  CHECK(file_problems("a.yaml") ==
        Lines{"c.yaml:1:10: extends: is a cycle: a.yaml -> b.yaml -> c.yaml -> d.yaml"});
}

TEST_CASE("the limits of a job's text hold for its bases, and a chain has one too", "[spec][bases]") {
  std::map<std::string, std::string> texts = {
      {"long.yaml", "extends: long_base.yaml\n"},
      {"long_base.yaml", kJob + std::string(1 << 20, '#')},
      {"deep.yaml", "extends: deep_base.yaml\n"},
      {"deep_base.yaml", kJob + "trace: " + std::string(20, '[') + std::string(20, ']') + "\n"},
      {"16.yaml", kJob}};
  for (int i = 0; i < 16; ++i)
    texts[std::to_string(i) + ".yaml"] = "extends: " + std::to_string(i + 1) + ".yaml\n";
  const JobFiles files(texts);
  CHECK_THAT(file_problems("long.yaml").at(0), Catch::Contains("is longer than 1 MiB"));
  CHECK_THAT(file_problems("deep.yaml").at(0),
             Catch::StartsWith("deep_base.yaml:6:") && Catch::Contains("is nested too deeply"));
  CHECK(spec::load_job("1.yaml").steps == 20);
  CHECK_THAT(
      file_problems("0.yaml").at(0),
      Catch::StartsWith("15.yaml:1:10: extends: is a chain of more than 16 files: 0.yaml -> 1.yaml -> "));
}

TEST_CASE("a text that is in no directory cannot extend a file", "[spec][bases]") {
  CHECK(problems("extends: base.yaml\n" + kJob) ==
        Lines{"job.yaml:1:10: extends: is for jobs in files: this text is in no directory"});
  CHECK(problems(kJob, {"model.extends=x"}) ==
        Lines{"--set model.extends=x: model.extends: unknown key (nearest valid: extends)"});
}

}  // namespace
}  // namespace trainerd::core
