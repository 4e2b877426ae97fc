#include "spec_test_support.h"

namespace trainerd::core {
namespace {

TEST_CASE("faults are read, kept in the resolved job, and refused without allow", "[spec][faults]") {
  const std::string faults =
      "faults: {allow: true, inject: [{kind: slow, step: 3, steps: 4, factor: 2.5}, {kind: flip_gradient, "
      "step: 20, "
      "tensor: w, element: 7, bit: 30}], random: {rate: 0.25, seed: 9, kinds: [kill, hang]}}\n";
  const job::JobSpec job = spec::parse_job(kJob + faults, "job.yaml");
  REQUIRE(job.faults.inject.size() == 2);
  CHECK(job.faults.allow);
  CHECK(job.faults.inject[0] ==
        job::Fault{.kind = job::FaultKind::slow, .step = 3, .steps = 4, .factor = 2.5});
  CHECK(
      job.faults.inject[1] ==
      job::Fault{.kind = job::FaultKind::flip_gradient, .step = 20, .tensor = "w", .element = 7, .bit = 30});
  CHECK(job.faults.random == job::RandomFaults{.seed = 9, .rate = 0.25, .kinds = {"kill", "hang"}});
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml").faults == job.faults);
  // A required key is written even if its value is the default of an empty entry.
  const job::JobSpec plain =
      spec::parse_job(kJob + "faults: {allow: true, inject: [{kind: kill, step: 3}]}\n", "job.yaml");
  CHECK(spec::parse_job(spec::to_yaml(plain), "resolved.yaml").faults == plain.faults);
  CHECK(with_line("faults: {inject: [{kind: kill, step: 3}]}")
            .at(0)
            .find("faults.allow: is false, and faults are given: set it to true") != std::string::npos);
  CHECK(with_line("faults: {allow: false, random: {rate: 0.5}}").size() == 1);
  CHECK(with_line("faults: {allow: true}").empty());
}

TEST_CASE("temporary faults of an agent are read with their seconds", "[spec][faults]") {
  const job::JobSpec job = spec::parse_job(
      kJob +
          "faults: {allow: true, inject: [{kind: fill_disk, step: 3, seconds: 0.5}, {kind: fill_disk, step: "
          "4}]}\n",
      "job.yaml");
  CHECK(job.faults.inject.at(0) == job::Fault{.kind = job::FaultKind::fill_disk, .step = 3, .seconds = 0.5});
  CHECK(job.faults.inject.at(1).seconds == 10);
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml").faults == job.faults);
}

TEST_CASE("problems of a fault are reported at its place", "[spec][faults]") {
  const auto wrong = [](const std::string& entry) {
    const Lines lines = with_line("faults: {allow: true, inject: [" + entry + "]}");
    REQUIRE(lines.size() == 1);
    return lines[0].substr(lines[0].find("faults.inject"));
  };
  CHECK(wrong("{kind: kill, step: 21}") ==
        "faults.inject[0].step: step 21 is after the last one (nearest valid: 20)");
  CHECK(wrong("{kind: kill, step: 2, rank: 1}") ==
        "faults.inject[0].rank: rank 1 is none of the job's 1 (nearest valid: 0)");
  CHECK(wrong("{kind: kill, step: 2, factor: 3}") ==
        "faults.inject[0].factor: has no effect on a fault of kind kill");
  CHECK(wrong("{kind: slow, step: 2, bit: 3}") ==
        "faults.inject[0].bit: has no effect on a fault of kind slow");
  CHECK(wrong("{kind: flip_checkpoint, step: 2, tensor: w}") ==
        "faults.inject[0].tensor: has no effect on a fault of kind flip_checkpoint");
  CHECK(wrong("{kind: flip_parameter, step: 2, times: 3}") ==
        "faults.inject[0].times: has no effect on a fault of kind flip_parameter");
  CHECK(wrong("{kind: kill, step: 2, seconds: 3}") ==
        "faults.inject[0].seconds: has no effect on a fault of kind kill");
  CHECK(wrong("{kind: kill, step: 2, xid: 31}") ==
        "faults.inject[0].xid: has no effect on a fault of kind kill");
  CHECK_THAT(wrong("{kind: device_error, step: 2, xid: 0}"), Catch::StartsWith("faults.inject[0].xid: "));
  CHECK(wrong("{kind: flip_message, step: 2}") ==
        "faults.inject[0].kind: flip_message: a job of one rank sends no messages");
  CHECK(wrong("{kind: reset_link, step: 2}") ==
        "faults.inject[0].kind: reset_link: a job of one rank has no connections to close");
  CHECK(wrong("{kind: drop_link, step: 2}") ==
        "faults.inject[0].kind: drop_link: a job of one node has no link to drop");
  CHECK(wrong("{kind: fail_store, step: 2}") ==
        "faults.inject[0].kind: fail_store: the job has no durable tier (checkpoint.durable)");
  CHECK_THAT(with_line("faults: {allow: true, random: {rate: 0.1, kinds: [fill_disk, drop_link]}}").at(0),
             Catch::Contains("faults.random.kinds: drop_link: a job of one node has no link to drop"));
  CHECK_THAT(wrong("{kind: kil, step: 2}"), Catch::Contains("(nearest valid: kill)"));
  CHECK_THAT(wrong("{kind: kill}"), Catch::StartsWith("faults.inject[0].step: is required"));
  CHECK_THAT(with_line("faults: {allow: true, random: {rate: 0.1, kinds: [kill, melt]}}").at(0),
             Catch::Contains("faults.random.kinds: 'melt' is no kind: give of kill, crash, kill_agent, "));
  CHECK_THAT(with_line("faults: {allow: true, random: {seed: 3}}").at(0),
             Catch::Contains("faults.random.seed: has no effect: faults.random.rate is 0"));
}

}  // namespace
}  // namespace trainerd::core
