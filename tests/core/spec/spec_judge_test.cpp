#include "spec_test_support.h"

namespace trainerd::core {
namespace {

TEST_CASE("the judgement of steps is read and kept in the resolved job", "[spec][judge]") {
  const job::JobSpec job = spec::parse_job(
      kJob +
          "supervise: {verify: {every: 7}, spikes: {score: 12.5, window: 32, policy: [skip, retry], "
          "retries: 4, skips: 1}}\n",
      "job.yaml");
  CHECK(job.supervise.verify_every == 7);
  CHECK(
      job.supervise.spikes ==
      job::SpikesOptions{.score = 12.5, .window = 32, .policy = {"skip", "retry"}, .retries = 4, .skips = 1});
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml").supervise == job.supervise);
  CHECK(job.supervise.judges_steps());
  CHECK_FALSE(spec::parse_job(kJob, "job.yaml").supervise.judges_steps());
  const job::JobSpec back = spec::parse_job(
      kJob + "supervise: {spikes: {policy: rollback, data: skip, rollbacks: 1}}\n", "job.yaml");
  CHECK((back.supervise.spikes.data == job::RollbackData::skip && back.supervise.spikes.rollbacks == 1));
}

TEST_CASE("problems in the judgement of steps are reported at their key", "[spec][judge]") {
  const auto wrong = [](const std::string& entry) {
    const Lines lines = with_line("supervise: {" + entry + "}");
    REQUIRE(lines.size() == 1);
    return lines[0].substr(lines[0].find("supervise."));
  };
  CHECK(wrong("verify: {every: -1}") ==
        "supervise.verify.every: must be at least 0, got '-1' (nearest valid: 0)");
  CHECK(wrong("spikes: {policy: [retry, pray]}") ==
        "supervise.spikes.policy: 'pray' is no action: give of retry, skip, rollback");
  CHECK(wrong("spikes: {policy: [skip, skip]}") ==
        "supervise.spikes.policy: 'skip' is there twice: each action has a budget of its own");
  // Without a policy a spike is reported only.
  CHECK(with_line("supervise: {spikes: {score: 8, window: 32}}").empty());
  CHECK(wrong("spikes: {policy: [skip], window: 32}") ==
        "supervise.spikes.window: has no effect: supervise.spikes.score is 0: only what is not finite is a "
        "spike; leave it out");
  CHECK(wrong("spikes: {policy: [skip], score: 8, window: 15}") ==
        "supervise.spikes.window: must be at least 16, got '15' (nearest valid: 16)");
  CHECK(wrong("spikes: {policy: [skip], retries: 1}") ==
        "supervise.spikes.retries: has no effect: supervise.spikes.policy has no retry; leave it out");
  CHECK(wrong("spikes: {policy: [skip], skips: 0}") ==
        "supervise.spikes.skips: must be at least 1, got '0' (nearest valid: 1)");
  CHECK(wrong("spikes: {policy: [retry], data: skip}") ==
        "supervise.spikes.data: has no effect: supervise.spikes.policy has no rollback; leave it out");
}

}  // namespace
}  // namespace trainerd::core
