#include "core/run/stop/stop.h"

#include <catch2/catch.hpp>

#include "core/run/stop/time_limit.h"
#include "core/run/worker/evaluation.h"
#include "kernels/base/error.h"
#include "tests/core/spec/spec_test_support.h"

using namespace trainerd;
using namespace trainerd::core;

using Meaning = run::StopSignals::Meaning;

TEST_CASE("a repeated signal is the same request, however soon", "[stop]") {
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU}) {
    run::StopSignals signals;
    CHECK(signals.on_signal(signal, 5) == Meaning::stop);
    CHECK(signals.on_signal(signal, 5.001) == Meaning::same_request);
    CHECK(signals.on_signal(SIGTERM, 60) == Meaning::same_request);
    CHECK(run::stop_request(signal).exit_signal == SIGTERM);
  }
  CHECK(run::stop_request(SIGUSR2).reason == "SIGUSR2");
  CHECK(run::stop_request(SIGALRM).reason == "the time limit");
  CHECK(run::stop_request(SIGALRM).exit_signal == SIGTERM);
}

TEST_CASE("SIGQUIT stops at once, and so does a SIGINT one second after the first", "[stop]") {
  run::StopSignals quit;
  CHECK(quit.on_signal(SIGQUIT, 5) == Meaning::stop_at_once);
  run::StopSignals interrupt;
  CHECK(interrupt.on_signal(SIGINT, 5) == Meaning::stop);
  CHECK(interrupt.on_signal(SIGINT, 5.9) == Meaning::same_request);
  CHECK(interrupt.on_signal(SIGINT, 6) == Meaning::stop_at_once);
  run::StopSignals both;
  CHECK(both.on_signal(SIGTERM, 5) == Meaning::stop);
  CHECK(both.on_signal(SIGINT, 8) == Meaning::same_request);
  CHECK(both.on_signal(SIGINT, 9) == Meaning::stop_at_once);
  CHECK(run::stop_request(SIGINT).exit_signal == SIGINT);
}

TEST_CASE("a time limit leaves room for the steps until a vote and for the save", "[stop]") {
  run::TimeLimit limit({.deadline = 1000, .vote_steps = 2, .first_save_seconds = 10});
  CHECK(limit.stop_at(false) == Approx(1000 - 1.5 * 10 - 2));
  for (const double step : {4.0, 6.0, 5.0}) limit.add_step(step);
  CHECK(limit.stop_at(false) == Approx(1000 - 1.5 * (2 * 6 + 10) - 2));
  limit.add_save(3);  // replaces the guess
  CHECK(limit.stop_at(false) == Approx(1000 - 1.5 * (2 * 6 + 3) - 2));
  CHECK(limit.stop_at(true) == Approx(1000 - 1.5 * (2 * 6 + 6) - 2));
  limit.add_save(8);
  limit.add_save(1);
  for (int i = 0; i < 32; ++i) limit.add_step(1);
  CHECK(limit.stop_at(false) == Approx(1000 - 1.5 * (2 * 1 + 8) - 2));
}

TEST_CASE("an evaluation takes the requested batches, as far as the data has whole ones", "[stop]") {
  job::JobSpec job = spec::parse_job(core::kJob, "job.yaml", {"batch={global: 8, micro: 2}"});
  job.evaluate = {.every = 5, .batches = 4};
  CHECK(run::evaluation_batches(job, {}, 32) == 4);
  CHECK(run::evaluation_batches(job, {}, 31) == 3);
  CHECK(run::evaluation_batches(job, {}, 8) == 1);
  CHECK_THROWS_AS(run::evaluation_batches(job, {}, 7), base::DataError);
  const io::ValidationSet web{.name = "web", .path = {}, .batches = 2};
  CHECK(run::evaluation_batches(job, web, 32) == 2);
  CHECK_FALSE(run::fewer_batches_notice(job, web, 2));
  CHECK(run::fewer_batches_notice(job, web, 1)
            ->message.starts_with("data.valid_sets: web: evaluate.batches: 2 "));
  CHECK_THROWS_WITH(run::evaluation_batches(job, web, 7),
                    Catch::Contains("data.valid_sets: web: the validation"));
  job.steps = 12;
  CHECK((run::evaluation_due(job, 10) && run::evaluation_due(job, 12) && !run::evaluation_due(job, 11)));
  job.evaluate.every = 0;
  CHECK_FALSE(run::evaluation_due(job, 12));
}
