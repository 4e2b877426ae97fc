#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/sweep/draw.h"
#include "core/sweep/halving.h"
#include "core/sweep/sobol.h"
#include "core/sweep/sweep.h"
#include "core/sweep/table.h"
#include "tests/core/spec/spec_test_support.h"

namespace trainerd::core {
namespace {

/// A directory with a job, base.yaml, and a sweep of it.
class SweepFiles {
 public:
  explicit SweepFiles(const std::string& sweep, const std::string& base = kJob) {
    std::string name = (std::filesystem::temp_directory_path() / "trainerd-sweep-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = std::filesystem::canonical(name);
    std::ofstream(path_ / "sweep.yaml") << sweep;
    std::ofstream(path_ / "base.yaml") << base;
  }
  ~SweepFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file() const { return (path_ / "sweep.yaml").string(); }
  sweep::Sweep read(const std::vector<std::string>& overrides = {}) const {
    return sweep::read_sweep(file(), {overrides, ""}, {.machine = [] { return spec::Machine{.cores = 8}; }});
  }
  /// The problems, without the directory's path.
  Lines problems(const std::vector<std::string>& overrides = {}) const {
    try {
      read(overrides);
    } catch (const base::SpecError& e) {
      Lines lines{""};
      for (const char c : std::string(e.what()))
        if (c == '\n') lines.emplace_back();
        else lines.back() += c;
      for (std::string& line : lines)
        if (line.starts_with(path_.string() + "/")) line.erase(0, path_.string().size() + 1);
      return lines;
    }
    return {};
  }

 private:
  std::filesystem::path path_;
};

sweep::Sweep sweep_of(const std::string& text) { return SweepFiles("base: base.yaml\n" + text).read(); }
Lines sweep_problems(const std::string& text) { return SweepFiles("base: base.yaml\n" + text).problems(); }

/// A job whose model gives all keys in which presets differ.
const std::string kWholeModel =
    "name: whole\nmodel: {layers: 2, hidden: 64, heads: 4, kv_heads: 4, ffn: 176, vocab: 256, seq_len: 64}\n"
    "batch: {global: 8, micro: 2}\ndata: {format: synthetic}\nsteps: 20\n";

/// Remarks of a sweep of the base.
Lines remarks_of(const std::string& text, const std::string& base = kJob) {
  Lines lines;
  const SweepFiles files("base: base.yaml\n" + text, base);
  sweep::read_sweep(files.file(), {},
                    {.machine = [] { return spec::Machine{.cores = 8}; },
                     .remark = [&](const std::string& line) { lines.push_back(line); }});
  return lines;
}

/// "key=value key=value" of a job, as in results.jsonl.
std::string set_of(const sweep::SweepJob& job) {
  std::string text;
  for (const sweep::SetKey& key : job.set) text += (text.empty() ? "" : " ") + key.path + "=" + key.json;
  return text;
}

TEST_CASE("the last key of a grid changes fastest, and every job is the base with its values", "[sweep]") {
  const sweep::Sweep sweep =
      sweep_of("name: wide\ngrid: {optimizer.lr: [1.0e-3, 3.0e-3], model.hidden: [64, 128, 256]}\n");
  REQUIRE(sweep.jobs.size() == 6);
  CHECK(set_of(sweep.jobs[0]) == "optimizer.lr=0.001 model.hidden=64");
  CHECK(set_of(sweep.jobs[1]) == "optimizer.lr=0.001 model.hidden=128");
  CHECK(set_of(sweep.jobs[3]) == "optimizer.lr=0.003 model.hidden=64");
  CHECK(sweep.jobs[5].spec.optimizer.lr == 3e-3);
  CHECK(sweep.jobs[5].spec.model.hidden == 256);
  CHECK(sweep.jobs[5].spec.model.layers == 2);
  CHECK(sweep.jobs[5].name == "wide-006");
  CHECK(sweep.jobs[5].spec.name == "wide-006");
  CHECK(sweep.jobs[5].spec.output == "sweeps/wide/jobs/wide-006");
  CHECK(sweep.jobs[5].spec.metrics.listen == "127.0.0.1:0");
}

TEST_CASE("a grid may name any key: words, texts, lists and sections", "[sweep]") {
  const sweep::Sweep sweep = sweep_of(
      "grid: {precision: [fp32, {grads: bf16}], optimizer: {schedule: {kind: [constant]}}, optimizer.betas: "
      "[[0.9, 0.99]],\n"
      "       checkpoint.every: [10m]}\n");
  REQUIRE(sweep.jobs.size() == 2);
  CHECK(
      set_of(sweep.jobs[1]) ==
      R"(precision={"grads":"bf16"} optimizer.schedule.kind="constant" optimizer.betas=[0.9,0.99] checkpoint.every="10m")");
  CHECK(sweep.jobs[1].spec.precision.grads == kernels::DType::bf16);
  CHECK(sweep.jobs[0].spec.optimizer.beta2 == 0.99);
}

TEST_CASE("the jobs of a list come after those of the grid; an empty map is the base", "[sweep]") {
  const sweep::Sweep sweep = sweep_of(
      "list: [{}, {seed: 3, optimizer: {lr: 0.5, eps: 1.0e-6}}]\n"
      "grid: {seed: [1, 2]}\n");
  REQUIRE(sweep.jobs.size() == 4);
  CHECK(set_of(sweep.jobs[1]) == "seed=2");
  CHECK(set_of(sweep.jobs[2]).empty());
  CHECK(set_of(sweep.jobs[3]) == "seed=3 optimizer.lr=0.5 optimizer.eps=1e-06");
}

TEST_CASE("a random sweep is a function of its seed; another key or more samples change no draw", "[sweep]") {
  const std::string lr = "optimizer.lr: [1.0e-4, 1.0e-1, log]";
  const auto drawn = [&](int samples, int seed, const std::string& over) {
    return sweep_of("random: {samples: " + std::to_string(samples) + ", seed: " + std::to_string(seed) +
                    ", over: {" + over + "}}\n");
  };
  const sweep::Sweep few = drawn(8, 1, lr), more = drawn(64, 1, "seed: [1, 9], " + lr),
                     other = drawn(8, 2, lr);
  int below = 0;
  std::set<std::int64_t> seeds;
  for (std::size_t i = 0; i < more.jobs.size(); ++i) {
    const double x = more.jobs[i].spec.optimizer.lr;
    CHECK((x >= 1e-4 && x <= 1e-1));
    below += x < std::sqrt(1e-4 * 1e-1) ? 1 : 0;
    seeds.insert(static_cast<std::int64_t>(more.jobs[i].spec.seed));
    if (i >= few.jobs.size()) continue;
    CHECK(few.jobs[i].spec.optimizer.lr == x);
    CHECK(other.jobs[i].spec.optimizer.lr != x);
  }
  // Half of 64, +- 3.5 standard deviations of a binomial. On a linear scale it would be 2 of 64.
  CHECK((below >= 18 && below <= 46));
  CHECK(seeds == std::set<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("the Sobol sequence is that of Joe and Kuo's direction numbers, as scipy has it", "[sweep]") {
  // scipy 1.17.1: qmc.Sobol(5, scramble=False).random(8); qmc.Sobol(32, scramble=False).random(64)[37]
  const double first[8][5] = {{0.0, 0.0, 0.0, 0.0, 0.0},           {0.5, 0.5, 0.5, 0.5, 0.5},
                              {0.75, 0.25, 0.25, 0.25, 0.75},      {0.25, 0.75, 0.75, 0.75, 0.25},
                              {0.375, 0.375, 0.625, 0.875, 0.375}, {0.875, 0.875, 0.125, 0.375, 0.875},
                              {0.625, 0.125, 0.875, 0.625, 0.625}, {0.125, 0.625, 0.375, 0.125, 0.125}};
  for (std::uint32_t i = 0; i < 8; ++i)
    for (std::size_t d = 0; d < 5; ++d) CHECK(sweep::sobol_bits(i, d) * 0x1p-32 == first[i][d]);
  const double point[] = {0.921875, 0.640625, 0.578125, 0.921875, 0.765625, 0.296875, 0.171875, 0.796875,
                          0.609375, 0.171875, 0.015625, 0.078125, 0.578125, 0.859375, 0.109375, 0.484375,
                          0.796875, 0.421875, 0.046875, 0.140625, 0.953125, 0.078125, 0.546875, 0.640625,
                          0.296875, 0.359375, 0.796875, 0.390625, 0.515625, 0.109375, 0.359375, 0.140625};
  for (std::size_t d = 0; d < sweep::kSobolDimensions; ++d)
    CHECK(sweep::sobol_bits(37, d) * 0x1p-32 == point[d]);
}

TEST_CASE("a Sobol sweep spreads each key evenly, whatever its seed", "[sweep]") {
  for (const char* seed : {"0", "7"}) {
    const sweep::Sweep sweep =
        sweep_of(std::string("sobol: {samples: 16, seed: ") + seed +
                 ", over: {optimizer.lr: [0.0001, 1.0], optimizer.weight_decay: [0.0, 1.0]}}\n");
    std::set<int> sixteenths, quarters;  // a net in base 2: one point per interval
    for (const sweep::SweepJob& job : sweep.jobs) {
      sixteenths.insert(static_cast<int>(job.spec.optimizer.lr * 16));
      quarters.insert(4 * static_cast<int>(job.spec.optimizer.lr * 4) +
                      static_cast<int>(job.spec.optimizer.weight_decay * 4));
    }
    CHECK(sixteenths.size() == 16);
    CHECK(quarters.size() == 16);
  }
}

TEST_CASE("the ends of a range belong to it", "[sweep]") {
  CHECK(sweep::drawn_text({sweep::DrawKind::real, 0.25, 4, true}, 0) == "0.25");
  CHECK(sweep::drawn_text({sweep::DrawKind::real, 0, 1, false}, std::nextafter(1.0, 0.0)) == "1.0");
  CHECK(sweep::drawn_text({sweep::DrawKind::integer, 1, 3, false}, 0) == "1");
  CHECK(sweep::drawn_text({sweep::DrawKind::integer, 1, 3, false}, std::nextafter(1.0, 0.0)) == "3");
  CHECK(sweep::drawn_text({sweep::DrawKind::integer, 1, 1000, true}, std::nextafter(1.0, 0.0)) == "1000");
  CHECK(sweep::drawn_text({sweep::DrawKind::real, 1e-5, 1e-3, true}, 0.5) == "1.0e-04");
}

TEST_CASE(
    "every wrong key and value of a sweep is a problem at its place, with the base's problems beside them",
    "[sweep]") {
  const SweepFiles files(
      "bas: base.yaml\n"                                                                              // 1
      "base: base.yaml\n"                                                                             // 2
      "grid:\n"                                                                                       // 3
      "  optimizer.lr: [-1, fast, 1.0e-3]\n"                                                          // 4
      "  model.hiden: [64, 128]\n"                                                                    // 5
      "  optimizer: 3\n"                                                                              // 6
      "  name: [a, b]\n"                                                                              // 7
      "  seed: 4\n"                                                                                   // 8
      "  model.preset: [lama-3-8b]\n"                                                                 // 9
      "list: [{optimizer.name: foo, batch.micro: x}]\n"                                               // 10
      "random: {samples: 0, over: {optimizer.name: [1, 2]}}\n"                                        // 11
      "sobol: {samples: 4, over: {optimizer.lr: [2.0, 1.0], seed: [0, 5, log], optimizer.eps: 3}}\n"  // 12
      "at_once: many\n",                                                                              // 13
      kJob + "optimiser: {lr: 1}\n");
  CHECK(
      files.problems() ==
      Lines{
          "sweep.yaml:1:1: bas: unknown key (nearest valid: base)",
          "sweep.yaml:4:18: optimizer.lr: must be greater than 0, got '-1'",
          "sweep.yaml:4:22: optimizer.lr: expected a number, got 'fast'",
          "sweep.yaml:5:3: model.hiden: unknown key (nearest valid: hidden)",
          "sweep.yaml:6:14: optimizer: is a section of the job: name one of its keys, as optimizer.adamw_lr",
          "sweep.yaml:7:3: name: is made for each job from the sweep's: leave it out",
          "sweep.yaml:8:9: seed: expected a list of values, got '4'",
          "sweep.yaml:9:18: model.preset: unknown preset 'lama-3-8b' (nearest valid: llama-3-8b)",
          "sweep.yaml:10:25: optimizer.name: expected adamw, lion, sgd or muon, got 'foo'",
          "sweep.yaml:10:43: batch.micro: expected an integer, got 'x'",
          "sweep.yaml:11:19: random.samples: must be at least 1, got '0' (nearest valid: 1)",
          "sweep.yaml:11:29: optimizer.name: a range is for keys of one number: give its values in grid or "
          "list",
          "sweep.yaml:12:42: optimizer.lr: low must be less than high",
          "sweep.yaml:12:61: seed: low must be greater than 0 for log",
          "sweep.yaml:12:88: optimizer.eps: expected [low, high] or [low, high, log], got '3'",
          "sweep.yaml:13:10: at_once: expected an integer, got 'many'",
          "base.yaml:6:1: optimiser: unknown key (nearest valid: optimizer)"});
}

TEST_CASE("a sweep without a base, jobs or rungs is refused", "[sweep]") {
  CHECK(SweepFiles("grid: {seed: [1]}\n").problems() ==
        Lines{"sweep.yaml:1:1: base: is missing: the path of the job that this is a sweep of"});
  CHECK(sweep_problems("") == Lines{"sweep.yaml:1:1: makes no jobs: give grid, list, random or sobol"});
  CHECK(sweep_problems("random: {samples: 3}\n") == Lines{"sweep.yaml:2:1: random: random.over is missing"});
  CHECK(sweep_problems("grid: {seed: [1]}\nsbatch: --time=9\n") ==
        Lines{"sweep.yaml:3:9: sbatch: is for where: slurm"});
  CHECK(
      sweep_problems("grid: {}\n") ==
      Lines{"sweep.yaml:2:7: grid: expected a map from a key of the job, as optimizer.lr, got an empty one"});
  CHECK(sweep_problems("grid: {seed: [1]}\nhalving: {eta: 2}\n") ==
        Lines{"sweep.yaml:3:1: halving: halving.min_steps is missing: the steps of the first rung"});
  CHECK(sweep_problems("grid: {seed: [1]}\nhalving: {min_steps: 20}\n") ==
        Lines{"sweep.yaml:3:22: halving.min_steps: must be less than the 20 steps of a job, got 20"});
  CHECK(sweep_problems("grid: {seed: [1]}\nhalving: {min_steps: 5, metric: validation_loss}\n") ==
        Lines{"sweep.yaml:3:33: halving.metric: validation_loss is not known at the rung of step 5 of "
              "sweep-001, whose "
              "evaluate.every is 0"});
  CHECK(sweep_problems("grid: {steps: [20, 30]}\nhalving: {min_steps: 5}\n") ==
        Lines{"sweep.yaml:3:1: halving: compares jobs of as many steps: sweep-001 has 20 and sweep-002 30"});
  CHECK(SweepFiles("base: absent.yaml\ngrid: {seed: [1]}\n")
            .problems()[0]
            .starts_with("sweep.yaml:1:7: base: cannot open"));
}

TEST_CASE("an override of the base that no job would use is refused", "[sweep]") {
  const SweepFiles files("base: base.yaml\ngrid: {optimizer.lr: [1.0e-3]}\n");
  CHECK(files.read({"steps=7"}).jobs[0].spec.steps == 7);
  CHECK(files.problems({"optimizer.lr=1", "output=there"}) ==
        Lines{"--set optimizer.lr=1: optimizer.lr: the sweep gives its jobs optimizer.lr: change it there",
              "--set output=there: output: the sweep gives its jobs output: use --output"});
}

TEST_CASE("a job with contradicting keys is refused alone; if all are refused, so is the sweep", "[sweep]") {
  const sweep::Sweep sweep = sweep_of("grid: {model.heads: [4, 5]}\n");
  CHECK(sweep.jobs[0].refused.empty());
  CHECK(sweep.jobs[1].refused.find("64 is not divisible by heads 5") != std::string::npos);
  CHECK(sweep_problems("grid: {model.heads: [5, 7]}\n")[0].find("64 is not divisible by heads 5") !=
        std::string::npos);
}

TEST_CASE("a null in a sweep removes a key of the base", "[sweep]") {
  const std::string base = kJob + "optimizer: {lr: 1.0e-3, schedule: {kind: cosine, min_lr: 1.0e-4}}\n";
  const SweepFiles files(
      "base: base.yaml\n"
      "list: [{optimizer.schedule.kind: constant, optimizer: {schedule: {min_lr: ~}}}, {seed: null}, {steps: "
      "~}]\n"
      "grid: {optimizer.schedule.min_lr: [~, 1.0e-5]}\n",
      base);
  const sweep::Sweep sweep = files.read();
  REQUIRE(sweep.jobs.size() == 5);
  CHECK(set_of(sweep.jobs[0]) == "optimizer.schedule.min_lr=null");
  CHECK(sweep.jobs[0].spec.optimizer.schedule.min_lr == 0);
  CHECK(sweep.jobs[1].spec.optimizer.schedule.min_lr == 1e-5);
  CHECK(sweep.jobs[2].refused.empty());
  CHECK(sweep.jobs[2].spec.optimizer.schedule.kind == job::LrKind::constant);
  // A null for a key that the base does not have.
  CHECK(sweep.jobs[3].refused.empty());
  CHECK(sweep.jobs[4].refused.find("steps: is required") != std::string::npos);
  // A job's value of a key: from the sweep, from the base, the default, or none.
  CHECK(sweep::value_of(sweep.jobs[0], "optimizer.schedule.min_lr") == "0");
  CHECK(sweep::value_of(sweep.jobs[1], "optimizer.schedule.min_lr") == "1e-05");
  CHECK(sweep::value_of(sweep.jobs[2], "optimizer.schedule.min_lr") == "-");
  CHECK(sweep::value_of(sweep.jobs[3], "optimizer.schedule.min_lr") == "0.0001");
  CHECK(sweep_problems("grid: {seed: [1, ]}\nlist: [{optimizer: ~}]\n")[0].find("is a section of the job") !=
        std::string::npos);
  CHECK(sweep_problems("list: [{sed: ~}]\n") ==
        Lines{"sweep.yaml:2:9: sed: unknown key (nearest valid: seed)"});
  CHECK(sweep_problems("list: [{seed: }]\n") ==
        Lines{"sweep.yaml:2:9: seed: has no value; expected an integer of 0 or more"});
}

TEST_CASE("jobs of a sweep that are the same are named, with the keys that change nothing", "[sweep]") {
  CHECK(remarks_of("grid: {seed: [1, 2], optimizer.lr: [1.0e-3, 2.0e-3]}\n").empty());
  CHECK(
      remarks_of("grid: {model.preset: [gpt2-124m, gpt2-350m], seed: [1, 2]}\n", kWholeModel) ==
      Lines{
          "model.preset changes nothing: sweep-001 and sweep-003 are the same job, and 1 more pair like "
          "them; the presets differ in model.ffn, model.heads, model.hidden and model.layers, and the job's "
          "own go over them: take these away, by `model.ffn: ~` and so on"});
  // As the remark says.
  CHECK(
      remarks_of("grid: {model.preset: [gpt2-124m, gpt2-350m], model: {ffn: [~], heads: [~], kv_heads: [~], "
                 "hidden: [~], layers: [~]}}\n",
                 kWholeModel)
          .empty());
  CHECK(remarks_of("list: [{seed: 3}, {seed: 4}, {seed: 3}]\n") ==
        Lines{"sweep-001 and sweep-003 are the same job"});
  CHECK(remarks_of("list: [{}, {batch.global: 8}, {model.heads: 5}, {model.heads: 5}]\n") ==
        Lines{"batch.global changes nothing: sweep-001 and sweep-002 are the same job"});
}

TEST_CASE("where Slurm does not answer, what is wrong with keys is reported first, and it is asked once",
          "[sweep]") {
  int asked = 0;
  const auto error_of = [&](const std::string& grid) -> std::string {
    const SweepFiles files("base: base.yaml\nwhere: slurm\n" + grid);
    const auto silent = [&]() -> spec::Machine {
      ++asked;
      throw base::spec_error("no answer");
    };
    try {
      sweep::read_sweep(files.file(), {{"device=auto"}, "", silent}, {});
    } catch (const base::SpecError& e) {
      return e.what();
    }
    return "";
  };
  CHECK_THAT(error_of("grid: {model.heads: [5, 7]}\n"), Catch::Contains("is not divisible by heads 5"));
  CHECK(asked == 0);
  CHECK_THAT(error_of("grid: {model.heads: [4, 5, 2]}\n"),
             Catch::Contains("is not divisible by heads 5") && Catch::EndsWith("\nno answer"));
  CHECK(asked == 1);
  CHECK(error_of("grid: {seed: [1, 2, 3]}\n") == "no answer");
  CHECK(asked == 2);
}

TEST_CASE("each job has a durable tier of its own below that of the base", "[sweep]") {
  const std::string sweep = "base: base.yaml\nname: s\ngrid: {seed: [1, 2]}\n";
  const auto tiers = [&](const std::string& to) {
    Lines lines;
    for (const sweep::SweepJob& job : SweepFiles(sweep, kJob + to).read().jobs)
      lines.push_back(job.spec.checkpoint.durable.to);
    return lines;
  };
  CHECK(tiers("checkpoint: {durable: {to: \"s3://safe/a\"}}\n") ==
        Lines{"s3://safe/a/s-001", "s3://safe/a/s-002"});
  CHECK(tiers("checkpoint: {durable: {to: /safe/a/}}\n") == Lines{"/safe/a/s-001", "/safe/a/s-002"});
  CHECK(tiers("") == Lines{"", ""});
}

TEST_CASE("concurrent jobs divide the cores, unless the base sets the number of threads", "[sweep]") {
  CHECK(sweep_of("at_once: 2\ngrid: {parallel.dp: [1, 2]}\n").jobs[0].spec.threads == 4);
  CHECK(sweep_of("at_once: 2\ngrid: {parallel.dp: [1, 2]}\n").jobs[1].spec.threads == 2);
  CHECK(sweep_of("at_once: 16\ngrid: {seed: [1]}\n").jobs[0].spec.threads == 1);
  CHECK(sweep_of("at_once: 2\ngrid: {threads: [3]}\n").jobs[0].spec.threads == 3);
  const sweep::Sweep automatic = sweep_of("at_once: 2\ngrid: {parallel.dp: [auto], threads: [1]}\n");
  CHECK(automatic.jobs[0].spec.parallel.dp == 4);
}

TEST_CASE("rungs are eta times apart and before the last step", "[sweep]") {
  using Steps = std::vector<std::int64_t>;
  CHECK(sweep::rung_steps({.eta = 3, .min_steps = 10}, 100) == Steps{10, 30, 90});
  CHECK(sweep::rung_steps({.eta = 3, .min_steps = 10}, 90) == Steps{10, 30});
  CHECK(sweep::rung_steps({.eta = 2, .min_steps = 10, .rungs = 2}, 1000) == Steps{10, 20});
  CHECK(sweep::rung_steps({.eta = 1000, .min_steps = 1'000'000'000'000}, 1'000'000'000'001) ==
        Steps{1'000'000'000'000});
  CHECK(sweep::rung_steps({.eta = 2, .min_steps = 10}, 10).empty());
}

TEST_CASE("a rung promotes the best 1/eta of the jobs, at least one, and none without a finite loss",
          "[sweep]") {
  using Jobs = std::vector<std::size_t>;
  const std::vector<std::optional<double>> nine = {9, 1, 8, 2, 7, 3, 6, 4, 5};
  CHECK(sweep::promoted(nine, 3) == Jobs{1, 3, 5});
  CHECK(sweep::promoted(nine, 2) == Jobs{1, 3, 5, 7});
  CHECK(sweep::promoted(nine, 100) == Jobs{1});
  CHECK(sweep::promoted({2, 1, 1, 1}, 2) == Jobs{1, 2});
  CHECK(sweep::promoted({NAN, std::nullopt, INFINITY, 5}, 2) == Jobs{3});
  CHECK(sweep::promoted({NAN, std::nullopt}, 2).empty());
}

}  // namespace
}  // namespace trainerd::core
