#include "core/plan/goodput/failure_scenario.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/plan/goodput/goodput_report.h"
#include "tests/core/spec/spec_test_support.h"

namespace trainerd::core {
namespace {

constexpr double kSecondsOfDay = 24 * 3600;

/// 405B parameters on 16,384 H100, as Llama 3 was trained: tp 8, pp 16, dp 128.
job::JobSpec llama3_405b(const std::vector<std::string>& overrides = {}) {
  return spec::parse_job(
      "name: llama-3-405b\nsteps: 1000\nmodel: {preset: llama-3-405b, seq_len: 8192}\n"
      "batch: {global: 2048, micro: 1}\nparallel: {tp: 8, pp: 16, dp: 128}\ndata: {format: synthetic}\n"
      "checkpoint: {every: 0, async: false}\ncluster: {preset: dgx-h100}\n",
      "job.yaml", overrides);
}

// Master weights, two moments and bf16 weights; 16 M tokens at 400 TFLOP/s a device (the paper's table 4).
const plan::RunFigures kFigures{.step_seconds = 6.2, .checkpoint_bytes = 405.85e9 * 14};

std::string refusal(const job::JobSpec& job, const std::vector<std::string>& overrides,
                    const plan::RunFigures& figures) {
  try {
    plan::failure_scenario(job, plan::job_failures(job, overrides), figures);
  } catch (const base::SpecError& e) {
    return e.what();
  }
  return "accepted";
}

TEST_CASE("Llama 3's interruptions match its paper", "[goodput]") {
  const job::JobSpec job = llama3_405b();
  const plan::FailureScenario s = plan::failure_scenario(job, plan::job_failures(job, {}), kFigures);
  CHECK(s.nodes == 2048);
  CHECK(plan::failures_per_second(s) * 54 * kSecondsOfDay == Approx(419).margin(0.05));
  CHECK(s.planned_per_second * 54 * kSecondsOfDay == Approx(47).margin(0.05));
  const auto in_54_days = [&](const std::string& name) {
    for (const plan::FailureKind& kind : s.kinds)
      if (kind.name == name) return kind.per_node_second * 2048 * 54 * kSecondsOfDay;
    return 0.0;
  };
  CHECK(in_54_days("gpu_memory") == Approx(72).margin(0.05));
  CHECK(in_54_days("software") == Approx(63).margin(0.05));
}

TEST_CASE("Llama 3's inputs predict at least the effective training time that its paper gives", "[goodput]") {
  const job::JobSpec job = llama3_405b();
  const plan::FailureScenario s = plan::failure_scenario(job, plan::job_failures(job, {}), kFigures);
  const plan::GoodputReport report =
      plan::make_goodput_report(job.name, "dgx-h100", 16384, s, {.weeks = 54.0 / 7, .runs = 100, .seed = 1});
  CHECK(report.closed_form.caveat.empty());
  CHECK(report.closed_form.shares.useful > 0.90);
  CHECK(report.simulated.mean_low > 0.90);
  CHECK(report.closed_form.shares.useful == Approx(report.simulated.shares.useful).margin(0.01));
  CHECK(report.simulated.interruptions_per_run == Approx(419).epsilon(0.02));
  // Detection takes 600 s per failure, and there are 419 failures in 54 days.
  CHECK(report.closed_form.shares.detection == Approx(600 * 419 / (54 * kSecondsOfDay)).epsilon(0.1));

  const nlohmann::json json = nlohmann::json::parse(plan::goodput_json(report));
  CHECK(json["goodput"] == report.simulated.shares.useful);
  double sum = 0;
  for (const auto& [name, share] : json["closed_form"].items()) sum += share.get<double>();
  CHECK(sum == Approx(1).epsilon(1e-9));
  CHECK(json["interruptions"].size() == 5);
  CHECK(json["checkpoints"][0]["optimum"] == true);
  const std::string text = plan::goodput_text(report);
  CHECK(text.find("llama-3-405b: 16384 devices on 2048 nodes of dgx-h100, an unexpected interruption every "
                  "3.09 h\n") == 0);
  CHECK(text.find("    gpu_memory        1.333   storage\n") != std::string::npos);
}

TEST_CASE("all missing inputs are reported together", "[goodput]") {
  const job::JobSpec job = llama3_405b({"cluster.preset=dgx-b200", "checkpoint.async=true"});
  CHECK(refusal(job, {}, {}) ==
        "cluster.failures: dgx-b200 has no rates: give one, for example --set "
        "cluster.failures.host_per_1000_node_days=4\n"
        "--step-seconds: is required: the time of one step; or add --calibrate, or name a cluster with "
        "operator rates\n"
        "cluster.failures.detection_seconds: is required: until a failure is acted on; give it in the "
        "cluster file or with --set\n"
        "cluster.failures.restart_seconds: is required: processes and communicators, up to the restore; give "
        "it in the cluster "
        "file or with --set\n"
        "--save-seconds: is required with checkpoint.async: true: the checkpoint stall of its snapshot\n"
        "--checkpoint-bytes and cluster.failures.storage.gb_per_second: are required, for the time that "
        "storage takes to write a "
        "checkpoint\n"
        "--checkpoint-bytes and cluster.failures.storage.gb_per_second: are required, for the time that "
        "storage takes to read a "
        "checkpoint; or set cluster.failures.storage.restore_seconds");
}

TEST_CASE("failures can be set beside the cluster's file, and are checked like it", "[goodput]") {
  const job::JobSpec job = llama3_405b();
  const spec::FailureSpec spec = plan::job_failures(
      job, {"cluster.failures.spares=7", "cluster.failures.partner={save_seconds: 2, restore_seconds: 9}"});
  CHECK(spec.spares == 7);
  CHECK(spec.partner.save_seconds == 2);
  CHECK(spec.detection_seconds == 600);
  CHECK(refusal(job, {"cluster.failures.spare=7"}, kFigures) ==
        "--set cluster.failures.spare=7: cluster.failures.spare: unknown key (nearest valid: spares)");
  CHECK(refusal(job, {"cluster.failures.spares=-1"}, kFigures) ==
        "--set cluster.failures.spares=-1: cluster.failures.spares: must be at least 0, got '-1' (nearest "
        "valid: 0)");
  CHECK(refusal(job, {"cluster.failures.partner.save_seconds=2"}, kFigures) ==
        "cluster.failures.partner.restore_seconds: is required: from that copy; give it in the cluster file "
        "or with --set");
  CHECK(refusal(job, {"cluster.failures.min_replicas=129"}, kFigures) ==
        "cluster.failures.min_replicas: 129 are more than the job's dp (nearest valid: 128)");
  // The local machine has no cluster file: all values come from overrides.
  const spec::FailureSpec local = plan::job_failures(spec::parse_job(kJob, "job.yaml"),
                                                     {"cluster.failures.software_per_1000_node_days=3"});
  CHECK(local.software == 3);
}

TEST_CASE("an elastic job drops the replica of a lost node, whose other nodes stand in for the next",
          "[goodput]") {
  const job::JobSpec job = llama3_405b();  // a replica is 128 devices: 16 nodes
  const std::vector<std::string> elastic{"cluster.failures.elastic=true",
                                         "cluster.failures.min_replicas=126"};
  const plan::FailureScenario s = plan::failure_scenario(job, plan::job_failures(job, elastic), kFigures);
  REQUIRE(s.speed_by_missing.size() == 33);
  CHECK(s.speed_by_missing[1] == 127.0 / 128);
  CHECK(s.speed_by_missing[16] == 127.0 / 128);
  CHECK(s.speed_by_missing[17] == 126.0 / 128);
  // A node holds two replicas of four devices: its loss takes both.
  const job::JobSpec small = llama3_405b({"parallel.tp=4", "parallel.pp=1", "parallel.dp=8"});
  const plan::FailureScenario t =
      plan::failure_scenario(small, plan::job_failures(small, {"cluster.failures.elastic=true"}), kFigures);
  CHECK(t.nodes == 4);
  CHECK(t.speed_by_missing == std::vector<double>{1, 0.75, 0.5, 0.25});
  // Ranks that share experts stay together: two groups of four replicas, or one.
  const job::JobSpec shared = spec::parse_job(
      "steps: 1000\nmodel: {preset: mixtral-8x7b}\nbatch: {global: 64, micro: 1}\n"
      "parallel: {tp: 8, dp: 8, ep: 4}\ndata: {format: synthetic}\n"
      "checkpoint: {every: 0, async: false}\ncluster: {preset: dgx-h100}\n",
      "job.yaml");
  const plan::FailureScenario e =
      plan::failure_scenario(shared, plan::job_failures(shared, {"cluster.failures.elastic=true"}), kFigures);
  CHECK(e.speed_by_missing == std::vector<double>{1, 0.5, 0.5, 0.5, 0.5});
  // With replan, all remaining devices take part.
  const plan::FailureScenario u = plan::failure_scenario(
      job, plan::job_failures(job, {"cluster.failures.elastic={replan: true}"}), kFigures);
  CHECK(u.speed_by_missing.size() == 2048);
  CHECK(u.speed_by_missing[1] == 2047.0 / 2048);
  CHECK(u.speed_by_missing.back() == 1.0 / 2048);
}

TEST_CASE("storage saves at the job's cadence, in the foreground or in the background", "[goodput]") {
  const job::JobSpec sync = llama3_405b({"checkpoint.every=50"});
  const plan::FailureScenario s = plan::failure_scenario(sync, plan::job_failures(sync, {}), kFigures);
  CHECK(s.tiers.back().every_steps == 50);
  CHECK(s.tiers.back().save_seconds == Approx(405.85e9 * 14 / 2e12));
  CHECK(s.tiers.back().write_seconds == 0);
  // A duration is the nearest number of steps, and with copies in memory every few steps a multiple of those.
  const auto storage_steps = [](const std::vector<std::string>& job_keys,
                                const std::vector<std::string>& cluster_keys) {
    const job::JobSpec job = llama3_405b(job_keys);
    return plan::failure_scenario(job, plan::job_failures(job, cluster_keys), kFigures)
        .tiers.back()
        .every_steps;
  };
  CHECK(storage_steps({"checkpoint.every=10m"}, {}) == 97);  // 600 s / 6.2 s = 96.8
  CHECK(storage_steps({"checkpoint.every=10m"},
                      {"cluster.failures.memory={save_seconds: 1, restore_seconds: 2, every_steps: 10}"}) ==
        100);
  CHECK(storage_steps({"checkpoint.every=1s"}, {}) == 1);
  const job::JobSpec async = llama3_405b({"checkpoint.async=true"});
  plan::RunFigures figures = kFigures;
  figures.save_seconds = 0.5;
  const plan::FailureScenario a = plan::failure_scenario(async, plan::job_failures(async, {}), figures);
  CHECK(a.tiers.back().save_seconds == 0.5);
  CHECK(a.tiers.back().write_seconds == Approx(405.85e9 * 14 / 2e12));
  CHECK(a.tiers.back().restore_seconds == Approx(405.85e9 * 14 / 2e12));
}

}  // namespace
}  // namespace trainerd::core
