#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/plan/calibrate/calibrate.h"
#include "core/spec/cluster.h"
#include "core/spec/machines.h"
#include "core/spec/report.h"
#include "spec_test_support.h"

namespace trainerd::core {
namespace {

const std::string kClusterFile = std::string(TRAINERD_SOURCE_DIR) + "/configs/clusters/dgx-h100.yaml";

job::JobSpec job_on(const std::string& cluster, const std::vector<std::string>& sets = {}) {
  return spec::parse_job(kJob + "cluster: " + cluster + "\n", "job.yaml", sets);
}

parallel::Topology preset(const std::string& name) {
  return spec::job_topology(job_on("{preset: " + name + "}"));
}

// Sets sizes directly, also those that the parser would refuse.
job::JobSpec laid_out(job::JobSpec job, std::int64_t tp, std::int64_t dp, std::int64_t pp,
                      std::int64_t nodes) {
  job.parallel.tp = tp;
  job.parallel.dp = dp;
  job.parallel.pp = pp;
  job.cluster.nodes = nodes;
  return job;
}

TEST_CASE("the built-in clusters have the published sizes and rates", "[spec][cluster]") {
  CHECK(spec::cluster_preset_names() ==
        std::vector<std::string>{"dgx-a100", "dgx-b200", "dgx-h100", "dgx-h200", "gb200-nvl72"});
  struct Published {
    const char* name;
    std::int64_t devices, domain, rails;
    double memory_gb, memory_tbps, bf16_tflops, nvlink_gbps, rail_gbps;
  };
  // NVIDIA's data sheets, with memory in printed GB. The usable memory must be near that.
  const std::vector<Published> published = {
      {"dgx-a100", 8, 8, 8, 80, 2.0, 312, 300, 25},       {"dgx-h100", 8, 8, 8, 80, 3.35, 989, 450, 50},
      {"dgx-h200", 8, 8, 8, 141, 4.8, 989, 450, 50},      {"dgx-b200", 8, 8, 8, 180, 8.0, 2250, 900, 50},
      {"gb200-nvl72", 4, 72, 4, 186, 8.0, 2500, 900, 50},
  };
  for (const Published& p : published) {
    INFO(p.name);
    const parallel::Topology t = preset(p.name);
    CHECK(t.name == p.name);
    CHECK(t.nodes == 1);
    CHECK(t.devices_per_node == p.devices);
    CHECK(t.nvlink_domain == p.domain);
    CHECK(t.rails == p.rails);
    CHECK(t.device.kind == kernels::DeviceKind::cuda);
    CHECK(static_cast<double>(t.device_memory_bytes) == Approx(p.memory_gb * 1e9).epsilon(0.08));
    CHECK(t.memory_bytes_per_second == Approx(p.memory_tbps * 1e12).epsilon(0.02));
    CHECK(t.peak.bf16 == p.bf16_tflops * 1e12);
    CHECK(t.nvlink.bytes_per_second == p.nvlink_gbps * 1e9);
    CHECK(t.rail.bytes_per_second == p.rail_gbps * 1e9);
    CHECK(t.nvlink.latency_seconds < t.rail.latency_seconds);
  }
  CHECK(preset("dgx-a100").peak.fp8 == 0);
  CHECK(preset("dgx-h100").peak.fp8 == 1979e12);
}

TEST_CASE("a cluster may be a file, and the resolved job names it", "[spec][cluster]") {
  const job::JobSpec job =
      job_on("{preset: " + kClusterFile + ", nodes: 3}", {"parallel.dp=3", "batch.global=6"});
  CHECK(spec::job_topology(job).devices() == 24);
  CHECK(spec::job_topology(job).peak == preset("dgx-h100").peak);
  CHECK(spec::parse_job(spec::to_yaml(job), "resolved.yaml") == job);
}

TEST_CASE("a preset has as many nodes as the ranks need, unless the job sets them", "[spec][cluster]") {
  CHECK(job_on("{preset: dgx-h100}").cluster.nodes == 1);
  CHECK(job_on("{preset: dgx-h100, nodes: 5}", {"parallel.dp=5", "batch.global=10"}).cluster.nodes == 5);
  CHECK(spec::parse_job(spec::to_yaml(job_on("{preset: dgx-h100}")), "resolved.yaml") ==
        job_on("{preset: dgx-h100}"));
}

TEST_CASE("a missing or invalid cluster file is reported", "[spec][cluster]") {
  CHECK(with_line("cluster: {preset: dgx-h10}") ==
        Lines{"job.yaml:6:19: cluster.preset: unknown preset 'dgx-h10' (nearest valid: dgx-h100)"});
  CHECK(with_line("cluster: {preset: dgxh200}") ==
        Lines{"job.yaml:6:19: cluster.preset: unknown preset 'dgxh200' (nearest valid: dgx-h200)"});
  CHECK(with_line("cluster: {preset: ./no/such.yaml}") ==
        Lines{"job.yaml:6:19: cluster.preset: cannot open './no/such.yaml': No such file or directory"});
  // A job file is no cluster file: its keys are unknown, and the required keys are missing.
  const Lines job_as_cluster =
      with_line("cluster: {preset: " + std::string(TRAINERD_SOURCE_DIR) + "/configs/quickstart.yaml}");
  REQUIRE_FALSE(job_as_cluster.empty());
  bool missing = false, unknown = false;
  for (const std::string& line : job_as_cluster) {
    missing = missing || line.find("cluster.nvlink_domain: is required") != std::string::npos;
    unknown = unknown || line.find("cluster.optimizer: unknown key") != std::string::npos;
  }
  CHECK(missing);
  CHECK(unknown);
}

TEST_CASE("an invalid order is reported, a given one is kept", "[spec][cluster]") {
  CHECK(spec::parse_job(kJob + "parallel: {order: tp-pp-dp}\n", "j").parallel.order == "tp-pp-dp");
  CHECK(with_line("parallel: {order: tp-pp-tp}") ==
        Lines{"job.yaml:6:19: parallel.order: 'tp-pp-tp': names tp twice: keep one (nearest valid: "
              "tp-cp-ep-dp-pp)"});
  CHECK(with_line("parallel: {order: rows}").size() == 1);
  CHECK(spec::parse_job(kJob + "parallel: {allow_tp_across_nodes: true}\n", "j")
            .parallel.allow_tp_across_nodes);
}

TEST_CASE("a local job runs on this machine only", "[spec][cluster]") {
  CHECK(spec::job_here(spec::parse_job(kJob, "j")).job.cluster.preset == "local");
  CHECK_THROWS_AS(spec::job_here(job_on("{preset: gb200-nvl72}")), base::CapacityError);
  CHECK_THROWS_WITH(spec::job_here(job_on("{preset: dgx-h100}")),
                    Catch::Contains("8 x NVIDIA H100") && Catch::Contains("none of these devices") &&
                        Catch::Contains("cluster.preset: local"));
}

TEST_CASE("a job of a calibrated processor runs on such a processor, with its threads and rates",
          "[spec][cluster]") {
  const auto path =
      std::filesystem::temp_directory_path() / ("trainerd-job-here-" + std::to_string(::getpid()) + ".yaml");
  plan::Calibration made;
  made.topology = parallel::detect_topology(1, 2);
  made.topology.peak.fp32 = made.topology.peak.bf16 = 1e11;
  made.topology.measured.alone["linear_fprop.fp32"] = {1e-6, 1e-11, 0, 0, 0, 0};
  const auto job_of = [&](const std::string& device) {
    made.topology.device.name = device;
    std::ofstream(path) << plan::cluster_yaml(made, "made up");
    return job_on("{preset: " + path.string() + "}");
  };
  const spec::JobHere here = spec::job_here(job_of(made.topology.device.name));
  CHECK(here.job.cluster.preset == "local");
  CHECK(here.job.threads == 1);
  REQUIRE(here.rates);
  CHECK(here.rates->measured.alone.contains("linear_fprop.fp32"));
  CHECK_THROWS_WITH(spec::job_here(job_of("another processor")),
                    Catch::Contains("another processor") && Catch::Contains("but "));
  // More ranks than the cluster has devices, and the refusals that a job for this machine gets, too.
  const std::string own = made.topology.device.name = parallel::detect_topology(1).device.name;
  job::JobSpec job = job_of(own);
  job.parallel.dp = 3, job.cluster.nodes = 1;
  CHECK_THROWS_AS(spec::job_here(job), base::CapacityError);
  job.parallel.dp = 3, job.cluster.nodes = 2;
  CHECK_THROWS_AS(spec::job_here(job), base::SpecError);
  std::filesystem::remove(path);
}

TEST_CASE("the machine is a device for each rank of a local job", "[spec][cluster]") {
  const parallel::PlacedGrid placed = spec::place_job(laid_out(spec::parse_job(kJob, "j"), 2, 2, 1, 1));
  CHECK(placed.topology.devices() == 4);
  CHECK(placed.placement[3] == parallel::DeviceLocation{0, 3});
}

TEST_CASE("the comments of a small world list its ranks and every group with its link", "[spec][cluster]") {
  const job::JobSpec job = laid_out(job_on("{preset: dgx-h100}"), 4, 2, 2, 2);
  CHECK(spec::placement_comments(spec::place_job(job)) ==
        "# 16 ranks on 2 nodes of 8 devices (dgx-h100, NVIDIA H100 80GB HBM3), order tp-cp-ep-dp-pp\n"
        "#    rank    node  device      tp      cp      ep      dp      pp\n"
        "#       0       0       0       0       0       0       0       0\n"
        "#       1       0       1       1       0       0       0       0\n"
        "#       2       0       2       2       0       0       0       0\n"
        "#       3       0       3       3       0       0       0       0\n"
        "#       4       0       4       0       0       0       1       0\n"
        "#       5       0       5       1       0       0       1       0\n"
        "#       6       0       6       2       0       0       1       0\n"
        "#       7       0       7       3       0       0       1       0\n"
        "#       8       1       0       0       0       0       0       1\n"
        "#       9       1       1       1       0       0       0       1\n"
        "#      10       1       2       2       0       0       0       1\n"
        "#      11       1       3       3       0       0       0       1\n"
        "#      12       1       4       0       0       0       1       1\n"
        "#      13       1       5       1       0       0       1       1\n"
        "#      14       1       6       2       0       0       1       1\n"
        "#      15       1       7       3       0       0       1       1\n"
        "#   tp 4: 4 groups over nvlink: [0 1 2 3] [4 5 6 7] [8 9 10 11] [12 13 14 15]\n"
        "#   dp 2: 8 groups over nvlink: [0 4] [1 5] [2 6] [3 7] [8 12] [9 13] [10 14] [11 15]\n"
        "#   pp 2: 8 groups over rail: [0 8] [1 9] [2 10] [3 11] [4 12] [5 13] [6 14] [7 15]\n");
}

TEST_CASE("the comments of a large world name one group of each axis", "[spec][cluster]") {
  // Llama 3 405B at 8K on 16384 GPUs: table 4 of its paper.
  const job::JobSpec job = laid_out(job_on("{preset: dgx-h100}"), 8, 128, 16, 2048);
  CHECK(spec::placement_comments(spec::place_job(job)) ==
        "# 16384 ranks on 2048 nodes of 8 devices (dgx-h100, NVIDIA H100 80GB HBM3), order tp-cp-ep-dp-pp\n"
        "#   tp 8: 2048 groups over nvlink: [0 1 2 3 4 5 6 7] ...\n"
        "#   dp 128: 128 groups over rail: [0 8 16 ... 1016] ...\n"
        "#   pp 16: 1024 groups over rail: [0 1024 2048 3072 4096 5120 6144 7168 8192 9216 10240 11264 12288 "
        "13312 14336 "
        "15360] ...\n");
}

TEST_CASE("the resolved job in the JSON is a job with the same values", "[spec]") {
  const job::JobSpec job =
      spec::parse_job(kJob + "evaluate: {every: 2, batches: 1}\n", "job.yaml",
                      {"data.train=~", "data.sources=[{path: a.txt, weight: 1}, {path: c.txt, weight: 2}]",
                       "data.valid_sets=[{name: v, path: b.txt}]"});
  const auto parsed = nlohmann::json::parse(spec::job_json(job, spec::place_job(job)));
  CHECK(spec::parse_job(parsed["spec"].dump(), "spec.json") == job);
}

TEST_CASE("the JSON has the resolved job, every rank and every group", "[spec][cluster]") {
  const job::JobSpec job = laid_out(job_on("{preset: dgx-h100}"), 2, 2, 4, 2);
  const auto parsed = nlohmann::json::parse(spec::job_json(job, spec::place_job(job)));
  CHECK(parsed["spec"]["model"]["hidden"] == 64);
  CHECK(parsed["spec"]["optimizer"]["betas"] == nlohmann::json::array({0.9, 0.95}));
  CHECK(parsed["spec"]["optimizer"]["schedule"]["kind"] == "cosine");
  CHECK(parsed["spec"]["parallel"]["schedule"] == "1f1b");
  CHECK(parsed["spec"]["precision"] == "fp32");
  CHECK(parsed["spec"]["data"]["train"] == nlohmann::json::array({"a.txt"}));
  CHECK(parsed["spec"]["faults"]["allow"] == false);
  REQUIRE(parsed["ranks"].size() == 16);
  // Stages 0 and 1 share node 0. Stages 2 and 3 are swapped on node 1, so that 1 and 2 are on one rail.
  CHECK(parsed["ranks"][13] ==
        nlohmann::json{
            {"rank", 13}, {"node", 1}, {"device", 1}, {"tp", 1}, {"cp", 0}, {"ep", 0}, {"dp", 0}, {"pp", 3}});
  CHECK(parsed["groups"]["pp"] ==
        nlohmann::json{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}});
  CHECK(parsed["groups"]["dp"][0] == nlohmann::json{0, 2});
  CHECK(parsed["groups"]["cp"].size() == 16);
  CHECK(parsed["links"]["tp"] == nlohmann::json(std::vector<std::string>(8, "nvlink")));
  CHECK(parsed["links"]["pp"] == nlohmann::json(std::vector<std::string>(4, "rail")));
  CHECK(parsed["links"]["cp"][0] == "none");
}

TEST_CASE("ranks and groups of expert parallelism are those of its own grid", "[spec][cluster]") {
  job::JobSpec job = laid_out(job_on("{preset: dgx-h100}"), 1, 4, 1, 1);
  job.model.experts = {.count = 4, .per_token = 2};
  job.parallel.ep = 2;
  const parallel::PlacedGrid placed = spec::place_job(job);
  const auto parsed = nlohmann::json::parse(spec::job_json(job, placed));
  CHECK(parsed["ranks"][3]["ep"] == 1);
  CHECK(parsed["ranks"][3]["dp"] == 3);
  CHECK(parsed["groups"]["ep"] == nlohmann::json{{0, 1}, {2, 3}});
  CHECK(parsed["links"]["ep"] == nlohmann::json{"nvlink", "nvlink"});
  CHECK_THAT(spec::placement_comments(placed), Catch::Contains("ep 2: 2 groups over nvlink: [0 1] [2 3]"));
}

TEST_CASE("a custom precision is a map in the JSON", "[spec][cluster]") {
  const job::JobSpec job = spec::parse_job(kJob + "precision: {compute: bf16, grads: bf16}\n", "j");
  const auto parsed = nlohmann::json::parse(spec::job_json(job, spec::place_job(job)));
  CHECK(parsed["spec"]["precision"]["grads"] == "bf16");
  CHECK(parsed["spec"]["precision"]["master"] == "fp32");
}

}  // namespace
}  // namespace trainerd::core
