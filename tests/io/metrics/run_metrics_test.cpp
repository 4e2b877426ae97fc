// Metrics of a run, collected as a scrape or an export does.

#include "io/metrics/run_metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "kernels/base/clock.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;
using namespace trainerd::test;

namespace {

/// Maps "name{label=value,...}" to values of counters and gauges.
std::map<std::string, double> collected(const io::RunMetrics& metrics) {
  std::map<std::string, double> values;
  for (const auto& source : metrics.collectables())
    for (const prometheus::MetricFamily& family : source->Collect())
      for (const prometheus::ClientMetric& metric : family.metric) {
        std::string name = family.name;
        for (const auto& label : metric.label) name += "|" + label.name + "=" + label.value;
        values[name] =
            family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
      }
  return values;
}

io::RankStatusRecord status_of(std::int64_t rank, std::int64_t steps, double compute, double tp) {
  return {.rank = rank,
          .step = 100 + steps,
          .steps = steps,
          .step_seconds = 0.25,
          .time = {{base::LedgerPart::compute, compute}, {base::LedgerPart::exposed_tp, tp}},
          .memory_used_bytes = 900,
          .memory_planned_bytes = 1000,
          .resident_bytes = rank == 4 ? 5000 : 0,
          .reads = rank == 4 ? std::optional(io::ObjectReads{steps, 1, 2, 3, 4, 5}) : std::nullopt};
}

io::StepRecord step_of(std::int64_t step, double seconds, double checkpoint = 0) {
  return {.step = step,
          .tokens = step * 100,
          .step_seconds = seconds,
          .mfu = {},
          .time = {{base::LedgerPart::checkpoint, checkpoint}}};
}

/// A tree like the kernel's: zones by path, each with name, energy and range in microjoules.
struct FakePowercap {
  TempDir dir;
  void zone(const std::string& path, const std::string& name, const std::string& energy,
            const std::string& range = "1000000000") const {
    std::filesystem::create_directories(dir / path);
    write_file(dir / (path + "/name"), name + "\n");
    write_file(dir / (path + "/energy_uj"), energy + "\n");
    write_file(dir / (path + "/max_energy_range_uj"), range + "\n");
  }
};

std::ptrdiff_t energies(const std::map<std::string, double>& metrics) {
  return std::count_if(metrics.begin(), metrics.end(),
                       [](const auto& m) { return m.first.starts_with("trainerd_cpu_energy"); });
}

}  // namespace

TEST_CASE("each rank of a node has its own series, which a restart carries on", "[run_metrics]") {
  io::RunMetrics metrics("/nowhere");
  metrics.on_rank_status(status_of(4, 10, 2.0, 0.5));
  metrics.on_rank_status(status_of(5, 10, 3.0, 0.25));
  auto m = collected(metrics);
  CHECK(m.at("trainerd_rank_step|rank=4") == 110);
  CHECK(m.at("trainerd_rank_step_seconds|rank=5") == 0.25);
  CHECK(m.at("trainerd_rank_steps_total|rank=4") == 10);
  CHECK(m.at("trainerd_rank_time_seconds_total|part=compute|rank=4") == 2.0);
  CHECK(m.at("trainerd_rank_time_seconds_total|part=compute|rank=5") == 3.0);
  CHECK(m.at("trainerd_rank_time_seconds_total|axis=tp|part=exposed_communication|rank=5") == 0.25);
  CHECK(m.at("trainerd_rank_time_seconds_total|part=bubble|rank=5") == 0);
  CHECK(m.at("trainerd_rank_memory_used_bytes|rank=4") == 900);
  CHECK(m.at("trainerd_rank_memory_planned_bytes|rank=4") == 1000);
  CHECK(m.at("trainerd_rank_resident_bytes|rank=4") == 5000);
  CHECK_FALSE(m.contains("trainerd_rank_resident_bytes|rank=5"));  // unknown values are absent
  CHECK(m.at("trainerd_data_requests_total|rank=4") == 10);
  CHECK(m.at("trainerd_data_retries_total|rank=4") == 1);
  CHECK(m.at("trainerd_data_fetched_bytes_total|rank=4") == 2);
  CHECK(m.at("trainerd_data_cached_bytes_total|rank=4") == 3);
  CHECK(m.at("trainerd_data_cache_failures_total|rank=4") == 4);
  CHECK(m.at("trainerd_data_credentials_total|rank=4") == 5);
  CHECK_FALSE(m.contains("trainerd_data_requests_total|rank=5"));
  metrics.on_restart({.step = 105, .tokens = 0});
  metrics.on_rank_status(status_of(4, 3, 0.5, 0.125));
  m = collected(metrics);
  CHECK(m.at("trainerd_rank_steps_total|rank=4") == 13);
  CHECK(m.at("trainerd_data_requests_total|rank=4") == 13);
  CHECK(m.at("trainerd_rank_time_seconds_total|part=compute|rank=4") == 2.5);
  CHECK(m.at("trainerd_rank_step|rank=4") == 103);
}

TEST_CASE("FLOPs, attempts, lost seconds and goodput follow restarts and earlier attempts", "[run_metrics]") {
  io::RunMetrics metrics("/nowhere");
  CHECK_FALSE(collected(metrics).contains("trainerd_goodput_ratio"));
  io::RunInfo info;
  info.name = "tiny";
  info.node = 2;
  info.steps = 9;
  info.start_step = 4;
  info.start_tokens = 400;
  info.flops_per_token = 60;
  info.earlier = io::EarlierRun{.attempts = 2, .began = base::wall_seconds() - 1000, .useful_seconds = 300};
  metrics.on_start(info);
  auto m = collected(metrics);
  CHECK(m.at("trainerd_attempt") == 3);
  CHECK(m.at("trainerd_run_info|attempt=3|node=2|run=tiny") == 1);
  CHECK(m.at("trainerd_job_steps") == 9);
  CHECK(m.at("trainerd_run_flops") == 24000);
  CHECK(m.at("trainerd_flops_total") == 0);
  CHECK(m.at("trainerd_goodput_ratio") == Approx(0.3).epsilon(0.01));
  metrics.on_step(step_of(5, 100));
  metrics.on_step(step_of(6, 60, 10));  // includes 10 s of checkpoint stall
  metrics.on_checkpoint({.step = 5, .bytes = 1, .path = "p"});
  metrics.on_step(step_of(7, 50));
  m = collected(metrics);
  CHECK(m.at("trainerd_goodput_ratio") == Approx(0.5).epsilon(0.01));
  CHECK(m.at("trainerd_flops_total") == 18000);
  CHECK(m.at("trainerd_lost_seconds_total") == 0);
  metrics.on_restart({.step = 5, .tokens = 500});
  m = collected(metrics);
  CHECK(m.at("trainerd_attempt") == 4);
  CHECK(m.at("trainerd_run_info|attempt=4|node=2|run=tiny") == 1);
  CHECK_FALSE(m.contains("trainerd_run_info|attempt=3|node=2|run=tiny"));
  CHECK(m.at("trainerd_lost_seconds_total") == 100);
  CHECK(m.at("trainerd_goodput_ratio") == Approx(0.4).epsilon(0.01));
  CHECK(m.at("trainerd_run_flops") == 30000);
  CHECK(m.at("trainerd_flops_total") == 18000);  // work that became void still counts
}

TEST_CASE("a node that does not know of earlier attempts reports none", "[run_metrics]") {
  io::RunMetrics metrics("/nowhere");
  metrics.on_start({});
  metrics.on_step(step_of(1, 1));
  metrics.on_restart({.step = 0, .tokens = 0});
  const auto m = collected(metrics);
  CHECK_FALSE(m.contains("trainerd_attempt"));
  CHECK(m.at("trainerd_run_info|node=0|run=") == 1);
  CHECK_FALSE(m.contains("trainerd_goodput_ratio"));
  CHECK(m.at("trainerd_lost_seconds_total") == 1);
}

TEST_CASE("the CPUs' energy is that of packages and their memory, over the end of a counter",
          "[run_metrics]") {
  const FakePowercap tree;
  tree.zone("intel-rapl:0", "package-0", "5000000", "8000000");
  tree.zone("intel-rapl:0:0", "core", "1");
  tree.zone("intel-rapl:0:1", "dram", "100");
  tree.zone("intel-rapl:1", "package-1", "7");
  tree.zone("intel-rapl:2", "psys", "1");
  tree.zone("intel-rapl-mmio:0", "package-0", "1");  // the same package under another path
  std::filesystem::create_directories(tree.dir / "intel-rapl:3");
  write_file(tree.dir / "intel-rapl:3/name", "package-3\n");  // this user may not read its counter
  io::RunMetrics metrics(tree.dir.path());
  auto m = collected(metrics);
  CHECK(m.at("trainerd_cpu_energy_joules_total|zone=package-0") == 0);
  CHECK(m.at("trainerd_cpu_energy_joules_total|zone=package-1") == 0);
  CHECK(m.at("trainerd_cpu_energy_joules_total|zone=dram-0") == 0);
  CHECK(energies(m) == 3);
  tree.zone("intel-rapl:0", "package-0", "7500000", "8000000");
  tree.zone("intel-rapl:0:1", "dram", "1000100");
  m = collected(metrics);
  CHECK(m.at("trainerd_cpu_energy_joules_total|zone=package-0") == Approx(2.5));
  CHECK(m.at("trainerd_cpu_energy_joules_total|zone=dram-0") == Approx(1));
  tree.zone("intel-rapl:0", "package-0", "1000000", "8000000");
  CHECK(collected(metrics).at("trainerd_cpu_energy_joules_total|zone=package-0") == Approx(4));
}

TEST_CASE("energy that cannot be read is absent", "[run_metrics]") {
  const TempDir empty;
  CHECK(energies(collected(io::RunMetrics(empty.path()))) == 0);
  CHECK(energies(collected(io::RunMetrics(empty / "none"))) == 0);
}
