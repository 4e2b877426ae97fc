// The split of a run's wall time, with hand-computed values.

#include "io/records/wall_ledger.h"

#include <catch2/catch.hpp>

#include "io/records/records.h"

using namespace trainerd::io;

namespace {

using Begin = WallLedger::Begin;

/// Three steps of 2 s each after 5 s of startup, from 1000 on. The second includes half a second of saving.
WallLedger three_steps() {
  WallLedger ledger;
  ledger.begin(Begin::process, 1000, 0, 0, 0);
  ledger.step(1, 1007, 2, 0);
  ledger.step(2, 1009, 2, 0.5);
  ledger.step(3, 1011, 2, 0);
  return ledger;
}

}  // namespace

TEST_CASE("an undisturbed run's time is of its start, steps, saves and evaluations", "[wall]") {
  WallLedger ledger = three_steps();
  ledger.evaluation(1014, 2.5);
  ledger.step(4, 1017, 2.5, 0);
  ledger.end(1018);
  CHECK(ledger.seconds(WallPart::start) == Approx(5));
  CHECK(ledger.seconds(WallPart::useful) == Approx(8));
  CHECK(ledger.seconds(WallPart::save) == Approx(0.5));
  CHECK(ledger.seconds(WallPart::evaluate) == Approx(2.5));
  CHECK(ledger.seconds(WallPart::other) == Approx(0.5 + 0.5 + 1));
  CHECK(ledger.total() == Approx(18));
}

TEST_CASE("after a restart void steps are replay, and the time until the next step is separate", "[wall]") {
  WallLedger ledger = three_steps();
  // Step 4 was in progress. The workers restart after step 1 at 1016.
  ledger.begin(Begin::workers, 1016, 1, 1011, 4);
  ledger.step(2, 1021, 2, 0);
  CHECK(ledger.seconds(WallPart::replay) == Approx(1.5 + 2));
  CHECK(ledger.seconds(WallPart::detect) == Approx(5));
  CHECK(ledger.seconds(WallPart::restart) == Approx(3));
  CHECK(ledger.seconds(WallPart::useful) == Approx(2 + 2));
  CHECK(ledger.seconds(WallPart::save) == Approx(0.5));
  CHECK(ledger.total() == Approx(21));
}

TEST_CASE("the logs of an earlier process lack its void steps, and it is down until the next", "[wall]") {
  WallLedger ledger = three_steps();
  // The process did steps 4 and 5 until 1015, was killed, and restarted after step 3 at 1100.
  ledger.begin(Begin::process, 1100, 3, 1015, 4);
  ledger.step(4, 1110, 2, 0);
  CHECK(ledger.seconds(WallPart::replay) == Approx(4));
  CHECK(ledger.seconds(WallPart::down) == Approx(85));
  CHECK(ledger.seconds(WallPart::start) == Approx(5 + 8));
  CHECK(ledger.seconds(WallPart::detect) == 0);
  CHECK(ledger.total() == Approx(110));
  // After a recorded end the run counts as down.
  ledger.end(1112);
  ledger.begin(Begin::process, 1200, 4, 1110, 0);
  CHECK(ledger.seconds(WallPart::down) == Approx(85 + 88));
  CHECK(ledger.seconds(WallPart::other) == Approx(2));
  CHECK(ledger.total() == Approx(200));
}

TEST_CASE("notices tell of beginnings and ends, and of how long a start took", "[wall]") {
  WallLedger ledger;
  NoticeRecord notice{.kind = NoticeKind::start, .message = {}, .details = {}, .wall_time = 1004};
  notice.start_seconds = 4;
  add_to(ledger, notice);
  ledger.step(1, 1007, 2, 0);
  CHECK(ledger.seconds(WallPart::start) == Approx(5));
  notice = {.kind = NoticeKind::restart, .step = 0, .message = {}, .details = {}, .wall_time = 1008};
  notice.earlier = EarlierAttempt{.last_step = 1, .lost_seconds = 2, .wall_time = 1007};
  add_to(ledger, notice);
  add_to(ledger, {.kind = NoticeKind::warning, .message = {}, .details = {}, .wall_time = 1009});
  ledger.step(1, 1012, 2, 0);
  CHECK(ledger.seconds(WallPart::replay) == Approx(2));
  CHECK(ledger.seconds(WallPart::detect) == Approx(1));
  CHECK(ledger.seconds(WallPart::restart) == Approx(2));
  add_to(ledger, {.kind = NoticeKind::finish, .message = {}, .details = {}, .wall_time = 1013});
  CHECK(ledger.seconds(WallPart::other) == Approx(1));
  CHECK(ledger.total() == Approx(13));
}

TEST_CASE("a restart from before the newest checkpoint makes its steps void", "[wall]") {
  WallLedger ledger = three_steps();
  ledger.keep(2);
  ledger.begin(Begin::workers, 1012, 1, 1011, 4);
  CHECK(ledger.seconds(WallPart::replay) == Approx(3.5));
  CHECK(ledger.seconds(WallPart::useful) == Approx(2));
}

TEST_CASE("long runs forget steps that a checkpoint has", "[wall]") {
  std::deque<std::pair<std::int64_t, double>> steps;
  for (std::int64_t step = 1; step <= 70'000; ++step) steps.emplace_back(step, 1.0);
  forget_to(steps, 60'000);
  CHECK(steps.front().first == 70'000 - 65'536 + 1);
  forget_to(steps, 70'000);
  CHECK(steps.size() == 65'536);
}
