#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "core/spec/changes.h"

using trainerd::core::spec::differing_keys;
using trainerd::core::spec::KeyValues;

TEST_CASE("keys in which jobs differ are listed once, in the jobs' order, with every job's value") {
  const auto rows = differing_keys({"name: a\nseed: 1\nmodel: {layers: 2, hidden: 8}\nsteps: 5\n",
                                    "name: b\nseed: 1\nmodel: {layers: 4, hidden: 8}\nsteps: 5\n",
                                    "name: c\nseed: 2\nmodel: {layers: 2, hidden: 8}\nsteps: 5\n"});
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].key == "seed");
  CHECK(rows[0].values == std::vector<std::string>{"1", "1", "2"});
  CHECK(rows[1].key == "model.layers");
  CHECK(rows[1].values == std::vector<std::string>{"2", "4", "2"});
}

TEST_CASE("a key that a job does not have counts as its default, and a job that cannot be read has none") {
  CHECK(differing_keys({"steps: 5\n", "steps: 5\nrestarts: 3\n"}).empty());  // 3 is its default
  const auto rows = differing_keys({"steps: 5\n", "steps: 5\nrestarts: 7\n", ""});
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].values == std::vector<std::string>{"3", "7", ""});
  CHECK(differing_keys({"steps: 5\n"}).empty());
  CHECK(differing_keys({}).empty());
}
