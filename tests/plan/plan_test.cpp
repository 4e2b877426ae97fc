// The plan against the trainer's own dry runs, closed forms, and limits of time and memory.

#include <sys/resource.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/plan/cost/cost_model.h"
#include "core/plan/cost/units.h"
#include "core/plan/predict/plan.h"
#include "core/plan/search/search.h"
#include "core/rank/dry_run.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/train/trainer.h"
#include "kernels/base/clock.h"
#include "kernels/meta/meta_backend.h"
#include "parallel/comm/meta/meta_communicator.h"

using namespace trainerd;

namespace {

core::job::JobSpec job_of(const std::string& model, const std::string& rest,
                          const std::string& precision = "bf16") {
  return core::spec::parse_job(
      "model: {" + model + "}\nsteps: 1\ndata: {format: synthetic}\nprecision: " + precision + "\n" + rest,
      "job.yaml");
}

const std::string kSmall = "layers: 8, hidden: 256, heads: 8, ffn: 512, vocab: 1024, seq_len: 128";

core::plan::Plan plan_of(const core::job::JobSpec& job) {
  return core::plan::make_plan(job, core::spec::job_topology(job));
}

std::int64_t term(const core::plan::StagePlan& stage, const std::string& name) {
  const auto at = stage.terms.find(name);
  return at == stage.terms.end() ? 0 : at->second;
}

}  // namespace

TEST_CASE("a stage's memory equals its own rank's dry run, whichever class recorded it", "[plan]") {
  const std::vector<std::string> layouts = {
      "parallel: {pp: 4, dp: 2}",
      "parallel: {pp: 4, tp: 2, virtual_stages: 2, schedule: interleaved}",
      "parallel: {pp: 4, dp: 2, zero: 3, schedule: zb-h1}",
      "parallel: {pp: 3, dp: 2, zero: 2}",
      "parallel: {pp: 2, dp: 2}\nrecompute: {kind: full, every: 3}",
  };
  for (const std::string& layout : layouts) {
    CAPTURE(layout);
    const core::job::JobSpec job =
        job_of(kSmall, layout + "\nbatch: {global: 48, micro: 2}\ncluster: {preset: dgx-h100}\n");
    const parallel::Topology topology = core::spec::job_topology(job);
    const core::plan::Plan plan = core::plan::make_plan(job, topology);
    const parallel::Layout laid = parallel::resolve_layout(
        job.parallel, topology, core::rank::model_costs(job.model), job.microbatches());
    for (std::int64_t rank = 0; rank < laid.grid.ranks(); ++rank) {
      const core::rank::DryRun dry = core::rank::dry_run(job, laid, rank, topology.device);
      const auto stage =
          static_cast<std::size_t>(laid.grid.coordinate(rank)[static_cast<std::size_t>(parallel::Axis::pp)]);
      CAPTURE(rank, stage);
      CHECK(plan.stages[stage].memory.total_bytes() >= dry.memory.total_bytes());
      if (laid.grid.coordinate(rank)[0] + laid.grid.coordinate(rank)[3] == 0)
        CHECK(plan.stages[stage].memory.total_bytes() == dry.memory.total_bytes());
    }
  }
}

TEST_CASE("a record of few microbatches counts the FLOPs of all", "[plan]") {
  const core::job::JobSpec job =
      job_of(kSmall, "parallel: {pp: 2}\nbatch: {global: 26, micro: 2}\nrecompute: {kind: selective}\n");
  const parallel::Topology topology = core::spec::job_topology(job);
  const parallel::Layout layout = parallel::resolve_layout(
      job.parallel, topology, core::rank::model_costs(job.model), job.microbatches());
  for (const std::int64_t rank : {0, 1}) {
    double flops = 0;
    bool counting = false;
    kernels::MetaBackend backend(
        topology.device, [&](const kernels::MetaCall& call) { flops += counting ? call.cost.flops : 0; });
    parallel::MetaWorld world(rank);
    const core::train::RankGroups groups(layout, rank, job.model, world, backend);
    core::train::StepMemory memory(core::train::count_slots(job, layout, rank), topology.device.alignment);
    core::train::Trainer trainer(job, layout, backend, groups, memory);
    core::train::SampleBatches batches(trainer.batch_shape(), nullptr);  // the meta world reads no samples
    trainer.step(1, batches, {});
    counting = true;
    trainer.step(2, batches, {});
    const core::rank::RankRecord record = core::rank::record_rank(
        job, layout, rank, topology.device, core::train::count_slots(job, layout, rank));
    const auto counts =
        core::rank::action_counts(parallel::schedule_shape(layout.options, job.microbatches()));
    CHECK(record.flops(counts[static_cast<std::size_t>(rank)]) == Approx(flops).epsilon(1e-12));
  }
}

TEST_CASE("model states match the ZeRO paper's table 1", "[plan]") {
  // 16 bytes per parameter, sharded over 64 or 1024 ranks by stage: 4 P + 12 P / N, 2 P + 14 P / N, 16 P / N.
  // Gradients are bf16.
  const std::string model =
      "layers: 48, hidden: 3584, heads: 28, ffn: 14336, vocab: 51200, seq_len: 1024, mlp: gelu";
  for (const std::int64_t n : {64, 1024})
    for (const std::int64_t zero : {1, 2, 3}) {
      CAPTURE(n, zero);
      const core::job::JobSpec job = core::spec::parse_job(
          "model: {" + model +
              "}\nsteps: 1\ndata: {format: synthetic}\nprecision: {compute: bf16, grads: bf16}\nbatch: "
              "{global: " +
              std::to_string(n) + ", micro: 1}\nparallel: {dp: " + std::to_string(n) +
              ", zero: " + std::to_string(zero) +
              ", overlap_grad_reduce: false, overlap_param_gather: false}\ncluster: {preset: dgx-h100}\n",
          "job.yaml");
      const core::plan::Plan plan = plan_of(job);
      const core::plan::StagePlan& stage = plan.stages.front();
      const double p = static_cast<double>(core::job::count_parameters(job.model).total),
                   parts = static_cast<double>(n);
      const double states = static_cast<double>(term(stage, "parameters") + term(stage, "gradients") +
                                                term(stage, "master_weights") + term(stage, "moments"));
      const double paper = zero == 1   ? 4 * p + 12 * p / parts
                           : zero == 2 ? 2 * p + 14 * p / parts
                                       : 16 * p / parts;
      // In addition to the table: rings that hold a unit of parameters or gradients while in use. A unit is a
      // layer's matrices or a vocabulary table.
      const double unit = 2.0 * std::max(51200.0 * 3584, 12.0 * 3584 * 3584);
      CHECK(states >= 0.999 * paper);
      CHECK(states <= 1.01 * paper + (zero == 1 ? 0 : static_cast<double>(zero) * unit + 40e6));
    }
}

TEST_CASE("with adapters the weights are planned without gradients, states and master weights", "[plan]") {
  const auto plan_with = [](const std::string& lora) {
    return plan_of(job_of("preset: llama-3-8b, from: base",
                          lora + "parallel: {dp: 8, zero: 1}\nbatch: {global: 64, micro: 1}\n"
                                 "recompute: {kind: selective}\ncluster: {preset: dgx-h100}\n"));
  };
  const core::plan::Plan plan = plan_with("lora: {rank: 16}\n"), full = plan_with("");
  const core::job::ParameterCount count = core::job::count_parameters(plan.job.model);
  // Rank x (inputs + outputs) of q, k, v, o, gate, up, down in 32 layers.
  CHECK(count.adapters == 32 * 16 * (8192 + 2 * 5120 + 8192 + 3 * 18432));
  CHECK(count.total == core::job::count_parameters(full.job.model).total);
  CHECK(plan.checkpoint.bytes == 12 * count.adapters);
  const core::plan::StagePlan& stage = plan.stages.front();
  const auto close = [](std::int64_t bytes, std::int64_t expected) {
    return Approx(static_cast<double>(expected)).epsilon(0.01) == static_cast<double>(bytes);
  };
  CHECK(close(term(stage, "parameters"), 2 * (count.total + count.adapters) + 4 * count.adapters / 8));
  CHECK(close(term(stage, "gradients"), 4 * count.adapters));
  CHECK(close(term(stage, "moments"), 8 * count.adapters / 8));
  // 4 of 6 FLOPs per weight. Operators compute these, attention's recomputation and the adapters' inner
  // products.
  CHECK(core::job::flops_per_token(plan.job.model) ==
        Approx(core::job::flops_per_token(full.job.model) - 2.0 * static_cast<double>(count.matmul) +
               6.0 * static_cast<double>(count.adapters)));
  CHECK(plan.hardware_tflops_per_device > plan.model_tflops_per_device);
  CHECK(plan.hardware_tflops_per_device < 1.1 * plan.model_tflops_per_device);
  CHECK(plan.time.step_seconds < 0.9 * full.time.step_seconds);
  CHECK_THAT(core::plan::plan_text(plan, 0), Catch::Contains("LoRA of rank 16, alpha 32 on q_proj, k_proj"));
  CHECK_THAT(core::plan::plan_text(full, 0), !Catch::Contains("LoRA"));
}

TEST_CASE("with ZeRO 0 and 1 gradients are held once: sums are made in place", "[plan]") {
  for (const std::int64_t zero : {0, 1}) {
    CAPTURE(zero);
    const core::job::JobSpec job =
        job_of("layers: 32, hidden: 4096, heads: 32, ffn: 11008, vocab: 32000, seq_len: 4096",
               "parallel: {tp: 4, dp: 2, sequence_parallel: true, zero: " + std::to_string(zero) +
                   "}\nbatch: {global: 8, micro: 1}\ncluster: {preset: dgx-h100}\n");
    const core::plan::StagePlan stage = plan_of(job).stages.front();
    const double states = static_cast<double>(term(stage, "parameters") + term(stage, "gradients") +
                                              term(stage, "master_weights") + term(stage, "moments"));
    // bf16 parameters, fp32 gradients, fp32 master weights and moments, for a quarter of 6.74e9 parameters.
    const double parameters = static_cast<double>(core::job::count_parameters(job.model).total) / 4;
    const double expected = parameters * (6 + 12.0 / (zero == 0 ? 1 : 2));
    if (zero == 1) CHECK(expected == Approx(20.22e9).epsilon(0.001));
    CHECK(states == Approx(expected).epsilon(0.01));
  }
}

TEST_CASE("gradients rounded for transfer are planned with half of the bytes and time", "[plan]") {
  const auto plan_with = [](const std::string& precision, const std::string& parallel) {
    return plan_of(
        job_of("layers: 8, hidden: 4096, heads: 32, ffn: 11008, vocab: 32000, seq_len: 2048",
               "parallel: {" + parallel + "}\nbatch: {global: 64, micro: 1}\ncluster: {preset: dgx-h100}\n",
               precision));
  };
  const auto traffic = [](const core::plan::Plan& plan, const std::string& group) {
    for (const core::plan::TrafficPlan& t : plan.communication)
      if (t.group == group) return t;
    FAIL("no group " << group);
    return core::plan::TrafficPlan{};
  };
  // Per step 8 reductions of P fp32 gradients and gathers of P bf16 parameters: 8 x 4 + 2 bytes against 8 x 2
  // + 2.
  const std::string one = "dp: 8, zero: 2, overlap_grad_reduce: false, bucket_bytes: 1073741824";
  const core::plan::Plan wide = plan_with("bf16", one),
                         rounded = plan_with("{compute: bf16, reduce: bf16}", one);
  const core::plan::TrafficPlan before = traffic(wide, "dp"), after = traffic(rounded, "dp");
  CHECK(after.calls == before.calls);
  CHECK(after.bytes / before.bytes == Approx(18.0 / 34).epsilon(0.001));
  const parallel::LinkSpeed& link = wide.topology.nvlink;
  CHECK(before.seconds - after.seconds ==
        Approx(7.0 / 8 * (before.bytes - after.bytes) / (link.bytes_per_second * link.efficiency)));
  // Casts and sums cost a part of the gain: they read and write memory.
  CAPTURE(before.seconds, after.seconds, wide.time.step_seconds, rounded.time.step_seconds);
  CHECK(rounded.time.step_seconds < wide.time.step_seconds);
  CHECK(rounded.time.step_seconds > wide.time.step_seconds - (before.seconds - after.seconds));
  // Between replicas an element crosses once with 2 bytes and once, as a sum, with 4; with all_reduce twice
  // with 4.
  const std::string hybrid = "dp: 16, zero: 1, zero_group: 8, bucket_bytes: 1073741824";
  const core::plan::TrafficPlan across = traffic(plan_with("bf16", hybrid), "dp_outer"),
                                less =
                                    traffic(plan_with("{compute: bf16, reduce: bf16}", hybrid), "dp_outer");
  CHECK(less.bytes / across.bytes == Approx((2.0 + 4) / 4).epsilon(0.001));
  CHECK(less.seconds < 0.8 * across.seconds);
}

TEST_CASE("both levels of a gather are behind compute on a device with streams", "[plan]") {
  const core::plan::Plan plan =
      plan_of(job_of("preset: llama-3-70b",
                     "device: cuda\nparallel: {dp: 64, zero: 3}\nbatch: {global: 64, micro: "
                     "1}\nrecompute: {kind: full}\ncluster: {preset: dgx-h100}\n"));
  double inner = 0;
  for (const core::plan::TrafficPlan& t : plan.communication)
    if (t.group == std::string("dp_inner")) inner = t.seconds;
  CHECK(inner > 0.1 * plan.time.step_seconds);
  CHECK(plan.time.mean[base::LedgerPart::exposed_dp] < 0.1 * inner);
}

TEST_CASE("collectives take the time of their rings", "[plan]") {
  parallel::Topology t;
  t.devices_per_node = t.nvlink_domain = t.rails = 8;
  t.nvlink = {100e9, 1e-6, 1, 0};
  t.rail = t.network = {10e9, 10e-6, 1, 0};
  using core::plan::collective_seconds;
  using parallel::Link;
  CHECK(collective_seconds(parallel::OpKind::all_reduce, 800'000'000, {8, 8, Link::nvlink}, t) ==
        Approx(2 * 7.0 / 8 * 8e-3 + 14e-6));
  CHECK(collective_seconds(parallel::OpKind::all_gather, 800'000'000, {8, 8, Link::nvlink}, t) ==
        Approx(7.0 / 8 * 8e-3 + 7e-6));
  // One member per node uses one network card. Eight per node use eight cards, as far as NVLink keeps up.
  CHECK(collective_seconds(parallel::OpKind::reduce_scatter, 400'000'000, {4, 1, Link::rail}, t) ==
        Approx(3.0 / 4 * 40e-3 + 30e-6));
  CHECK(collective_seconds(parallel::OpKind::reduce_scatter, 800'000'000, {16, 8, Link::rail}, t) ==
        Approx(15.0 / 16 * 10e-3 + 10e-6 + 14e-6));
  // In an exchange each of the eight sends its parts for the other node over its own card.
  CHECK(collective_seconds(parallel::OpKind::all_to_all, 800'000'000, {16, 8, Link::rail}, t) ==
        Approx(8.0 / 16 * 80e-3 + 10e-6 + 14e-6));
  CHECK(collective_seconds(parallel::OpKind::all_to_all, 400'000'000, {4, 1, Link::rail}, t) ==
        Approx(3.0 / 4 * 40e-3 + 30e-6));
  // A small sum over many nodes uses a tree.
  CHECK(collective_seconds(parallel::OpKind::all_reduce, 8, {1024, 1, Link::rail}, t) ==
        Approx(2 * 10 * 10e-6).epsilon(1e-3));
  CHECK(collective_seconds(parallel::OpKind::all_reduce, 8, {1, 1, Link::none}, t) == 0);
}

TEST_CASE("a transfer uses the ports that its bytes cross", "[plan]") {
  parallel::Topology t;
  t.devices_per_node = t.nvlink_domain = t.rails = 8;
  t.nvlink = {100e9, 1e-6, 1, 0};
  t.rail = t.network = {10e9, 10e-6, 1, 5e-6};
  using parallel::Link;
  using Shares = std::array<double, core::plan::kPorts>;  // NVLink, network, host
  const auto shares = [&](core::plan::GroupPlace place) {
    return core::plan::collective_cost(parallel::OpKind::all_gather, 1 << 20, place, t).shares;
  };
  CHECK(shares({8, 8, Link::nvlink}) == Shares{1, 0, 0});
  CHECK(shares({4, 1, Link::rail}) == Shares{0, 1, 0});
  // Rings over eight cards run at 80 GB/s: each member forwards seven eighths of that over its NVLink of 100
  // GB/s.
  CHECK(shares({16, 8, Link::rail})[0] == Approx(0.7));
  CHECK(shares({16, 8, Link::rail})[1] == Approx(1));
  // With an NVLink of 40 GB/s the cards are half idle.
  t.nvlink.bytes_per_second = 40e9;
  CHECK(shares({16, 8, Link::rail})[0] == Approx(7.0 / 8));
  CHECK(shares({16, 8, Link::rail})[1] == Approx(0.5));
  CHECK(core::plan::message_cost(1 << 20, Link::nvlink, t).shares == Shares{1, 0, 0});
  CHECK(core::plan::message_cost(1 << 20, Link::network, t).shares == Shares{0, 1, 0});
  CHECK(core::plan::message_cost(1 << 20, Link::rail, t).latency == Approx(15e-6));
  CHECK(core::plan::collective_cost(parallel::OpKind::reduce_scatter, 400'000'000, {4, 1, Link::rail}, t)
            .latency == Approx(5e-6 + 3 * 10e-6));
  CHECK(core::plan::collective_cost(parallel::OpKind::barrier, 0, {4, 1, Link::rail}, t).bandwidth == 0);
  // Ranks connected by host memory: the measured time without the part for zero bytes.
  t.measured.devices = 2;
  t.measured.collectives["message"] = {1e3, 10e-6, 1e6, 200e-6};
  const core::plan::TransferCost by_host = core::plan::message_cost(1'000'000, Link::shared_memory, t);
  CHECK(by_host.shares == Shares{0, 0, 1});
  CHECK(by_host.latency == Approx(5e-6));
  CHECK(by_host.bandwidth == Approx(195e-6));
}

TEST_CASE("a matrix product takes whole waves of tiles", "[plan]") {
  parallel::Topology t;
  t.peak.bf16 = 100e12;
  t.memory_bytes_per_second = 1e15;
  t.device.sm_count = 100;
  t.rates.gemm = {.efficiency = 1, .tile_rows = 256, .tile_columns = 128, .start_depth = 0};
  t.rates.memory_efficiency = 1;
  const auto seconds = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    return core::plan::op_seconds(
        {kernels::Operator::linear_fprop,
         kernels::gemm_class(kernels::GemmRole::fprop, kernels::DType::bf16, kernels::DType::bf16, m, n, k),
         {0, 0}},
        t);
  };
  // 100 tiles of 256 x 128 are one wave at peak rate. One tile more makes two waves.
  CHECK(seconds(2560, 1280, 4096) == Approx(2.0 * 2560 * 1280 * 4096 / 100e12));
  CHECK(seconds(2560 * 8, 1280 * 8, 4096) == Approx(64 * seconds(2560, 1280, 4096)));
  CHECK(seconds(2561, 1280, 4096) > 1.05 * seconds(2560, 1280, 4096));

  // In FP8 at twice the peak, after a pass over the operands that reads two bytes of an element and writes
  // one.
  t.peak.fp8 = 200e12;
  t.memory_bytes_per_second = 1e12;
  const kernels::OpClass in_fp8 =
      kernels::gemm_class(kernels::GemmRole::fprop, kernels::DType::bf16, kernels::DType::bf16, 2560, 1280,
                          4096, kernels::GemmFormat::fp8);
  CHECK(core::plan::op_seconds({kernels::Operator::linear_fprop, in_fp8, {0, 0}}, t) ==
        Approx(2.0 * 2560 * 1280 * 4096 / 200e12 + 3.0 * (2560 + 1280) * 4096 / 1e12));
}

TEST_CASE("405B parameters on 16,384 GPUs are planned in 5 seconds and 1 GB, 100,000 GPUs in 20", "[plan]") {
  const auto planned = [](std::int64_t dp, double limit) {
    const core::job::JobSpec job = job_of(
        "preset: llama-3-405b", "parallel: {tp: 8, pp: 16, dp: " + std::to_string(dp) +
                                    ", zero: 2, sequence_parallel: true, virtual_stages: 7, schedule: "
                                    "interleaved}\nbatch: {global: " +
                                    std::to_string(16 * dp) + ", micro: 1}\ncluster: {preset: dgx-h100}\n");
    const double start = base::monotonic_seconds();
    const core::plan::Plan plan = plan_of(job);
    CHECK(base::monotonic_seconds() - start < limit);
    CHECK(plan.stages.size() == 16);
    CHECK(plan.time.step_seconds > 0);
    return plan;
  };
  planned(128, 5);
  planned(781, 20);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  CHECK(usage.ru_maxrss < 1'000'000);  // kB
}

TEST_CASE("the error for a job that does not fit names layouts that fit", "[plan]") {
  const core::job::JobSpec job = job_of(
      "preset: llama-3-70b",
      "parallel: {tp: 8, dp: 8, zero: 0}\nbatch: {global: 64, micro: 1}\ncluster: {preset: dgx-h100}\n");
  core::plan::Plan plan = plan_of(job);
  CHECK_FALSE(plan.fits);
  plan.near = core::plan::near_changes(job, plan.topology, core::plan::NoneFits::smallest);
  REQUIRE_FALSE(plan.near.empty());
  for (const core::plan::NearLayout& near : plan.near) CHECK(near.peak_bytes <= plan.device_bytes);
  const std::string text = core::plan::plan_text(plan, 0);
  CHECK_THAT(text,
             Catch::Contains("does not fit") && Catch::Contains("fits with " + plan.near.front().change));
}

TEST_CASE("a job whose state exceeds the memory of its ranks hears how many devices hold it", "[plan]") {
  const auto job_with = [](const std::string& more) {
    return job_of("preset: llama-3-70b", "parallel: {dp: 8, zero: 3}\nbatch: {global: 64, micro: 1}\n" +
                                             more + "cluster: {preset: dgx-h100}\n");
  };
  const core::job::JobSpec job = job_with("");
  const parallel::Topology machines = core::spec::job_topology(job);
  const std::int64_t parameters = core::job::count_parameters(job.model).total,
                     device = core::plan::device_bytes(machines, 8);
  // Per parameter: 2 bytes, 4 of its gradient, 4 of its master weight, 8 of AdamW's moments, 4 of Lion's.
  const core::plan::LeastState least = core::plan::least_state(job, machines);
  CHECK(least.bytes == 18 * parameters);
  CHECK(least.devices == (least.bytes + device - 1) / device);
  CHECK(core::plan::least_state(job_with("optimizer: {name: lion}\n"), machines).bytes == 14 * parameters);
  CHECK(core::plan::least_state(job_with("optimizer: {offload: true}\n"), machines).bytes == 6 * parameters);
  const std::vector<core::plan::NearLayout> near =
      core::plan::near_changes(job, machines, core::plan::NoneFits::smallest);
  for (const core::plan::NearLayout& change : near) CHECK(change.fits);
  CHECK_THAT(
      core::plan::near_text(job, machines, near),
      Catch::Contains("no layout of 8 ranks fits: parameters, gradients and optimizer states alone need") &&
          Catch::Contains("the memory of " + std::to_string(least.devices) + " devices"));
}

TEST_CASE("a job with experts that does not fit hears of memory for fewer rows of them", "[plan]") {
  const std::string sizes =
      "parallel: {pp: 4, ep: 8, dp: 16, zero: 1, schedule: interleaved, virtual_stages: 8, EXPERTS}\n"
      "batch: {global: 256, micro: 1}\ncluster: {preset: dgx-h100}\n";
  const auto near_of = [&](const std::string& experts) {
    std::string with = sizes;
    const core::job::JobSpec job =
        job_of("preset: mixtral-8x7b, seq_len: 4096", with.replace(with.find("EXPERTS"), 7, experts));
    CHECK_FALSE(plan_of(job).fits);
    const parallel::Topology machines = core::spec::job_topology(job);
    return core::plan::near_text(job, machines,
                                 core::plan::near_changes(job, machines, core::plan::NoneFits::nothing));
  };
  CHECK_THAT(near_of("overlap_ep: true"), Catch::Contains("fits with parallel.ep_capacity: 2, if") &&
                                              Catch::Contains("parallel.ep_comm: all_to_all"));
  CHECK_THAT(near_of("ep_capacity: 6"), !Catch::Contains("ep_capacity"));
}

TEST_CASE("a plan tells the time of a growing batch's steps, with the memory of all", "[plan][ramp]") {
  const auto job_with = [](const std::string& batch) {
    return job_of("preset: llama-3-8b", "parallel: {tp: 2, pp: 2, dp: 4, zero: 1}\nbatch: {" + batch +
                                            ", micro: 1}\ncluster: {preset: dgx-h100}\n");
  };
  core::job::JobSpec job = job_with("global: 64, ramp: [{global: 8, steps: 5}, {global: 32, steps: 10}]");
  job.steps = 100;
  core::plan::Plan plan = plan_of(job);
  plan.ramp = core::plan::ramp_plans(job, plan.topology);
  REQUIRE(plan.ramp.size() == 2);
  CHECK(plan.time.step_seconds == plan_of(job_with("global: 64")).time.step_seconds);
  CHECK(plan.peak_bytes >= plan_of(job_with("global: 64")).peak_bytes);
  CHECK(plan.ramp[0].step_seconds == plan_of(job_with("global: 8")).time.step_seconds);
  CHECK(plan.ramp[1].step_seconds == plan_of(job_with("global: 32")).time.step_seconds);
  CHECK(plan.ramp[1].span == core::job::BatchSpan{32, 10});
  CHECK_THAT(core::plan::plan_text(plan, 0), Catch::Contains("10 steps of 32 sequences before: "));
  const double tokens = 8192.0 * (5 * 8 + 10 * 32 + 85 * 64), seconds = 5 * plan.ramp[0].step_seconds +
                                                                        10 * plan.ramp[1].step_seconds +
                                                                        85 * plan.time.step_seconds;
  CHECK_THAT(core::plan::plan_text(plan, tokens),
             Catch::Contains(" tokens: " + core::plan::duration(seconds)));
  CHECK_THAT(core::plan::plan_text(plan, 8192.0 * (5 * 8 + 3 * 32)),
             Catch::Contains(" tokens: " + core::plan::duration(5 * plan.ramp[0].step_seconds +
                                                                3 * plan.ramp[1].step_seconds)));
  CHECK_THAT(core::plan::plan_summary(plan), Catch::Contains("100 steps: " + core::plan::duration(seconds)));
}

TEST_CASE("the plan of a job in fp32 on GPUs tells what bf16 would compute on", "[plan]") {
  core::job::JobSpec job =
      job_of("preset: llama-3-8b",
             "parallel: {tp: 4, dp: 2}\nbatch: {global: 8, micro: 1}\ncluster: {preset: dgx-h100}\n");
  CHECK_THAT(core::plan::plan_text(plan_of(job), 0), !Catch::Contains("precision: bf16"));
  job.precision = {};
  CHECK_THAT(core::plan::plan_text(plan_of(job), 0),
             Catch::Contains("precision: bf16 computes on tensor cores, 989 TFLOP/s"));
}

TEST_CASE("fp16 on GPUs is planned as bf16, with the state of loss scaling beside it", "[plan]") {
  const std::string rest =
      "parallel: {tp: 2, pp: 2, dp: 2}\nbatch: {global: 48, micro: 2}\ncluster: {preset: dgx-h100}\n";
  const core::plan::Plan bf16 = plan_of(job_of(kSmall, rest)), fp16 = plan_of(job_of(kSmall, rest, "fp16"));
  REQUIRE((bf16.timed && fp16.timed));
  CHECK(fp16.time.step_seconds == Approx(bf16.time.step_seconds).epsilon(0.01));
  CHECK(fp16.time.step_seconds > bf16.time.step_seconds);
  REQUIRE(fp16.stages.size() == bf16.stages.size());
  for (std::size_t i = 0; i < bf16.stages.size(); ++i)
    CHECK(fp16.stages[i].bytes - bf16.stages[i].bytes <= 512);
}

TEST_CASE("a plan counts the padding of a batch that does not divide, and its time", "[plan]") {
  const auto plan_with = [](const std::string& global) {
    return plan_of(job_of("preset: llama-3-8b", "parallel: {tp: 2, pp: 2, dp: 4, zero: 1}\nbatch: {global: " +
                                                    global + ", micro: 1}\ncluster: {preset: dgx-h100}\n"));
  };
  const core::plan::Plan padded = plan_with("61"), whole = plan_with("64");
  CHECK(padded.time.step_seconds == whole.time.step_seconds);
  CHECK(padded.peak_bytes == whole.peak_bytes);
  CHECK(padded.tokens_per_second_per_device == Approx(whole.tokens_per_second_per_device * 61 / 64));
  CHECK_THAT(core::plan::plan_text(padded, 0), Catch::Contains("padding: 3 of 64 sequences of a step"));
  CHECK_THAT(core::plan::plan_text(whole, 0), !Catch::Contains("padding"));
  CHECK(nlohmann::json::parse(core::plan::plan_json(padded, 0))["padding_sequences"] == 3);
}

TEST_CASE("a plan counts the repeated part of verified steps, without update, and memory for hashes only",
          "[plan]") {
  const std::string rest = "parallel: {dp: 2}\nbatch: {global: 8, micro: 2}\ncluster: {preset: dgx-h100}\n";
  const core::plan::Plan plain = plan_of(job_of(kSmall, rest));
  const core::plan::Plan verified = plan_of(job_of(kSmall, rest + "supervise: {verify: {every: 10}}\n"));
  CHECK(plain.verify_seconds == 0);
  const double update = plain.time.mean[base::LedgerPart::optimizer];
  CHECK(update > 0);
  CHECK(verified.verify_seconds == Approx((plain.time.step_seconds - update) / 10));
  CHECK(verified.time.step_seconds == plain.time.step_seconds);
  const std::int64_t more = verified.peak_bytes - plain.peak_bytes;
  CHECK(more > 0);
  CHECK(more < 64 << 10);
  const auto days = [](const core::plan::Plan& plan) {
    return nlohmann::json::parse(core::plan::plan_json(plan, 1e12))["budget"]["days"].get<double>();
  };
  CHECK(days(verified) == Approx(days(plain) * (1 + verified.verify_seconds / plain.time.step_seconds)));
  CHECK_THAT(core::plan::plan_text(verified, 0), Catch::Contains("supervise.verify adds "));
}

TEST_CASE("a plan says what the step before the first takes, where replicas compute one", "[plan]") {
  const auto planned = [](const std::string& more) {
    return plan_of(job_of(kSmall, "batch: {global: 8, micro: 2}\ncluster: {preset: dgx-h100}\n" + more));
  };
  const core::plan::Plan two = planned("parallel: {dp: 2}\n");
  const core::plan::Plan few = plan_of(
      job_of(kSmall, "batch: {global: 4, micro: 1}\ncluster: {preset: dgx-h100}\nparallel: {dp: 2}\n"));
  CHECK(two.canary_seconds == Approx(few.time.step_seconds - few.time.mean[base::LedgerPart::optimizer]));
  CHECK(two.canary_seconds < two.time.step_seconds - two.time.mean[base::LedgerPart::optimizer]);
  CHECK_THAT(core::plan::plan_text(two, 0),
             Catch::Contains("each start computes a step of few tokens first (supervise.preflight): "));
  CHECK(nlohmann::json::parse(core::plan::plan_json(two, 0))["canary_seconds"] == two.canary_seconds);
  CHECK(planned("parallel: {dp: 1}\n").canary_seconds == 0);
  CHECK(planned("parallel: {dp: 2}\nsupervise: {preflight: false}\n").canary_seconds == 0);
  CHECK(planned("parallel: {dp: 2}\nattention: fast\n").canary_seconds == 0);
}

TEST_CASE("an offloaded optimizer makes room on the device, and its update crosses the link to the host",
          "[plan][offload]") {
  const auto planned = [](const std::string& more) {
    return plan_of(job_of("preset: llama-3-70b",
                          "device: cuda\nparallel: {dp: 16, zero: 3}\nbatch: {global: 64, micro: 1}\n"
                          "recompute: {kind: full}\ncluster: {preset: dgx-h100}\n" +
                              more));
  };
  const core::plan::Plan there = planned(""), offloaded = planned("optimizer: {offload: true}\n");
  CHECK_FALSE(there.fits);
  CHECK(offloaded.fits);
  const std::int64_t host = offloaded.stages[0].memory.host_bytes();
  CHECK(host ==
        offloaded.stages[0].host_terms.at("master_weights") + offloaded.stages[0].host_terms.at("moments"));
  CHECK(there.stages[0].memory.bytes_of("persistent") ==
        offloaded.stages[0].memory.bytes_of("persistent") + host);
  // Master weights and two moments, read and written.
  CHECK(offloaded.time.mean[base::LedgerPart::optimizer] ==
        Approx(2 * static_cast<double>(host) / 55.4e9).epsilon(0.02));
  CHECK(there.time.mean[base::LedgerPart::optimizer] <
        0.1 * offloaded.time.mean[base::LedgerPart::optimizer]);
  CHECK_THAT(core::plan::plan_text(offloaded, 0),
             Catch::Contains("on its host") && Catch::Contains("moments"));
  const auto near = core::plan::near_changes(there.job, there.topology, core::plan::NoneFits::nothing);
  CHECK(std::any_of(near.begin(), near.end(), [](const core::plan::NearLayout& n) {
    return n.change == "optimizer: {offload: true}" && n.fits;
  }));
  // The state counts as memory of the node.
  parallel::Topology small = offloaded.topology;
  small.node_memory_bytes = 8 * host;
  CHECK_FALSE(core::plan::make_plan(offloaded.job, small).fits);
  // Without a rate of the link the plan has no time.
  parallel::Topology unknown = offloaded.topology;
  unknown.host_bytes_per_second = 0;
  const core::plan::Plan untimed = core::plan::make_plan(offloaded.job, unknown);
  CHECK(untimed.fits);
  CHECK_FALSE(untimed.timed);
  CHECK(core::plan::near_changes(there.job, unknown, core::plan::NoneFits::nothing).size() == near.size());
  // The average of weights is there too: weights are read once more, the average is read and written.
  const core::plan::Plan averaged = planned("optimizer: {offload: true}\nema: {decay: 0.999}\n");
  CHECK(averaged.time.mean[base::LedgerPart::optimizer] ==
        Approx(1.5 * offloaded.time.mean[base::LedgerPart::optimizer]).epsilon(0.02));
}

TEST_CASE(
    "offloaded parameters and gradients leave a device two units of each, and their copies are behind "
    "compute",
    "[plan][offload]") {
  const auto planned = [](const std::string& more, const std::string& micro = "4") {
    return plan_of(job_of("preset: llama-3-8b",
                          "device: cuda\nrecompute: {kind: full}\ncluster: {preset: dgx-h100}\n"
                          "optimizer: {offload: true}\nbatch: {global: 16, micro: " +
                              micro + "}\n" + more));
  };
  const core::plan::Plan there = planned("parallel: {dp: 1}\n"),
                         all = planned("parallel: {zero: 3, offload_params: true, offload_grads: true}\n");
  const auto term = [](const core::plan::Plan& plan, const char* name) {
    const auto at = plan.stages[0].terms.find(name);
    return at == plan.stages[0].terms.end() ? 0 : at->second;
  };
  const std::int64_t parameters = 8030261248;
  CHECK(all.stages[0].host_terms.at("parameters") ==
        Approx(static_cast<double>(2 * parameters)).epsilon(0.001));
  CHECK(all.stages[0].host_terms.at("gradients") ==
        Approx(static_cast<double>(4 * parameters)).epsilon(0.001));
  // The largest unit is the embedding.
  const std::int64_t unit = 128256 * 4096;
  CHECK(term(all, "parameters") == Approx(static_cast<double>(2 * 2 * unit)).epsilon(0.01));
  CHECK(term(all, "gradients") == Approx(static_cast<double>(2 * 4 * unit)).epsilon(0.01));
  CHECK(term(there, "parameters") > 3 * term(all, "parameters"));
  // Each microbatch reads the parameters forward and backward, but the embedding and the head once; all but
  // the first read the sum of gradients.
  const auto traffic = [&](const char* group) {
    for (const core::plan::TrafficPlan& t : all.communication)
      if (std::string(t.group) == group) return t.bytes;
    return 0.0;
  };
  CHECK(traffic("from_host") ==
        Approx(static_cast<double>(4 * 2 * (2 * parameters - 2 * unit) + 3 * 4 * parameters)).epsilon(0.002));
  CHECK(traffic("to_host") == Approx(static_cast<double>(4 * 4 * parameters)).epsilon(0.002));
  const auto exposed = [](const core::plan::Plan& plan) {
    return plan.time.mean[base::LedgerPart::exposed_host];
  };
  CHECK(exposed(there) == 0);
  CHECK(exposed(all) < 0.1 * (traffic("from_host") + traffic("to_host")) / 55.4e9);
  CHECK(all.time.mean.sum() == Approx(all.time.step_seconds));
  // Microbatches of one sequence are over before the link is.
  const core::plan::Plan small =
      planned("parallel: {zero: 3, offload_params: true, offload_grads: true}\n", "1");
  CHECK(exposed(small) > 5 * exposed(all));
  CHECK(term(all, "workspace") >= 64 << 20);  // pieces of earlier sums
  // All training of 32B on one GPU.
  const core::job::JobSpec large =
      job_of("preset: qwen2.5-32b",
             "device: cuda\nbatch: {global: 16, micro: 4}\nrecompute: {kind: full}\n"
             "cluster: {preset: dgx-h100}\n");
  const auto advised =
      core::plan::near_changes(large, plan_of(large).topology, core::plan::NoneFits::nothing);
  CHECK(std::any_of(advised.begin(), advised.end(), [](const core::plan::NearLayout& n) {
    return n.change ==
           "optimizer: {offload: true}, parallel: {zero: 3, offload_params: true, offload_grads: true}";
  }));
}

TEST_CASE("offloaded inputs of layers leave a device four of them, and their copies are behind compute",
          "[plan][offload]") {
  const auto planned = [](const std::string& more,
                          const std::string& model = "preset: llama-3-8b, seq_len: 131072") {
    return plan_of(job_of(model,
                          "device: cuda\nrecompute: {kind: full}\ncluster: {preset: dgx-h100}\n"
                          "attention: fast\noptimizer: {offload: true}\nbatch: {global: 2, micro: 1}\n" +
                              more));
  };
  const std::string state = "zero: 3, offload_params: true, offload_grads: true";
  const core::plan::Plan there = planned("parallel: {" + state + "}\n"),
                         all = planned("parallel: {" + state + ", offload_activations: true}\n");
  const double input = 2.0 * 131072 * 4096, layers = 32;
  CHECK(static_cast<double>(all.stages[0].host_terms.at("activations")) == layers * input);
  CHECK(static_cast<double>(there.peak_bytes - all.peak_bytes) == Approx((layers - 4) * input).epsilon(0.01));
  const auto traffic = [](const core::plan::Plan& plan, const char* group) {
    for (const core::plan::TrafficPlan& t : plan.communication)
      if (std::string(t.group) == group) return t.bytes;
    return 0.0;
  };
  for (const char* group : {"from_host", "to_host"})
    CHECK(traffic(all, group) - traffic(there, group) == Approx(2 * layers * input));
  CHECK(all.time.mean[base::LedgerPart::exposed_host] < 0.01 * all.time.step_seconds);
  // A job that does not fit hears of it.
  const core::job::JobSpec job =
      job_of("preset: llama-3-8b, seq_len: 262144",
             "device: cuda\nrecompute: {kind: full}\ncluster: {preset: dgx-h100}\nattention: fast\n"
             "optimizer: {offload: true}\nbatch: {global: 2, micro: 1}\nparallel: {" +
                 state + "}\n");
  const core::plan::Plan plan = plan_of(job);
  CHECK_FALSE(plan.fits);
  const auto near = core::plan::near_changes(job, plan.topology, core::plan::NoneFits::nothing);
  CHECK(std::any_of(near.begin(), near.end(), [](const core::plan::NearLayout& n) {
    return n.change == "parallel: {offload_activations: true}";
  }));
}

TEST_CASE("a plan as JSON has what programs read", "[plan]") {
  const core::job::JobSpec job =
      job_of("preset: llama-3-8b",
             "parallel: {tp: 2, pp: 2, dp: 4, zero: 1}\nbatch: {global: 64, micro: "
             "1}\nrecompute: {kind: full}\ncluster: {preset: dgx-h100}\n");
  const core::plan::Plan plan = plan_of(job);
  const auto json = nlohmann::json::parse(core::plan::plan_json(plan, 1e12));
  CHECK(json["fits"] == plan.fits);
  CHECK(json["memory"]["peak_bytes"] == plan.peak_bytes);
  CHECK(json["memory"]["stages"].size() == 2);
  const double step = json["step_seconds"];
  CHECK(step > 0);
  double ledger = 0;
  for (const auto& [part, seconds] : json["time"].items()) ledger += seconds.get<double>();
  CHECK(ledger == Approx(step).epsilon(1e-6));
  CHECK(json["tokens_per_second_per_device"].get<double>() == Approx(64 * 8192 / step / 16));
  CHECK(json["mfu"].get<double>() ==
        Approx(core::job::flops_per_token(job.model) * 64 * 8192 / step / 16 / 989e12));
  CHECK(json["tflops_per_device"].get<double>() == Approx(json["mfu"].get<double>() * 989));
  CHECK(json["hardware_tflops_per_device"].get<double>() > json["tflops_per_device"].get<double>());
  for (const char* group : {"tp", "dp", "pp", "world"}) CHECK(json["communication"].contains(group));
  CHECK(json["budget"]["days"].get<double>() == Approx(1e12 / (64 * 8192 / step) / 86400));
  CHECK(json.contains("flops_convention"));
}
