#include "spec_test_support.h"

namespace trainerd::core {
namespace {

constexpr const char* kBlend = R"(
name: blend
model: {layers: 1, hidden: 64, heads: 4, ffn: 8, vocab: 256, seq_len: 32}
steps: 20
batch: {global: 8, micro: 2}
data:
  sources:
    - {path: a.txt, weight: 0.7}
    - path: [b.txt, "c d.txt"]
      weight: 3e-1
      epochs: 1.5
      tokens: 4000
)";

Lines problems_with_data(const std::string& data) {
  std::string job = kBlend;
  job.resize(job.find("data:"));
  return problems(job + "data: " + data + "\n");
}

TEST_CASE("a blend is a list of sources, and the resolved job holds it", "[spec][sources]") {
  const job::JobSpec job = spec::parse_job(kBlend, "job.yaml");
  REQUIRE(job.data.sources.size() == 2);
  CHECK(job.data.train.empty());
  CHECK(job.data.sources[0] == io::DataSource{.path = {"a.txt"}, .weight = 0.7});
  CHECK(job.data.sources[1] ==
        io::DataSource{.path = {"b.txt", "c d.txt"}, .weight = 0.3, .epochs = 1.5, .tokens = 4000});
  const std::string yaml = spec::to_yaml(job);
  CHECK_THAT(yaml, Catch::Contains("sources: [{path: [a.txt], weight: 0.7}, {path: [b.txt, \"c d.txt\"], "
                                   "weight: 0.3, epochs: 1.5, tokens: 4000}]"));
  CHECK(spec::parse_job(yaml, "resolved.yaml").data == job.data);
}

TEST_CASE("problems of a source are reported at its place, by the source's number", "[spec][sources]") {
  CHECK(problems_with_data("{sources: [{path: a, weight: 0}]}") ==
        Lines{"job.yaml:6:36: data.sources[0].weight: must be greater than 0, got '0'"});
  CHECK(problems_with_data("{sources: [{path: a, weight: 1}, {wight: 1, path: b}]}").back() ==
        "job.yaml:6:41: data.sources[1].wight: unknown key (nearest valid: weight)");
  const Lines absent = problems_with_data("{sources: [{path: a, weight: 1}, {epochs: 1}]}");
  REQUIRE(absent.size() == 2);
  CHECK(absent[0].starts_with("job.yaml:6:40: data.sources[1].path: is required: "));
  CHECK(absent[1].starts_with("job.yaml:6:40: data.sources[1].weight: is required: "));
  CHECK(problems_with_data("{sources: [a.txt]}") ==
        Lines{"job.yaml:6:18: data.sources[0]: expected a map of keys, got 'a.txt'"});
  CHECK(problems_with_data("{sources: {path: a, weight: 1}}") ==
        Lines{"job.yaml:6:17: data.sources: expected a list of maps, got a map"});
  CHECK(problems_with_data("{sources: []}").size() == 1);
  CHECK(problems_with_data("{sources: [{path: a, weight: 1, epochs: -1}]}").size() == 1);
  CHECK(problems_with_data("{sources: [{path: a, weight: .inf}]}").size() == 1);
  CHECK(problems_with_data("{sources: [{path: a, weight: 1, tokens: 1.5}]}").size() == 1);
}

TEST_CASE("s3:// paths have a cache, local ones do not", "[spec][sources]") {
  std::string text = kBlend;
  text.replace(text.find("a.txt"), 5, "\"s3://corpus/a/**\"");
  const job::JobSpec job =
      spec::parse_job(text + "  cache: {directory: /scratch/c, bytes: 5000000}\n", "job.yaml");
  CHECK(job.data.sources[0].path == std::vector<std::string>{"s3://corpus/a/**"});
  CHECK(job.data.cache_directory == "/scratch/c");
  CHECK(job.data.cache_bytes == 5000000);
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml").data == job.data);
  CHECK_THAT(problems_with_data("{train: a, cache: {bytes: 1}}").at(0),
             Catch::Contains("data.cache.bytes: has no effect: no path of the data is at s3://"));
  CHECK_THAT(problems_with_data("{train: \"s3://a/b\", cache: {bytes: 0, directory: /x}}").at(0),
             Catch::Contains("data.cache.directory: has no effect: bytes: 0 keeps none"));
  CHECK_THAT(problems_with_data("{train: \"gs://a/b\"}").at(0),
             Catch::Contains("data.train: 'gs://a/b': expected s3://bucket/key"));
}

TEST_CASE("a job of pairs reads pairs, and keys that contradict them are reported with the valid ones",
          "[spec][dpo]") {
  std::string text = kBlend;
  text.resize(text.find("data:"));
  const auto with = [&](const std::string& data, const std::string& loss = "dpo: {beta: 0.1}") {
    return text + "data: {train: a, " + data + "}\nloss: {" + loss + "}\n";
  };
  const job::JobSpec job =
      spec::parse_job(with("format: tokens", "dpo: {beta: 0.2, label_smoothing: 0.1}"), "job.yaml");
  CHECK(job.loss.dpo == job::DpoOptions{.beta = 0.2, .label_smoothing = 0.1});
  CHECK(job.data.packing == io::Packing::pairs);
  CHECK((job.data.document_mask && job.data.reset_positions));
  CHECK(job.data.max_documents == 3);
  CHECK(job.loss_terms_per_step() == job.batch.global);
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml") == job);

  CHECK(problems(with("format: tokens", "dpo: {beta: -1}")) ==
        Lines{"job.yaml:7:20: loss.dpo.beta: must be at least 0, got '-1' (nearest valid: 0)"});
  CHECK(problems(with("format: tokens", "dpo: {beta: 0.1, label_smoothing: 0.5}")) ==
        Lines{"job.yaml:7:42: loss.dpo.label_smoothing: must be less than 0.5, got '0.5'"});
  CHECK(problems(with("format: tokens", "dpo: {label_smoothing: 0.1}")) ==
        Lines{"job.yaml:7:31: loss.dpo.label_smoothing: has no effect: loss.dpo.beta is 0; leave it out"});
  const auto told = [&](const std::string& made, const std::string& what) {
    const Lines lines = problems(made);
    CAPTURE(lines, what);
    CHECK(std::any_of(lines.begin(), lines.end(),
                      [&](const std::string& line) { return line.find(what) != std::string::npos; }));
  };
  told(with("format: tokens", "label_smoothing: 0.1, dpo: {beta: 0.1}"),
       "loss.label_smoothing: is of the cross entropy: with loss.dpo set loss.dpo.label_smoothing");
  told(with("format: tokens", "z_loss: 1.0e-4, dpo: {beta: 0.1}"), "loss.z_loss: is minimised beside");
  told(with("format: text"), "data.format: a text holds no pairs of answers");
  told(with("format: synthetic"), "data.format: synthetic tokens are no pairs of answers");
  told(with("format: tokens, packing: best_fit"), "data.packing: with loss.dpo a sample is a pair");
  told(with("format: tokens, document_mask: false"),
       "data.document_mask: with loss.dpo no answer sees the other");
  told(with("format: tokens, reset_positions: false"), "data.reset_positions: with loss.dpo each answer");
  told(with("format: tokens, max_documents: 5"),
       "data.max_documents: with loss.dpo a sample has two answers and padding "
       "(nearest valid: 3)");
  told(with("format: tokens, valid_fraction: 0.1"), "data.valid_fraction: chooses single documents");
  told(with("format: tokens, end_token: 0"), "data.end_token: packing: pairs takes documents");
  const std::string evaluated = with("format: tokens, valid: b") + "evaluate: {every: 2, batches: 1";
  CHECK(problems(evaluated + "}\n").empty());
  told(evaluated + ", choices: [{name: quiz, path: quiz.jsonl}]}\n",
       "evaluate.choices: are sequences of their own, and with loss.dpo a sample is a pair");
  told(with("format: tokens, packing: pairs", ""),
       "data.packing: pairs are for direct preference optimisation");
}

TEST_CASE("an evaluation of averaged weights needs them, and fp32 weights", "[spec]") {
  std::string text = kBlend;
  text += "evaluate: {every: 2, batches: 1, ema: true}\n";
  const std::string valid = "  valid: [v.txt]\n";
  text.insert(text.find("evaluate:"), valid);
  CHECK(problems(text) ==
        Lines{"job.yaml:14:39: evaluate.ema: has no effect: ema.decay is 0, so there are no averaged "
              "weights; leave it out"});
  const std::string average = "ema: {decay: 0.9}\n";
  CHECK(problems(text + average).empty());
  const Lines narrow = problems(text + average + "precision: {compute: bf16, master: bf16}\n");
  REQUIRE(narrow.size() == 1);
  CHECK_THAT(narrow[0],
             Catch::Contains("evaluate.ema: the averages are fp32") && Catch::Contains("set that to fp32"));
}

TEST_CASE("a blend excludes data.train and synthetic data", "[spec][sources]") {
  const Lines both = problems_with_data("{train: a.txt, sources: [{path: b, weight: 1}]}");
  REQUIRE(both.size() == 1);
  CHECK_THAT(both[0], Catch::Contains("data.sources: data.train is given too"));
  const Lines synthetic = problems_with_data("{format: synthetic, sources: [{path: b, weight: 1}]}");
  REQUIRE(synthetic.size() == 1);
  CHECK_THAT(synthetic[0], Catch::Contains("data.sources: has no effect: format: synthetic reads no files"));
}

TEST_CASE("texts of a source are expanded, and a blend is set as a whole from the command line",
          "[spec][sources]") {
  spec::Surroundings around;
  around.environment = [](const std::string& name) {
    return name == "CORPUS" ? std::optional<std::string>("/c") : std::nullopt;
  };
  const job::JobSpec job =
      spec::parse_job(kBlend, "job.yaml", {"data.sources=[{path: \"${CORPUS}/x\", weight: 1}]"}, around);
  CHECK(job.data.sources == std::vector<io::DataSource>{{.path = {"/c/x"}, .weight = 1}});
  CHECK_THROWS_WITH(
      spec::parse_job(kBlend, "job.yaml", {"data.sources=[{path: \"${NONE}/x\", weight: 1}]"}, around),
      Catch::Contains("data.sources[0].path: the variable NONE is not set"));
}

TEST_CASE("validation sets have names, beside the one without a name", "[spec][sources]") {
  std::string text = kBlend;
  text += "  valid_sets:\n    - {name: web, path: w.txt, batches: 3}\n    - {name: code-2, path: [c.txt]}\n";
  text += "evaluate: {every: 5, batches: 2}\n";
  job::JobSpec job = spec::parse_job(text, "job.yaml");
  REQUIRE(job.data.valid_sets.size() == 2);
  CHECK(job.data.valid_sets[0] == io::ValidationSet{.name = "web", .path = {"w.txt"}, .batches = 3});
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml").data == job.data);
  CHECK(io::validation_sets(job.data) == job.data.valid_sets);
  job.data.valid = {"v.txt"};
  const auto sets = io::validation_sets(job.data);
  REQUIRE(sets.size() == 3);
  CHECK(sets[0] == io::ValidationSet{.name = "valid", .path = {"v.txt"}});
  job.data.valid_sets.clear();
  CHECK(io::validation_sets(job.data) == std::vector<io::ValidationSet>{{.name = "", .path = {"v.txt"}}});

  const auto found = [](const std::string& given) {
    return problems_with_data("{train: a, valid: b, valid_sets: " + given + "}");
  };
  CHECK(found("[{name: a, path: x}, {name: b, path: x}]").empty());
  CHECK_THAT(found("[{name: a, path: x}, {name: a, path: y}]").at(0),
             Catch::Contains("data.valid_sets[1].name: two sets are named a"));
  CHECK_THAT(found("[{name: valid, path: x}]").at(0), Catch::Contains("makes the set named valid"));
  CHECK_THAT(found("[{name: 'a b', path: x}]").at(0), Catch::Contains("'a b' is no name of a set"));
  CHECK_THAT(found("[{name: '', path: x}]").at(0), Catch::Contains("is empty"));
  CHECK_THAT(found("[{name: a, path: []}]").at(0), Catch::Contains("data.valid_sets[0].path: is empty"));
  CHECK_THAT(found("[{name: a, path: x, batches: 0}]").at(0), Catch::Contains("data.valid_sets[0].batches"));
}

}  // namespace
}  // namespace trainerd::core
