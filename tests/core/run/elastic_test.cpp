// The smaller sizes of an elastic job.

#include "core/run/agent/elastic.h"

#include <catch2/catch.hpp>

#include "core/run/agent/replan.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"

using namespace trainerd;
using namespace trainerd::core;

namespace {

job::JobSpec elastic_job(const std::string& parallel, int nodes, const std::string& more = "") {
  return spec::parse_job(
      "steps: 20\nmodel: {layers: 4, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32}\n"
      "batch: {global: 24, micro: 1}\ndata: {train: [a.txt]}\nsupervise: {dead_after: 9s}\n"
      "parallel: " +
          parallel + "\ncluster: {nodes: " + std::to_string(nodes) + ", failures: {" +
          (more.find("elastic") == std::string::npos ? "elastic: true" : "spares: 0") + more + "}}\n",
      "job.yaml");
}

/// "nodes x dp" of the job on `nodes` nodes; "none" if it cannot run on them.
std::string size_on(const job::JobSpec& whole, std::int64_t nodes) {
  const auto job = run::job_on(whole, nodes);
  return job ? std::to_string(job->cluster.nodes) + " x " + std::to_string(job->parallel.dp) : "none";
}

}  // namespace

TEST_CASE("the remaining nodes hold whole replicas of an elastic job", "[elastic]") {
  const job::JobSpec plain = elastic_job("{dp: 4}", 4);
  CHECK(run::job_on(plain, 4) == plain);
  CHECK(size_on(plain, 3) == "3 x 3");
  CHECK(size_on(plain, 1) == "1 x 1");
  CHECK(size_on(plain, 0) == "none");
  // Several replicas per node, or one replica on several nodes.
  CHECK(size_on(elastic_job("{dp: 4, tp: 2}", 2), 1) == "1 x 2");
  const job::JobSpec spread = elastic_job("{dp: 3, pp: 2}", 6);
  CHECK(size_on(spread, 5) == "4 x 2");
  CHECK(size_on(spread, 3) == "2 x 1");
  CHECK(size_on(spread, 1) == "none");
  // Two replicas on three nodes.
  CHECK(size_on(elastic_job("{dp: 2, pp: 3}", 2), 1) == "1 x 1");
  CHECK(size_on(elastic_job("{dp: 4}", 4, ", min_replicas: 3"), 3) == "3 x 3");
  CHECK(size_on(elastic_job("{dp: 4}", 4, ", min_replicas: 3"), 2) == "none");
  // ZeRO groups stay whole.
  CHECK(size_on(elastic_job("{dp: 4, zero_group: 2, zero: 2}", 4), 3) == "2 x 2");
}

TEST_CASE("ranks that share experts stay together, or the planner chooses how many do", "[elastic][replan]") {
  const auto experts_job = [](const std::string& elastic) {
    return spec::parse_job(
        "steps: 20\nmodel: {layers: 4, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32, experts: "
        "{count: "
        "12, per_token: 2}}\nbatch: {global: 24, micro: 1}\ndata: {train: [a.txt]}\n"
        "parallel: {dp: 4, ep: 2, ep_comm: all_to_all, ep_capacity: 3, overlap_ep: false}\n"
        "cluster: {nodes: 4, failures: {elastic: " +
            elastic + "}}\n",
        "job.yaml");
  };
  const job::JobSpec whole = experts_job("true");
  CHECK(size_on(whole, 3) == "2 x 2");
  CHECK(size_on(whole, 1) == "none");
  CHECK(run::job_on(whole, 3)->parallel.ep == 2);
  // The planner uses all nodes.
  const job::JobSpec replanned = experts_job("{replan: true}");
  for (const std::int64_t nodes : {3, 1}) {
    const run::JobSize size = run::JobSizes(replanned).on(nodes).value();
    CHECK(size.job.cluster.nodes == nodes);
    CHECK(size.job.parallel.ranks() == nodes);
    CHECK(nodes * 12 % size.job.parallel.ep == 0);
    CHECK(run::job_on(replanned, nodes, size.layout) == size.job);
    CHECK(spec::parse_job(spec::to_yaml(size.job), "again") == size.job);
  }
  // It begins from the job's own schedule and way of tokens.
  const job::JobSpec turns = spec::parse_job(
      "steps: 20\nmodel: {layers: 8, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32, experts: "
      "{count: "
      "12, per_token: 2}}\nbatch: {global: 24, micro: 1}\ndata: {train: [a.txt]}\n"
      "parallel: {dp: 3, pp: 2, ep: 3, ep_comm: all_to_all, ep_capacity: 4, schedule: dualpipe-v, "
      "virtual_stages: 2}\ncluster: {nodes: 3, failures: {elastic: {replan: true}}}\n",
      "job.yaml");
  const parallel::ParallelOptions fewer = run::JobSizes(turns).on(2)->job.parallel;
  CHECK(fewer.schedule == parallel::ScheduleKind::dualpipe_v);
  CHECK(fewer.pp == 2);
  CHECK((fewer.ep == 1 || fewer.ep_comm == parallel::ExpertComm::all_to_all));
}

TEST_CASE("a smaller size is a valid job that differs in nothing else", "[elastic]") {
  const job::JobSpec whole = elastic_job("{dp: 4}", 4);
  job::JobSpec smaller = run::job_on(whole, 2).value();
  CHECK(spec::parse_job(spec::to_yaml(smaller), "again") == smaller);
  CHECK(smaller.batch.global == 24);
  CHECK(smaller.microbatches() == 12);
  smaller.parallel.dp = smaller.cluster.nodes = 4;
  CHECK(smaller == whole);
  // A job on one node has no keys of several nodes.
  const job::JobSpec one = run::job_on(whole, 1).value();
  CHECK(spec::parse_job(spec::to_yaml(one), "again") == one);
  CHECK(run::JobSizes(whole).smallest().job == one);
  CHECK(run::JobSizes(elastic_job("{dp: 4}", 4, ", min_replicas: 3")).smallest().job.cluster.nodes == 3);
}

TEST_CASE("a job on one node keeps its supervision keys, without faults of missing ranks", "[elastic]") {
  job::JobSpec whole = elastic_job("{dp: 2}", 2);
  whole.supervise.hang_factor = 0;
  whole.supervise.coordinator = "etcd://10.0.0.1:2379";
  whole.supervise.hash_every = 7;
  whole.faults = {.allow = true, .inject = {{.step = 3, .rank = 1}, {.step = 4, .rank = 0}}};
  const job::JobSpec one = run::job_on(whole, 1).value();
  CHECK(one.supervise.hang_factor == 0);
  CHECK(one.supervise.coordinator.empty());
  CHECK(one.supervise.hash_every == 7);
  REQUIRE(one.faults.inject.size() == 1);
  CHECK(one.faults.inject[0].step == 4);
  whole.faults.inject.pop_back();
  CHECK(run::job_on(whole, 1).value().faults == job::FaultsOptions{});
  // Faults of a link or of messages between ranks are left out, too.
  whole.faults = {.allow = true,
                  .inject = {{.kind = job::FaultKind::drop_link, .step = 3},
                             {.kind = job::FaultKind::flip_message, .step = 4}},
                  .random = {.rate = 0.1, .kinds = {"drop_link", "kill"}}};
  const job::FaultsOptions left = run::job_on(whole, 1).value().faults;
  CHECK(left.inject.empty());
  CHECK(left.random.kinds == std::vector<std::string>{"kill"});
  whole.faults.random.kinds = {"drop_link"};
  CHECK(run::job_on(whole, 1).value().faults == job::FaultsOptions{});
}

TEST_CASE("an elastic job's fewest replicas are at most its dp", "[elastic]") {
  CHECK_THROWS_WITH(elastic_job("{dp: 4}", 4, ", min_replicas: 5"),
                    Catch::Contains("cluster.failures.min_replicas: 5 is more than dp 4 (nearest valid: 4)"));
}

namespace {

job::JobSpec replanned_job(const std::string& parallel, int nodes, const std::string& more = "") {
  return elastic_job(parallel, nodes, ", elastic: {replan: true}" + more);
}

/// "nodes: tp x pp x dp" that the planner chooses for `nodes` nodes; "none" if there is no layout.
std::string layout_on(const job::JobSpec& whole, std::int64_t nodes) {
  const auto size = run::JobSizes(whole).on(nodes);
  if (!size) return "none";
  const parallel::ParallelOptions& p = size->job.parallel;
  return std::to_string(size->job.cluster.nodes) + ": " + std::to_string(p.tp) + " x " +
         std::to_string(p.pp) + " x " + std::to_string(p.dp);
}

}  // namespace

TEST_CASE("the planner chooses the layout of an elastic job's nodes that are left", "[elastic][replan]") {
  // Replicas of four ranks: none is left whole, or ranks would be idle.
  const job::JobSpec spread = replanned_job("{pp: 4, dp: 1}", 4);
  CHECK(layout_on(spread, 4) == "4: 1 x 4 x 1");
  CHECK(layout_on(spread, 3) == "3: 1 x 1 x 3");
  CHECK(layout_on(spread, 1) == "1: 1 x 1 x 1");
  CHECK(layout_on(replanned_job("{pp: 2, dp: 2}", 4), 3) == "3: 1 x 1 x 3");
  // The smallest change: replicas of the same layout if they use all ranks, else a change of pp or tp only.
  CHECK(layout_on(replanned_job("{pp: 2, dp: 3}", 6), 4) == "4: 1 x 2 x 2");
  CHECK(layout_on(replanned_job("{tp: 2, pp: 2, dp: 2}", 4), 3) == "3: 2 x 1 x 3");
  CHECK(layout_on(replanned_job("{pp: 4, dp: 1}", 4, ", min_replicas: 1"), 2) == "2: 1 x 1 x 2");
  // Without `replan` the job keeps its layout: it cannot run on 3 nodes.
  CHECK(size_on(elastic_job("{pp: 4, dp: 1}", 4), 3) == "none");
}

TEST_CASE("followers build the job of a size from the leader's message", "[elastic][replan]") {
  const job::JobSpec whole = replanned_job("{tp: 2, pp: 2, dp: 2}", 4);
  const run::JobSize size = run::JobSizes(whole).on(3).value();
  REQUIRE_FALSE(size.layout.empty());
  CHECK(run::job_on(whole, 3, size.layout) == size.job);
  CHECK(spec::parse_job(spec::to_yaml(size.job), "again") == size.job);
  plan::LayoutChoice own = plan::choice_of(whole);
  own.etp = 1;
  CHECK(run::layout_from(run::layout_text(own)) == own);
  CHECK_THROWS_AS(run::layout_from("{}"), base::SpecError);
  CHECK_THROWS_WITH(run::layout_from("{}"),
                    Catch::StartsWith("the layout that node 0 has chosen cannot be read: "));
  CHECK(run::JobSizes(whole).on(4).value().layout.empty());
  // A job on one node has no keys of several nodes.
  const run::JobSize one = run::JobSizes(whole).on(1).value();
  CHECK(spec::parse_job(spec::to_yaml(one.job), "again") == one.job);
  CHECK_FALSE(one.job.cluster.elastic);
}

TEST_CASE("replicas limit what the planner may choose", "[elastic][replan]") {
  CHECK(layout_on(replanned_job("{dp: 4}", 4, ", min_replicas: 3"), 3) == "3: 1 x 1 x 3");
  CHECK(layout_on(replanned_job("{dp: 4}", 4, ", min_replicas: 3"), 2) == "none");
  CHECK(run::JobSizes(replanned_job("{dp: 4}", 4, ", min_replicas: 3")).smallest().job.cluster.nodes == 3);
}

TEST_CASE("with rates the planner chooses the fastest layout of the nodes left", "[elastic][replan]") {
  const job::JobSpec whole = spec::parse_job(
      "steps: 20\nmodel: {layers: 8, hidden: 1024, heads: 8, ffn: 4096, vocab: 1024, seq_len: 256}\n"
      "batch: {global: 24, micro: 1}\ndata: {train: [a.txt]}\nparallel: {pp: 4}\n"
      "cluster: {nodes: 4, failures: {elastic: {replan: true}}}\n",
      "job.yaml");
  const auto choice_by = [&](double network) {
    parallel::Topology rates = spec::job_topology(whole);
    rates.peak = {.fp32 = 1e13, .tf32 = 0, .bf16 = 1e13, .fp8 = 0, .fp4 = 0};
    rates.rates.gemm = {.efficiency = 0.5, .tile_rows = 64, .tile_columns = 64, .start_depth = 32};
    rates.rates.attention = {
        .forward = 0.5, .backward = 0.5, .forward_start = 1, .backward_start = 1, .score_bytes = 0};
    rates.rates.memory_efficiency = 0.5;
    rates.memory_bytes_per_second = 1e12;
    rates.network = rates.rail = {
        .bytes_per_second = network, .latency_seconds = 1e-6, .efficiency = 1, .start_seconds = 0};
    return run::JobSizes(whole, rates).on(3).value().job.parallel;
  };
  // On a slow network a pipeline is faster: its stages send activations only.
  CHECK(choice_by(1e12).dp == 3);
  CHECK(choice_by(1e8).pp == 3);
}

TEST_CASE("faults of ranks that a size lacks do not keep it from being one", "[elastic][replan]") {
  job::JobSpec whole = replanned_job("{pp: 4, dp: 1}", 4);
  whole.faults.allow = true;
  whole.faults.inject = {{.kind = job::FaultKind::kill, .step = 3, .rank = 3}};
  CHECK(layout_on(whole, 3) == "3: 1 x 1 x 3");
  CHECK(run::JobSizes(whole).on(3).value().job.faults == job::FaultsOptions{});
}

TEST_CASE("elastic has a short form and a map", "[elastic][spec]") {
  const auto of = [](const std::string& elastic) {
    return elastic_job("{dp: 2}", 2, ", elastic: " + elastic).cluster;
  };
  CHECK((of("{replan: true}").elastic && of("{replan: true}").replan));
  CHECK((of("{}").elastic && !of("{}").replan));
  CHECK(spec::to_yaml(replanned_job("{dp: 2}", 2)).find("elastic:\n      replan: true") != std::string::npos);
}
