#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "tests/io/checkpoint_support.h"
#include "tests/io/temp_dir.h"

using trainerd::base::CheckpointError;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

Manifest example() {
  return {.state = state_at(12),
          .shards = {{"shard-00000.safetensors", 100, std::string(32, 'a')},
                     {"shard-00001.safetensors", 0, std::string(32, '0')}},
          .slices = {{0, slice("w", {6, 8}, {0, 0}, {3, 8})},
                     {1, slice("w", {6, 8}, {3, 0}, {3, 8})},
                     {1, slice("s", {}, {}, {})}}};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string manifest_refusal(const std::string& text) {
  return message_of<CheckpointError>([&] { parse_manifest(text); });
}

}  // namespace

TEST_CASE("a manifest reads back as it was") {
  Manifest m = example();
  m.state.order_start = 96;
  m.state.order_stream = 2;
  m.state.sources = {{"a.bin", "tokens, 3 files", "cafe", 0.7, 1000, 2, 10, 60},
                     {"\xff.txt", "text bytes", "", 0.1 + 0.2, -1, 0, 0, 36}};
  m.state.job = "name: a\n";
  const Manifest back = parse_manifest(to_json(m));
  CHECK(back.state.order_start == 96);
  CHECK(back.state.order_stream == 2);
  REQUIRE(back.state.sources.size() == 2);
  CHECK(back.state.sources[0] == m.state.sources[0]);
  CHECK(back.state.sources[1].weight == m.state.sources[1].weight);
  CHECK(back.state.sources[1].taken == 36);
  CHECK(back.state.job == "name: a\n");
  CHECK(back.state.step == 12);
  CHECK(back.state.cursor == 192);
  CHECK(back.state.tokens == 12288);
  CHECK(back.state.seed == ~0ull - 1);
  CHECK(back.state.identity == m.state.identity);
  CHECK(back.state.environment == m.state.environment);
  REQUIRE(back.shards.size() == 2);
  CHECK(back.shards[0].file == "shard-00000.safetensors");
  CHECK(back.shards[0].bytes == 100);
  CHECK(back.shards[0].xxh3 == std::string(32, 'a'));
  REQUIRE(back.slices.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(back.slices[i].first == m.slices[i].first);
    CHECK(back.slices[i].second.name == m.slices[i].second.name);
    CHECK(back.slices[i].second.dtype == m.slices[i].second.dtype);
    CHECK(back.slices[i].second.logical_shape == m.slices[i].second.logical_shape);
    CHECK(back.slices[i].second.begin == m.slices[i].second.begin);
    CHECK(back.slices[i].second.shape == m.slices[i].second.shape);
  }
}

TEST_CASE("a manifest is indented JSON, written whole or entry by entry") {
  Manifest m = example();
  m.slices[1].second.stored = "w#1\n\"";
  m.state.job = "name: a\n  b: c\n";
  m.state.sources = {{"a.bin", "tokens", "cafe", 0.7, 1000, 2, 10, 60}};
  const std::string text = to_json(m);
  CHECK(nlohmann::ordered_json::parse(text).dump(1) + "\n" == text);
  const std::vector<WrittenShard> shards{{m.shards[0], {m.slices[0].second}},
                                         {m.shards[1], {m.slices[1].second, m.slices[2].second}}};
  CHECK(to_json(m.state, shards) == text);
  m.shards.clear(), m.slices.clear();
  CHECK(nlohmann::ordered_json::parse(to_json(m)).dump(1) + "\n" == to_json(m));
}

TEST_CASE("entries of a manifest may be before what they belong to, or as JSON in one line") {
  nlohmann::json json = nlohmann::json::parse(to_json(example()));  // keys in alphabetical order
  json["zzz"] = nlohmann::json::array({{{"name", "of a later version"}}});
  json["aaa"] = {{"slices", nlohmann::json::array({1})}};
  const Manifest back = parse_manifest(json.dump());
  CHECK(back.shards.size() == 2);
  REQUIRE(back.slices.size() == 3);
  CHECK(back.slices[1].second.begin == std::vector<std::int64_t>{3, 0});
}

TEST_CASE("a manifest of before data could change in mid-run has one order of samples from the start") {
  const std::string now = to_json(example());
  const Manifest back =
      parse_manifest(replaced(replaced(now, "\"order_start\": 0,", ""), "\"order_stream\": 0,", ""));
  CHECK(back.state.order_start == 0);
  CHECK(back.state.order_stream == 0);
  CHECK(back.state.job.empty());
  CHECK(back.state.sources.empty());
}

TEST_CASE("a source of a manifest whose counts cannot be is refused") {
  Manifest m = example();
  for (const SourceState& wrong :
       {SourceState{.weight = -1}, SourceState{.stream = -1}, SourceState{.before = 5, .taken = 4}}) {
    m.state.sources = {wrong};
    CHECK_FALSE(manifest_refusal(to_json(m)).empty());
  }
}

TEST_CASE("an inconsistent manifest is refused with a reason") {
  Manifest m = example();
  const std::string good = to_json(m);
  CHECK(manifest_refusal(good).empty());
  CHECK(manifest_refusal("") != "");
  CHECK(manifest_refusal("{}") != "");
  CHECK(manifest_refusal(good.substr(0, good.size() / 2)).find("JSON") != std::string::npos);
  CHECK(manifest_refusal(replaced(good, "\"version\": 1", "\"version\": 2")).find("version 2") !=
        std::string::npos);
  CHECK(manifest_refusal(replaced(good, "trainerd checkpoint", "something")).find("format") !=
        std::string::npos);
  CHECK(manifest_refusal(replaced(good, "\"step\": 12", "\"step\": -12")).find("negative") !=
        std::string::npos);
  CHECK(manifest_refusal(replaced(good, "\"order_start\": 0", "\"order_start\": 193")).find("order") !=
        std::string::npos);
  CHECK(manifest_refusal(replaced(good, "\"step\": 12", "\"step\": 1.5")).find("step") != std::string::npos);
  CHECK(manifest_refusal(replaced(good, "\"step\": 12", "\"step\": 12, \"step\": 13")).find("twice") !=
        std::string::npos);
  CHECK(manifest_refusal(replaced(good, "shard-00001", "../shard-00001")).find("shard file") !=
        std::string::npos);
  CHECK(manifest_refusal(replaced(good, "shard-00001.safetensors", "..")).find("shard file") !=
        std::string::npos);
  CHECK(manifest_refusal(replaced(good, "shard-00001", "shard-00000")).find("twice") != std::string::npos);
  CHECK(manifest_refusal(replaced(good, "aaaa", "aaax")).find("checksum") != std::string::npos);
  CHECK(manifest_refusal(replaced(good, "\"shard\": 0", "\"shard\": 2")).find("shard 2") !=
        std::string::npos);
  CHECK(manifest_refusal(replaced(good, "\"shard\": 0", "\"shard\": -1")) != "");
  CHECK(manifest_refusal(replaced(good, "\"shard\": 0", "\"shard\": 1")).find("two slices") !=
        std::string::npos);
  CHECK(manifest_refusal(replaced(good, "fp32", "fp3")).find("fp3") != std::string::npos);
  CHECK(manifest_refusal(replaced(good, "fp32", "bf16")).find("disagree") != std::string::npos);
  for (const char* list : {"shards", "slices"})
    for (const nlohmann::json& other :
         {nlohmann::json(1), nlohmann::json(), nlohmann::json::object(), nlohmann::json{{"a", {{"b", 1}}}},
          nlohmann::json::array({1}), nlohmann::json::array({nlohmann::json::array()})}) {
      nlohmann::json changed = nlohmann::json::parse(good);
      changed[list] = other;
      INFO(changed.dump());
      CHECK(manifest_refusal(changed.dump()).find("list of objects") != std::string::npos);
    }
  m.slices[0].second.begin = {4, 0};
  CHECK(manifest_refusal(to_json(m)).find("outside") != std::string::npos);
  m = example();
  m.slices[0].second.begin = {0};
  CHECK(manifest_refusal(to_json(m)).find("dimensions") != std::string::npos);
  m = example();
  m.slices = {{0, slice("w", {1ll << 40, 1ll << 40}, {0, 0}, {1, 1})}};
  CHECK(manifest_refusal(to_json(m)).find("2^63") != std::string::npos);
}
