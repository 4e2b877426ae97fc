#include "io/top/frame.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "io/top/plot.h"

namespace base = trainerd::base;
using namespace trainerd::io;

namespace {

RunStatus shown_status(std::int64_t ranks) {
  RunStatus s;
  s.info.name = "shown";
  s.info.steps = 2000;
  s.info.layout = "tp2 pp1 dp4 on 8 CPU ranks";
  s.info.host = "node17";
  s.now = 1700000000;
  s.state = RunState::training;
  s.step = 500;
  s.last = StepRecord{.step = 500, .loss = 2.25, .tokens_per_second = 13700, .mfu = 0.41, .time = {}};
  s.eta_seconds = 465;
  s.recent_steps = 64;
  s.recent_time[0] = 0.2;
  s.recent_time[1] = 0.05;
  s.recent_time[9] = 0.01;
  for (std::int64_t n = 0; n < 100; ++n) {
    StepBucket b;
    b.first_step = 5 * n + 1;
    b.last_step = 5 * n + 5;
    b.steps = 5;
    b.loss.add(2 + 4 / std::sqrt(static_cast<double>(n + 1)));
    s.series.push_back(b);
  }
  s.ranks.assign(static_cast<std::size_t>(ranks), {.state = RankState::training});
  if (ranks > 3) s.ranks[3].state = RankState::dead;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    RankStatus& r = s.ranks[static_cast<std::size_t>(rank)];
    r.doing = "forward of microbatch " + std::to_string(rank) + " of step 501";
    r.last = "all_gather #7 'parameters' of dp, done";
    r.doing_at = s.now - (rank == 6 ? 42 : 1);
  }
  s.memory_planned_bytes = 512 << 20;
  s.memory_used_bytes = 384 << 20;
  for (int n = 0; n < 40; ++n)
    s.events.push_back({1700000000.0 - n, n, n == 39 ? "warning" : "checkpoint",
                        n == 39 ? "a \033[31mlog\r may hold anything" : "118 MiB in 0.9 s"});
  return s;
}

std::string joined(const std::vector<std::string>& lines) {
  return std::accumulate(lines.begin(), lines.end(), std::string(),
                         [](std::string all, const std::string& line) { return all + line + "\n"; });
}

bool shows(const std::vector<std::string>& lines, const std::string& text) {
  return joined(lines).find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("a frame is never wider or higher than the terminal, whatever its size") {
  for (const std::int64_t ranks : {0, 1, 8, 3000})
    for (std::size_t columns = 1; columns <= 200; columns += columns < 40 ? 1 : 7)
      for (const std::size_t rows : {1, 5, 24, 60}) {
        const auto lines = top_frame(shown_status(ranks), {.columns = columns, .rows = rows});
        INFO(columns << " x " << rows << ", " << ranks << " ranks");
        REQUIRE(lines.size() <= rows);
        for (const std::string& line : lines) REQUIRE(columns_of(line) <= columns);
      }
}

TEST_CASE("at 80 columns the frame has each section below the other, at 120 two beside each other") {
  const auto narrow = top_frame(shown_status(8), {.columns = 80, .rows = 40});
  for (const char* text : {"shown",
                           "training",
                           "step 500/2,000  25%",
                           "ETA 7m45s",
                           "loss 2.2500",
                           "13.7k",
                           "MFU 41.0%",
                           "tp2 pp1 dp4",
                           "compute",
                           "76.9%",
                           "exposed tp",
                           "data wait",
                           "── ranks and memory",
                           "384 MiB of 512 MiB planned (75.0%)",
                           "7 training",
                           "1 dead",
                           "■■■✗■■■■",
                           "rank 0  forward of microbatch 0 of step 501; last all_gather #7",
                           "rank 6  42.0 s in forward of microbatch 6 of step 501",
                           "── events",
                           "118 MiB in 0.9 s",
                           "22:13:20 UTC"}) {
    INFO(text);
    CHECK(shows(narrow, text));
  }
  const auto both_on_a_line = [](const std::vector<std::string>& lines) {
    return std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
      return line.find("time of a step") != std::string::npos &&
             line.find("ranks and memory") != std::string::npos;
    });
  };
  CHECK_FALSE(both_on_a_line(narrow));
  CHECK(both_on_a_line(top_frame(shown_status(8), {.columns = 120, .rows = 40})));
}

TEST_CASE("the frame of 24 rows still shows loss, time, memory and the latest event") {
  const auto lines = top_frame(shown_status(8), {.columns = 80, .rows = 24});
  CHECK(lines.size() == 24);
  for (const char* text : {"loss", "compute", "384 MiB", "warning"}) {
    INFO(text);
    CHECK(shows(lines, text));
  }
}

TEST_CASE("parts of the ledger without a line of their own are shown as one") {
  RunStatus s = shown_status(8);
  s.recent_time = {0.5, 0.2, 0, 0, 0.1, 0, 0, 0, 0.08, 0.07, 0.05, 0, 0};
  const auto low = top_frame(s, {.columns = 80, .rows = 24});
  for (const char* text :
       {"compute        50.0%", "exposed tp     20.0%", "exposed dp     10.0%", "other parts    20.0%"}) {
    INFO(text);
    CHECK(shows(low, text));
  }
  CHECK_FALSE(shows(low, "optimizer"));
  const auto high = top_frame(s, {.columns = 80, .rows = 40});
  CHECK(shows(high, "optimizer       5.0%"));
  CHECK_FALSE(shows(high, "other parts"));
}

TEST_CASE("bars of the ledger begin in the same column, however long the times are") {
  RunStatus s = shown_status(8);
  s.recent_time = {0.5e-3, 0.2e-3, 0, 0, 0.00541e-3, 0, 0, 0, 0.08e-3, 0, 0, 0, 0};
  std::set<std::size_t> begins;
  for (const std::string& line : top_frame(s, {.columns = 80, .rows = 40}))
    if (line.starts_with("compute") || line.starts_with("exposed") || line.starts_with("optimizer"))
      begins.insert(line.find("\xe2\x96"));  // block elements
  CHECK(begins.size() == 1);
}

TEST_CASE("without colours a frame has no control sequence, and with them none of a log's own") {
  const std::string plain = joined(top_frame(shown_status(8), {.columns = 100, .rows = 50}));
  CHECK(plain.find('\033') == std::string::npos);
  CHECK(plain.find('\r') == std::string::npos);
  const std::string colored =
      joined(top_frame(shown_status(8), {.columns = 100, .rows = 50, .colors = Line::Colors::ansi}));
  CHECK(colored.find("\033[32m") != std::string::npos);
  CHECK(colored.find("\033[31mlog") == std::string::npos);
}

TEST_CASE("a run of which little is known has a frame too") {
  RunStatus empty;
  empty.info.name = "new";
  const auto lines =
      top_frame(empty, {.columns = 80, .rows = 24, .no_ranks = "the ranks are not known: no answer"});
  CHECK(shows(lines, "new  starting"));
  CHECK(shows(lines, "step 0"));
  CHECK_FALSE(shows(lines, "ETA"));
  RunStatus failed = shown_status(0);
  failed.state = RunState::failed;
  failed.outcome = "rank 1 ended by SIGKILL";
  failed.eta_seconds.reset();
  const auto ended = top_frame(failed, {.columns = 80, .rows = 40, .warning = "as of 12.0 s ago"});
  CHECK(shows(ended, "failed  rank 1 ended by SIGKILL"));
  CHECK(shows(ended, "as of 12.0 s ago"));
  CHECK_FALSE(shows(ended, "ETA"));
}

TEST_CASE("a curve in braille dots reaches from its highest to its lowest value") {
  const auto lines = braille_plot({4, 3, 2, 1}, 1, 4, 2, 1);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "⠑⢄");  // dots 1 and 5, dots 3 (7 down from it) and 8
  CHECK(braille_plot({}, 0, 1, 3, 2) == std::vector<std::string>{"   ", "   "});
  const double gap = std::nan("");
  CHECK(braille_plot({gap, gap}, 0, 1, 1, 1) == std::vector<std::string>{" "});
  CHECK(columns_of(braille_plot({1, 2, 3}, 1, 3, 30, 4)[2]) == 30);
}

TEST_CASE("a bar is filled in eighths of a cell") {
  CHECK(bar(0, 10).empty());
  CHECK(bar(0.5, 3) == "█▌");
  CHECK(bar(1, 4) == "████");
  CHECK(bar(7, 2) == "██");
  CHECK(bar(std::nan(""), 2).empty());
}

TEST_CASE("a line is cut at its width by characters, not bytes") {
  CHECK(cut_to("grüße", 5) == "grüße");
  CHECK(cut_to("grüße", 4) == "grü…");
  Line line(6, Line::Colors::none);
  line.add("äö").add("xyzuvw").add("more");
  CHECK(line.used() == 6);
  CHECK(line.text() == "äöxyz…");
}
