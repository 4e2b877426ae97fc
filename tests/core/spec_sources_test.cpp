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

TEST_CASE("what is wrong with a source is told at its place, by the number of the source",
          "[spec][sources]") {
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

TEST_CASE("a blend is in place of data.train, and of files", "[spec][sources]") {
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

}  // namespace
}  // namespace trainerd::core
