#include "io/runs/status.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "io/runs/history.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

namespace base = trainerd::base;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

RunStatus full_status() {
  RunHistory history;
  history.set_info({.name = "a \"b\"",
                    .output = "/runs/a",
                    .device = "cpu",
                    .threads = 2,
                    .parameters = 10,
                    .steps = 50,
                    .tokens_per_step = 64,
                    .flops_per_token = 6.5,
                    .peak_flops = 1e9,
                    .precision = "bf16",
                    .memory_planned_bytes = 30,
                    .memory_regions = {{"weights", 30}},
                    .memory_uses = {{"parameters", 10}, {"gradients", 20}},
                    .version = "1",
                    .adapters = "LoRA of rank 4",
                    .peak_measured = true});
  history.add(NoticeRecord{
      .kind = NoticeKind::start, .step = 0, .message = "begins", .details = {}, .wall_time = 10});
  for (std::int64_t rank = 0; rank < 3; ++rank) history.add(RankMemoryRecord{rank, 10 + rank, {}});
  history.add(RankStateRecord{.first = 0, .count = 2, .node = 0, .state = RankState::training});
  history.add(RankStateRecord{.first = 2, .count = 1, .node = 1, .state = RankState::dead});
  history.add(RankMemoryRecord{1, 11, 9});
  history.add(
      RankDoingRecord{
          .rank = 1, .doing = "forward of step 4", .last = "barrier #3 'x' of dp, done", .seconds = 2},
      19);
  for (std::int64_t n = 1; n <= 4; ++n)
    history.add(StepRecord{.step = n,
                           .tokens = n * 64,
                           .loss = n == 3 ? std::nan("") : 1.0 / static_cast<double>(n),
                           .grad_norm = 2,
                           .learning_rate = 1e-3,
                           .step_seconds = 0.25,
                           .tokens_per_second = 256,
                           .mfu = 0.5,
                           .time = {{base::LedgerPart::compute, 0.2}, {base::LedgerPart::other, 0.05}},
                           .wall_time = 10 + static_cast<double>(n)});
  history.add(EvaluationRecord{.step = 4, .loss = 0.3, .tokens = 5, .seconds = 1, .wall_time = 15});
  history.add(CheckpointRecord{.step = 4, .bytes = 100, .path = "p", .wall_time = 16});
  history.add(EvaluationProgress{.step = 4, .done = 1, .batches = 3});
  history.set_prediction({2, 3, {{PredictionTerm::Kind::step_seconds, "step_seconds", 0.2, 0.25, 0.25}}});
  return history.status(20);
}

}  // namespace

TEST_CASE("a status read back from its JSON is the same") {
  const RunStatus status = full_status();
  const std::string text = to_json(status);
  const RunStatus back = parse_run_status(text);
  CHECK(to_json(back) == text);
  CHECK(back.info.name == "a \"b\"");
  CHECK(back.state == RunState::evaluating);
  CHECK(back.step == 4);
  REQUIRE(back.ranks.size() == 3);
  CHECK(back.ranks[2].state == RankState::dead);
  CHECK(back.ranks[2].node == 1);
  CHECK(back.ranks[1].used_bytes == 9);
  CHECK_FALSE(back.ranks[0].used_bytes.has_value());
  CHECK(back.ranks[1].doing == "forward of step 4");
  CHECK(back.ranks[1].last == "barrier #3 'x' of dp, done");
  CHECK(back.ranks[1].doing_at == 17);
  CHECK(back.ranks[0].doing.empty());
  CHECK(back.memory_used_bytes == 9);
  CHECK(back.memory_planned_bytes == 11);  // only of ranks with a measurement
  CHECK(back.series.size() == 4);
  CHECK(back.series[2].loss.count == 0);
  CHECK(back.eta_seconds.value() == Approx(46));
  CHECK(back.evaluation->loss == 0.3);
}

TEST_CASE("what is no status is a data error that says what is wrong") {
  const std::string good = to_json(full_status());
  const auto error = [](const std::string& text) {
    return message_of<base::DataError>([&] { parse_run_status(text); });
  };
  CHECK(error("").find("not valid JSON") != std::string::npos);
  CHECK(error("[]").find("format") != std::string::npos);
  CHECK(error("{\"format\": 9}").find("another version") != std::string::npos);
  const auto changed = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  CHECK(error(changed("\"evaluating\"", "\"flying\"")).find("flying") != std::string::npos);
  CHECK(error(changed("\"state\":[2,2,4]", "\"state\":[2,2,9]")).find("rank's state") != std::string::npos);
  CHECK(error(changed("\"state\":[2,2,4]", "\"state\":[2,2]")).find("one length") != std::string::npos);
  CHECK(error(changed("\"steps\":[[1,1,1],", "\"steps\":[")).find("one length") != std::string::npos);
  CHECK(error(changed("\"began\"", "\"begun\"")).find("began") != std::string::npos);
}

TEST_CASE("a restart takes evaluations back, and its steps are drawn once") {
  RunHistory history;
  for (std::int64_t n = 1; n <= 6; ++n) history.add(StepRecord{.step = n, .loss = 9, .mfu = {}, .time = {}});
  history.add(EvaluationRecord{.step = 6, .loss = 1});
  history.restart({.step = 4, .tokens = 40});
  CHECK(history.status(1).step == 4);
  CHECK(history.evaluations().empty());
  for (std::int64_t n = 5; n <= 7; ++n) history.add(StepRecord{.step = n, .loss = 8, .mfu = {}, .time = {}});
  const RunStatus status = history.status(1);
  CHECK(status.series.size() == 7);
  CHECK(status.series[4].loss.mean() == 9);
  CHECK(status.step == 7);
}
