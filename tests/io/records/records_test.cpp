#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "io/records/records.h"
#include "io/text/text.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using trainerd::base::DataError;
namespace base = trainerd::base;
using namespace trainerd::io;

namespace {

double random_double(std::mt19937_64& random) {
  for (;;) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) return value;
  }
}

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

const char* const kLine =
    R"({"step":3,"tokens":4096,"loss":0.1,"grad_norm":1.5,"learning_rate":0.001,"step_seconds":0.25,"tokens_per_second":5461.5,"mfu":0.5,)"
    R"("time":{"compute":0.2,"exposed_tp":0.0,"exposed_cp":0.0,"exposed_ep":0.0,"exposed_dp":0.0,"exposed_pp":0.0,"exposed_world":0.0,"exposed_host":0.0,"bubble":0.0,"data_wait":0.01,"optimizer":0.03,)"
    R"("checkpoint":0.0,"other":0.01},"widened_gemms":0,"reference_gemms":0})";

}  // namespace

TEST_CASE("every double in a step record comes back bit for bit") {
  std::mt19937_64 random(5);
  for (int i = 0; i < 2000; ++i) {
    StepRecord r;
    r.step = i;
    r.tokens = std::int64_t{1} << 60;
    r.loss = random_double(random);
    r.grad_norm = random_double(random);
    r.step_seconds = random_double(random);
    r.mfu = random_double(random);
    r.time[base::LedgerPart::optimizer] = random_double(random);
    const StepRecord back = parse_step_record(to_json_line(r));
    REQUIRE(back.step == i);
    REQUIRE(back.tokens == r.tokens);
    REQUIRE(same_bits(back.loss, r.loss));
    REQUIRE(same_bits(back.grad_norm, r.grad_norm));
    REQUIRE(same_bits(back.step_seconds, r.step_seconds));
    REQUIRE(same_bits(*back.mfu, *r.mfu));
    REQUIRE(same_bits(back.time[base::LedgerPart::optimizer], r.time[base::LedgerPart::optimizer]));
  }
}

TEST_CASE("a step record has its loss scale, and whether gradients overflowed, where the loss is scaled") {
  StepRecord record;
  record.grad_norm = HUGE_VAL;
  record.skipped = true;
  record.loss_scale = 65536;
  record.overflow = true;
  const std::string line = to_json_line(record);
  CHECK(line.find(R"("grad_norm":null,)") != std::string::npos);
  CHECK(line.find(R"("skipped":true,"loss_scale":65536.0,"overflow":true,)") != std::string::npos);
  const StepRecord back = parse_step_record(line);
  CHECK(back.skipped);
  CHECK(back.loss_scale == 65536.0);
  CHECK(back.overflow);
  CHECK_FALSE(parse_step_record(kLine).loss_scale);
  CHECK_FALSE(parse_step_record(kLine).overflow);
}

TEST_CASE("a step record has the parts of what is minimised and the norms by group where there are some") {
  StepRecord record;
  record.step = 3;
  record.loss = 0.5;
  record.z_loss = 0.25;
  record.expert_balance = 0.75;
  record.expert_load = {1.5, 2};
  record.grad_norm = 1.5;
  record.grad_norms = {{"attention", 0.75}, {"mlp", std::nan("")}};
  const std::string line = to_json_line(record);
  CHECK(
      line.find(
          R"("loss":0.5,"z_loss":0.25,"expert_balance":0.75,"expert_load":[1.5,2.0],"grad_norm":1.5,"grad_norms":{"attention":0.75,"mlp":null},)") !=
      std::string::npos);
  const StepRecord back = parse_step_record(line);
  CHECK(back.z_loss == 0.25);
  CHECK(back.expert_balance == 0.75);
  CHECK(back.expert_load == record.expert_load);
  REQUIRE(back.grad_norms.size() == 2);
  CHECK(back.grad_norms[0] == record.grad_norms[0]);
  CHECK(std::isnan(back.grad_norms[1].second));
  CHECK_FALSE(parse_step_record(kLine).z_loss);
  CHECK_FALSE(parse_step_record(kLine).expert_balance);
  CHECK(parse_step_record(kLine).expert_load.empty());
  CHECK(parse_step_record(kLine).grad_norms.empty());

  StepRecord pairs;
  pairs.rewards = PairRewards{.margin = 1.5, .accuracy = 0.75, .chosen = 0.5, .rejected = -1};
  const std::string rewards = to_json_line(pairs);
  CHECK(
      rewards.find(R"("rewards":{"margin":1.5,"accuracy":0.75,"chosen":0.5,"rejected":-1.0},"grad_norm")") !=
      std::string::npos);
  CHECK(parse_step_record(rewards).rewards == pairs.rewards);
  CHECK_FALSE(back.rewards);
}

TEST_CASE("a step record is one line of the documented names") {
  const StepRecord record{.step = 3,
                          .tokens = 4096,
                          .loss = 0.1,
                          .grad_norm = 1.5,
                          .learning_rate = 0.001,
                          .step_seconds = 0.25,
                          .tokens_per_second = 5461.5,
                          .mfu = 0.5,
                          .time = {{base::LedgerPart::compute, 0.2},
                                   {base::LedgerPart::data_wait, 0.01},
                                   {base::LedgerPart::optimizer, 0.03},
                                   {base::LedgerPart::other, 0.01}}};
  CHECK(to_json_line(record) == kLine);
}

TEST_CASE("an unknown MFU is absent and a NaN loss is null") {
  StepRecord record;
  record.loss = std::nan("");
  const std::string line = to_json_line(record);
  CHECK(line.find("mfu") == std::string::npos);
  CHECK(line.find("\"loss\":null") != std::string::npos);
  CHECK_FALSE(parse_step_record(line).mfu.has_value());
  CHECK(std::isnan(parse_step_record(line).loss));
}

TEST_CASE("a step that updated nothing is marked, and no other") {
  StepRecord record;
  CHECK(to_json_line(record).find("skipped") == std::string::npos);
  CHECK_FALSE(parse_step_record(to_json_line(record)).skipped);
  record.skipped = true;
  std::string line = to_json_line(record);
  CHECK(line.find("\"skipped\":true") != std::string::npos);
  CHECK(parse_step_record(line).skipped);
  CHECK_THROWS_AS(parse_step_record(line.replace(line.find(":true"), 5, ":\"no\"")), DataError);
}

TEST_CASE("an evaluation says of which weights it is, and of pairs what they prefer in place of perplexity") {
  EvaluationRecord plain{.step = 3, .loss = 0.5, .tokens = 7};
  const std::string line = to_json_line(EventRecord(plain));
  CHECK(line.find("\"perplexity\"") != std::string::npos);
  CHECK(line.find("weights") == std::string::npos);
  CHECK(line.find("rewards") == std::string::npos);
  EvaluationRecord pairs = plain;
  pairs.averaged = true;
  pairs.rewards = PairRewards{.margin = 0.25, .accuracy = 0.75, .chosen = 0.5, .rejected = 0.25};
  pairs.sets = {{.set = "a", .loss = 0.5, .tokens = 7, .rewards = pairs.rewards}};
  const std::string text = to_json_line(EventRecord(pairs));
  CHECK(text.find("\"weights\":\"averages\"") != std::string::npos);
  CHECK(text.find("perplexity") == std::string::npos);
  const auto back = std::get<EvaluationRecord>(parse_event_record(text));
  CHECK(back.averaged);
  CHECK(back.rewards == pairs.rewards);
  REQUIRE(back.sets.size() == 1);
  CHECK(back.sets[0].rewards == pairs.rewards);
  CHECK_FALSE(std::get<EvaluationRecord>(parse_event_record(line)).averaged);
}

TEST_CASE("text that is not a step record is a data error") {
  const std::string line = kLine;
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string("[1]"), line.substr(0, line.size() - 1), line + line,
        std::string("{\"step\":\"3\"") + line.substr(9), "{\"step\":3.5" + line.substr(9)})
    CHECK_THROWS_AS(parse_step_record(text), DataError);
}

base::TimeLedger powers_of_two() {
  base::TimeLedger ledger;
  double seconds = 1;
  for (const base::LedgerPartInfo& part : base::kLedgerParts) ledger[part.part] = seconds, seconds *= 2;
  return ledger;
}

TEST_CASE("the ledger's parts add up to its sum") {
  const base::TimeLedger ledger = powers_of_two();
  CHECK(ledger.sum() == 8191);
  CHECK(std::string(info(base::LedgerPart::data_wait).name) == "data_wait");
  CHECK(ledger[base::LedgerPart::data_wait] == 512);
}

TEST_CASE("every part of the ledger comes back under its own name") {
  StepRecord record;
  record.time = powers_of_two();
  const base::TimeLedger back = parse_step_record(to_json_line(record)).time;
  for (const base::LedgerPartInfo& part : base::kLedgerParts)
    CHECK(back[part.part] == record.time[part.part]);
}

TEST_CASE("a line with one communication figure for all axes is still read, and its ledger sums") {
  std::string line = kLine;
  const std::string now =
      R"("exposed_tp":0.0,"exposed_cp":0.0,"exposed_ep":0.0,"exposed_dp":0.0,"exposed_pp":0.0,"exposed_world":0.0,"exposed_host":0.0)";
  const std::size_t at = line.find(now);
  REQUIRE(at != std::string::npos);
  line.replace(at, now.size(), R"("exposed_communication":0.125)");
  const base::TimeLedger ledger = parse_step_record(line).time;
  CHECK(ledger[base::LedgerPart::exposed_dp] == 0.125);
  CHECK(ledger.sum() == Approx(0.375));
  line.replace(line.find("exposed_communication"), 21, "exposed_dp");
  CHECK_THROWS_AS(parse_step_record(line), DataError);  // a new line must have every axis
}

TEST_CASE("a line from before offloaded parameters is still read") {
  std::string line = kLine;
  const std::string part = R"("exposed_host":0.0,)";
  line.erase(line.find(part), part.size());
  CHECK(parse_step_record(line).time[base::LedgerPart::exposed_host] == 0);
}

TEST_CASE("a line from before context and expert parallelism is still read") {
  std::string line = kLine;
  const std::string part = R"("exposed_cp":0.0,"exposed_ep":0.0,)";
  line.erase(line.find(part), part.size());
  const base::TimeLedger ledger = parse_step_record(line).time;
  CHECK(ledger[base::LedgerPart::exposed_cp] == 0);
  CHECK(ledger[base::LedgerPart::exposed_ep] == 0);
  CHECK(ledger.sum() == Approx(0.25));
}

TEST_CASE("a run's tokens are those of its stages of smaller batches and of the steps that follow") {
  io::RunInfo info;
  info.steps = 10, info.tokens_per_step = 8;
  CHECK(info.tokens_through(3) == 24);
  CHECK(info.work(4, 10) == 6);
  info.ramp = {{2, 1}, {3, 4}};
  for (const auto& [step, tokens] : {std::pair{0, 0}, {1, 1}, {2, 2}, {3, 6}, {5, 14}, {6, 22}, {10, 54}})
    CHECK(info.tokens_through(step) == tokens);
  CHECK(info.work(4, 10) == 44);
  info.start_step = 5, info.start_tokens = 20;  // of other batches
  CHECK(info.total_tokens() == 60);
}

TEST_CASE("numbers are written for people") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1000) == "1,000");
  CHECK(with_commas(-1234567) == "-1,234,567");
  CHECK(short_number(10423000) == "10.4M");
  CHECK(short_number(9120) == "9.12k");
  CHECK(short_number(999.6) == "1.00k");
  CHECK(short_number(42) == "42");
  CHECK(with_unit(5.74e11, "FLOP/s") == "574 GFLOP/s");
  CHECK(with_unit(12, "B") == "12 B");
  CHECK(short_bytes(512) == "512 B");
  CHECK(short_bytes(4089446) == "3.90 MiB");
  CHECK(short_duration(0.85) == "850 ms");
  CHECK(short_duration(12.34) == "12.3 s");
  CHECK(short_duration(59.96) == "1m00s");
  CHECK(short_duration(245) == "4m05s");
  CHECK(short_duration(7620) == "2h07m");
  CHECK(short_duration(3 * 86400 + 4 * 3600) == "3d04h");
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 2, 3}) == 2.5);
}

TEST_CASE("durations are read as people write them, and written back so that they read the same") {
  CHECK(parse_duration("30s") == 30);
  CHECK(parse_duration("10m") == 600);
  CHECK(parse_duration("2h") == 7200);
  CHECK(parse_duration("1d") == 86400);
  CHECK(parse_duration("250ms") == 0.25);
  CHECK(parse_duration("1.5h") == 5400);
  CHECK(parse_duration("3h50m") == 13800);
  CHECK(parse_duration("0s") == 0);
  for (const std::string text : {"", "10", "m", "10 m", "-5s", "+5s", "5s5s", "50m3h", "1e3s", "infs", "nans",
                                 "1.2.3s", "10x", ".s"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_duration(text).has_value());
  }
  CHECK(duration_text(600) == "10m");
  CHECK(duration_text(5400) == "1h30m");
  CHECK(duration_text(2.5) == "2.5s");
  CHECK(duration_text(0) == "0s");
  CHECK(duration_text(1e-6) == "0.000001s");
  for (const double seconds : {0.001, 0.1, 59.9, 61.0, 86399.999, 1e6 / 3})
    CHECK(parse_duration(duration_text(seconds)) == seconds);
}
