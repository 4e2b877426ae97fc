// The planner against published measurements: every row of published.yaml, with its error and its family's.

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/plan/predict/plan.h"
#include "core/plan/search/search.h"
#include "core/spec/cluster.h"
#include "kernels/base/error.h"
#include "other_software.h"

using namespace trainerd;

namespace {

const std::string kFolder = std::string(TRAINERD_SOURCE_DIR) + "/tests/plan/";

parallel::Topology cluster_of(const std::string& name, std::int64_t devices) {
  const std::string file = kFolder + "clusters/" + name + ".yaml";
  core::spec::Problems problems;
  const int source = problems.add_source("published.yaml", core::spec::Problems::SourceKind::argument);
  auto topology =
      core::spec::read_cluster(std::filesystem::exists(file) ? file : name, {source, 1, 1}, problems);
  problems.throw_if_any();
  topology->nodes = (devices + topology->devices_per_node - 1) / topology->devices_per_node;
  // The published systems compute sums of the residual stream as separate passes over memory.
  topology->device.adds_in_products = false;
  topology->device.tuning.gemm_workspace_bytes = std::int64_t{32} << 20;  // PyTorch's
  return *topology;
}

/// An entry of `software`, or none.
YAML::Node software_node(const YAML::Node& file, const YAML::Node& row) {
  return row["software"] ? file["software"][row["software"].as<std::string>()]
                         : YAML::Node(YAML::NodeType::Map);
}

core::job::JobSpec published_job(const YAML::Node& file, const YAML::Node& row) {
  const auto number = [&](const YAML::Node& in, const char* key) { return in[key].as<std::int64_t>(); };
  const YAML::Node m = row["model"];
  core::job::JobSpec job;
  job.name = row["id"].as<std::string>();
  job.steps = 1;
  core::job::ModelOptions& model = job.model;
  model.layers = number(m, "layers"), model.hidden = number(m, "hidden"), model.heads = number(m, "heads");
  model.kv_heads = number(m, "kv"), model.ffn = number(m, "ffn"), model.vocab = number(m, "vocab");
  model.head_dim = model.hidden / model.heads;
  model.seq_len = number(row, "seq");
  model.mlp = m["mlp"].as<std::string>() == "gelu" ? core::job::Mlp::gelu : core::job::Mlp::swiglu;
  model.norm = m["norm"].as<std::string>() == "layer" ? core::job::Norm::layer : core::job::Norm::rms;
  model.positions = m["positions"].as<std::string>() == "learned" ? core::job::Positions::learned
                                                                  : core::job::Positions::rope;
  model.linear_bias = m["bias"].as<bool>();
  model.qkv_bias = model.linear_bias || m["qkv_bias"].as<bool>(false);
  model.tie_embeddings = m["tie"].as<bool>();
  parallel::ParallelOptions& p = job.parallel;
  p.tp = number(row, "tp"), p.pp = number(row, "pp"), p.dp = number(row, "dp"),
  p.virtual_stages = number(row, "vp");
  p.zero = number(row, "zero");
  p.sequence_parallel = row["sp"].as<bool>();
  // The published systems reduce and gather per layer or all at once.
  p.bucket_bytes = std::int64_t{1} << 40;
  p.overlap_grad_reduce = p.overlap_param_gather = row["overlap"].as<bool>();
  // None of them uses a deterministic backward pass.
  job.attention.backward = kernels::Determinism::fast;
  job.cuda_graphs = core::job::CudaGraphs::off;
  p.overlap_tp_backward = software_node(file, row)["tp_backward_behind"].as<bool>(false);
  p.allow_tp_across_nodes = row["tp_across"].as<bool>(false);
  p.schedule =
      p.virtual_stages > 1 ? parallel::ScheduleKind::interleaved : parallel::ScheduleKind::one_f_one_b;
  const std::string recompute = row["recompute"].as<std::string>();
  // torchtitan's selective recomputation by operators: half of the products, and of the rest all but
  // attention and collectives.
  if (recompute == "half") job.recompute.every = 2;
  job.recompute.kind = recompute == "full" || recompute == "half" ? core::job::RecomputeKind::full
                       : recompute == "selective"                 ? core::job::RecomputeKind::selective
                                                                  : core::job::RecomputeKind::none;
  job.batch = {number(row, "global"), number(row, "micro")};
  job.precision.name = row["precision"].as<std::string>("bf16");
  job.precision.compute = job.precision.params = kernels::DType::bf16;
  if (job.precision.name == "fp8") job.precision.gemm = kernels::GemmFormat::fp8;
  return job;
}

/// Differences of a row's software from trainerd.
test::OtherSoftware software_of(const YAML::Node& file, const YAML::Node& row) {
  test::OtherSoftware other;
  const YAML::Node s = software_node(file, row);
  REQUIRE(s.IsMap());
  other.scatter_flows = s["scatter_flows"].as<bool>(false);
  other.messages_stop_host = s["messages_stop_host"].as<bool>(false);
  other.one_level = s["one_level"].as<bool>(false);
  other.collectives_of_layer = s["collectives_of_layer"].as<std::int64_t>(1);
  other.gathered_again = s["gathered_again"].as<double>(0);
  other.logit_bytes = s["logit_bytes"].as<std::int64_t>(0);
  other.elementwise = s["elementwise"].as<double>(1);
  other.scales_by_maximum = s["scales_by_maximum"].as<bool>(false);
  other.part_seconds = s["part_microseconds"].as<double>(0) / 1e6;
  return other;
}

struct Compared {
  std::string id;
  double measured = 0, planned = 0;
  double error() const { return planned / measured - 1; }
};

double mean_error(const std::vector<Compared>& rows) {
  double sum = 0;
  for (const Compared& row : rows) sum += std::abs(row.error());
  return rows.empty() ? 0 : sum / static_cast<double>(rows.size());
}

double mean_bias(const std::vector<Compared>& rows) {
  double sum = 0;
  for (const Compared& row : rows) sum += row.error();
  return rows.empty() ? 0 : sum / static_cast<double>(rows.size());
}

/// Kendall's tau-a of the planned and the measured order.
double kendall_tau(const std::vector<Compared>& rows) {
  double agree = 0, pairs = 0;
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t j = i + 1; j < rows.size(); ++j, ++pairs)
      agree += (rows[i].measured - rows[j].measured) * (rows[i].planned - rows[j].planned) > 0 ? 1 : -1;
  return pairs > 0 ? agree / pairs : 1;
}

}  // namespace

TEST_CASE("the planner predicts published step times", "[published]") {
  const YAML::Node file = YAML::LoadFile(kFolder + "published.yaml");
  std::map<std::string, std::vector<Compared>> families, sweeps;
  std::vector<Compared> all;
  std::map<std::string, std::vector<Compared>> memory;
  for (const YAML::Node& row : file["rows"]) {
    const core::job::JobSpec job = published_job(file, row);
    CAPTURE(job.name);
    const parallel::Topology topology =
        cluster_of(row["cluster"].as<std::string>(), row["gpus"].as<std::int64_t>());
    const core::plan::Plan plan =
        core::plan::make_plan(job, topology, test::changes_of(software_of(file, row), job, topology));
    const std::string family = row["family"].as<std::string>();
    constexpr double kGiB = 1 << 30;
    if (row["seconds"]) {
      const Compared c{job.name, row["seconds"].as<double>(), plan.time.step_seconds};
      families[family].push_back(c);
      all.push_back(c);
      if (row["sweep"]) sweeps[row["sweep"].as<std::string>()].push_back(c);
      const base::TimeLedger& l = plan.time.mean;
      std::printf(
          "%-52s %9.3f %9.3f %+6.1f%%  compute %.2f tp %.2f dp %.2f bubble %.2f opt %.2f  %.1f GiB%s\n",
          job.name.c_str(), c.measured, c.planned, 100 * c.error(), l[base::LedgerPart::compute] / c.planned,
          l[base::LedgerPart::exposed_tp] / c.planned, l[base::LedgerPart::exposed_dp] / c.planned,
          l[base::LedgerPart::bubble] / c.planned, l[base::LedgerPart::optimizer] / c.planned,
          static_cast<double>(plan.peak_bytes) / kGiB, plan.fits ? "" : " does not fit");
    }
    if (row["reserved_gib"])
      memory["reserved-memory"].push_back(
          {job.name, row["reserved_gib"].as<double>(),
           static_cast<double>(plan.peak_bytes - core::rank::device_overhead(topology)) / kGiB});
    if (row["allocated_peak"])
      memory["allocated-memory"].push_back(
          {job.name, row["allocated_peak"].as<double>() / kGiB,
           static_cast<double>(plan.peak_bytes - core::rank::device_overhead(topology)) / kGiB});
    if (row["fits"]) CHECK(plan.fits == row["fits"].as<bool>());
  }
  for (const auto& [family, rows] : families) {
    CAPTURE(family);
    CHECK(mean_error(rows) <= file["limits"][family].as<double>());
    std::printf("family %-14s %3zu rows: mean error %5.1f%%, bias %+5.1f%%\n", family.c_str(), rows.size(),
                100 * mean_error(rows), 100 * mean_bias(rows));
  }
  std::printf("all %zu rows: mean error %.1f%%\n", all.size(), 100 * mean_error(all));
  for (const auto& [sweep, rows] : sweeps) {
    const auto by = [](double Compared::*key) {
      return [key](const Compared& a, const Compared& b) { return a.*key < b.*key; };
    };
    const Compared chosen = *std::min_element(rows.begin(), rows.end(), by(&Compared::planned));
    const Compared best = *std::min_element(rows.begin(), rows.end(), by(&Compared::measured));
    CAPTURE(sweep);
    CHECK(kendall_tau(rows) >= file["tau"][sweep].as<double>());
    std::printf("sweep %-12s %zu layouts: tau %.2f, the chosen one is %.1f%% slower than the best\n",
                sweep.c_str(), rows.size(), kendall_tau(rows), 100 * (chosen.measured / best.measured - 1));
  }
  for (const auto& [kind, rows] : memory) {
    for (const Compared& c : rows)
      std::printf("memory %-16s %-40s %7.2f GiB %7.2f GiB %+6.1f%%\n", kind.c_str(), c.id.c_str(), c.measured,
                  c.planned, 100 * c.error());
    CHECK(mean_error(rows) <= file["limits"][kind].as<double>());
    std::printf("memory %s: mean error %.1f%%\n", kind.c_str(), 100 * mean_error(rows));
  }
  for (const YAML::Node& row : file["skipped"]) REQUIRE(!row["why"].as<std::string>().empty());
}

TEST_CASE("the search chooses a layout within 5% of the best in each measured sweep", "[published][search]") {
  const YAML::Node file = YAML::LoadFile(kFolder + "published.yaml");
  struct Sweep {
    core::job::JobSpec job;
    parallel::Topology topology;
    std::vector<core::plan::LayoutChoice> layouts;
    std::vector<double> measured;
  };
  std::map<std::string, Sweep> sweeps;
  for (const YAML::Node& row : file["rows"]) {
    if (!row["sweep"]) continue;
    Sweep& sweep = sweeps[row["sweep"].as<std::string>()];
    core::job::JobSpec job = published_job(file, row);
    job.parallel.allow_tp_across_nodes = true;
    if (sweep.layouts.empty())
      sweep.job = job,
      sweep.topology = cluster_of(row["cluster"].as<std::string>(), row["gpus"].as<std::int64_t>());
    REQUIRE(job.batch.global == sweep.job.batch.global);
    sweep.layouts.push_back(core::plan::choice_of(job));
    sweep.measured.push_back(row["seconds"].as<double>());
  }
  REQUIRE_FALSE(sweeps.empty());
  for (const auto& [name, sweep] : sweeps) {
    CAPTURE(name);
    const core::plan::SearchResult result =
        core::plan::search_layouts(sweep.job, sweep.topology, {.keep = 1, .layouts = sweep.layouts});
    REQUIRE(result.best.size() == 1);
    const auto chosen = std::find(sweep.layouts.begin(), sweep.layouts.end(), result.best.front().choice) -
                        sweep.layouts.begin();
    const double best = *std::min_element(sweep.measured.begin(), sweep.measured.end());
    const double slower = sweep.measured[static_cast<std::size_t>(chosen)] / best - 1;
    std::printf(
        "search of sweep %s: %zu layouts, %lld planned, the chosen one is %.1f%% slower than the best\n",
        name.c_str(), sweep.layouts.size(), static_cast<long long>(result.planned), 100 * slower);
    CHECK(slower <= 0.05);
  }
}
