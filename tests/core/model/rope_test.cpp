// Scaled rotary angles against transformers' numbers: tests/golden/make_rope.py.

#include "core/model/rope.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

namespace trainerd::core {
namespace {

struct RopeCase {
  job::ModelOptions model;
  model::RopeFrequencies expected;
};

RopeCase rope_case(const std::string& line) {
  std::istringstream in(line);
  std::string kind;
  RopeCase c;
  job::RopeScaling& s = c.model.rope_scaling;
  in >> kind >> c.model.head_dim >> c.model.rope_theta >> s.factor >> s.original_max_position;
  if (kind == "linear") s.kind = job::RopeScalingKind::linear;
  if (kind == "llama3") {
    s.kind = job::RopeScalingKind::llama3;
    in >> s.low_freq_factor >> s.high_freq_factor;
  }
  if (kind == "yarn") {
    s.kind = job::RopeScalingKind::yarn;
    double truncate = 0;
    in >> s.beta_fast >> s.beta_slow >> s.attention_factor >> truncate;
    s.truncate = truncate != 0;
  }
  std::string bar;
  in >> bar >> c.expected.factor;
  REQUIRE(bar == "|");
  for (double f = 0; in >> f;) c.expected.of_pair.push_back(f);
  return c;
}

}  // namespace

TEST_CASE("scaled rotary frequencies are transformers'", "[rope]") {
  std::ifstream file(std::string(TRAINERD_SOURCE_DIR) + "/tests/golden/rope.txt");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    CAPTURE(line);
    const RopeCase c = rope_case(line);
    const model::RopeFrequencies actual = model::rope_frequencies(c.model);
    CHECK(actual.factor == Approx(c.expected.factor).epsilon(1e-15));
    REQUIRE(actual.of_pair.size() == c.expected.of_pair.size());
    // Both sides are float64, except YaRN's ramp, which transformers keeps in float32: the blend weight has
    // an error of 2^-24, and the blended frequency may be `factor` times smaller than its inputs.
    const double bound = c.model.rope_scaling.kind == job::RopeScalingKind::yarn
                             ? 2 * c.model.rope_scaling.factor * 0x1p-24
                             : 1e-14;
    for (std::size_t i = 0; i < actual.of_pair.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(actual.of_pair[i] / c.expected.of_pair[i] - 1) < bound);
    }
  }
  CHECK(cases == 8);
}

TEST_CASE("plain rotary frequencies are powers of the base as fp32 has it", "[rope]") {
  job::ModelOptions model;
  model.head_dim = 6;
  model.rope_theta = 12345.678;
  const model::RopeFrequencies rope = model::rope_frequencies(model);
  CHECK(rope.factor == 1);
  for (int i = 0; i < 3; ++i)
    CHECK(rope.of_pair[static_cast<std::size_t>(i)] ==
          std::pow(static_cast<double>(12345.678f), -2.0 * i / 6.0));
}

TEST_CASE("a pattern repeats over the layers and has one shortest form", "[spec]") {
  job::ModelOptions m;
  m.layers = 7, m.seq_len = 100;
  m.attention.window = 10;
  const auto windows = [&m] {
    std::vector<std::int64_t> out;
    for (std::int64_t i = 0; i < m.layers; ++i) out.push_back(job::layer_options(m, i).window);
    return out;
  };
  CHECK(windows() == std::vector<std::int64_t>(7, 10));
  m.attention.pattern = {"sliding", "sliding", "full"};
  CHECK(windows() == std::vector<std::int64_t>{10, 10, 0, 10, 10, 0, 10});
  m.seq_len = 10;  // a window of the whole sequence counts as none, but layers stay sliding
  CHECK(windows() == std::vector<std::int64_t>(7, 0));
  CHECK(job::layer_options(m, 3).slides);
  CHECK_FALSE(job::layer_options(m, 2).slides);

  using Words = std::vector<std::string>;
  CHECK(job::shortest_pattern({"sliding", "full", "sliding", "full", "sliding"}, 5) ==
        Words{"sliding", "full"});
  CHECK(job::shortest_pattern({"sliding", "full", "full", "sliding"}, 4) == Words{"sliding", "full", "full"});
  CHECK(job::shortest_pattern({"full", "sliding"}, 1) == Words{"full"});
  CHECK(job::shortest_pattern({"sliding", "sliding"}, 9).empty());
  CHECK(job::shortest_pattern({"full", "full", "sliding"}, 3) == Words{"full", "full", "sliding"});
}

}  // namespace trainerd::core
