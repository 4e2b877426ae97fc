// Attention on GPUs in the plan: kernels, workspace, and their cost.

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/plan/cost/cost_model.h"
#include "core/plan/predict/plan.h"
#include "core/plan/search/search.h"
#include "core/rank/dry_run.h"
#include "core/rank/record.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/train/rank_schedule.h"
#include "kernels/base/error.h"

using namespace trainerd;

namespace {

using kernels::AttentionKernel;
using kernels::OpClass;

constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;

core::job::JobSpec llama_8b(std::int64_t seq_len, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides{"model.seq_len=" + std::to_string(seq_len)};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return core::spec::parse_job(
      "model: {preset: llama-3.1-8b}\nsteps: 1\ndata: {format: synthetic}\nprecision: bf16\n"
      "parallel: {tp: 8, sequence_parallel: true, zero: 1}\nrecompute: {kind: full}\n"
      "batch: {global: 2, micro: 1}\ncluster: {preset: dgx-h100}\n",
      "job.yaml", overrides);
}

/// A small model with the attention keys in `model`.
core::job::JobSpec small_attention(const std::string& model, const std::vector<std::string>& more = {}) {
  return core::spec::parse_job("model: {layers: 2, hidden: 512, ffn: 1024, vocab: 1024, " + model +
                                   "}\nsteps: 1\ndata: {format: synthetic}\nprecision: bf16\n"
                                   "batch: {global: 2, micro: 2}\ncluster: {preset: dgx-h100}\n",
                               "job.yaml", more);
}

core::plan::Plan attention_plan_of(const core::job::JobSpec& job) {
  return core::plan::make_plan(job, core::spec::job_topology(job));
}

core::rank::RankRecord attention_record(const core::job::JobSpec& job, const parallel::Topology& topology) {
  const parallel::Layout layout = parallel::resolve_layout(
      job.parallel, topology, core::rank::model_costs(job.model), job.microbatches());
  return core::rank::record_rank(job, layout, 0, topology.device, core::train::count_slots(job, layout, 0));
}

const core::rank::RecordedOp& attention_of(const core::rank::RankRecord& record, OpClass::Kind kind) {
  const auto found = std::ranges::find_if(record.ops, [&](const auto& op) { return op.what.kind == kind; });
  REQUIRE(found != record.ops.end());
  return *found;
}

/// Seconds of attention's backward pass, per FLOP of the library's algorithm.
double backward_seconds(const core::job::JobSpec& job) {
  const parallel::Topology topology = core::spec::job_topology(job);
  const core::rank::RankRecord record = attention_record(job, topology);
  return core::plan::op_seconds(attention_of(record, OpClass::Kind::attention_backward), topology);
}

}  // namespace

TEST_CASE("8B at 128k tokens fits one node in the default mode, and the plan reports the cost",
          "[plan][attention]") {
  const core::plan::Plan plan = attention_plan_of(llama_8b(131072)),
                         fast = attention_plan_of(llama_8b(131072, {"attention=fast"}));
  CHECK(plan.job.attention.backward == kernels::Determinism::deterministic);
  CHECK(plan.topology.nodes * plan.topology.devices_per_node == 8);
  REQUIRE(fast.fits);
  REQUIRE(plan.fits);
  // Row sums only in place of 2 h s^2.
  CHECK(plan.peak_bytes <= fast.peak_bytes);
  CHECK(fast.attention.own_calls == 0);
  const core::plan::AttentionPlan& a = plan.attention;
  CHECK(a.limited_calls == 32 * plan.job.microbatches());
  CHECK(a.own_calls == a.limited_calls);
  CHECK(a.plain_calls == 0);
  CHECK(a.limited_tokens == 131072);
  CHECK(a.limited_seconds > a.fast_seconds);
  // The plan with `fast` is faster by the difference that the plan reports.
  CHECK(plan.time.step_seconds - fast.time.step_seconds ==
        Approx(a.limited_seconds - a.fast_seconds).epsilon(1e-3));
  const std::string text = core::plan::plan_text(plan, 0);
  CHECK_THAT(text, Catch::Contains("run by our own kernels") &&
                       Catch::Contains("deterministic backward of 131072 tokens") &&
                       Catch::Contains("with attention: fast\n"));
  CHECK_THAT(text, Catch::Contains("attention: fast, whose last bits depend on timing"));
  CHECK_THAT(core::plan::plan_text(fast, 0), !Catch::Contains("own kernels"));
  const auto json = nlohmann::json::parse(core::plan::plan_json(plan, 0));
  CHECK(json["own_attention"]["limited_calls"] == a.limited_calls);
  CHECK(json["own_attention"]["limited_seconds"] > json["own_attention"]["fast_seconds"]);
}

TEST_CASE("attention is planned at the rate of the kernels that run it", "[plan][attention]") {
  const std::string few = "heads: 8, seq_len: 4096, head_dim: ";
  // A head size of 68 is no multiple of 8: its kernels use no tensor cores.
  const double of_64 = backward_seconds(small_attention(few + "64")),
               of_68 = backward_seconds(small_attention(few + "68")),
               of_72 = backward_seconds(small_attention(few + "72"));
  CHECK(of_64 < of_72);
  CHECK(of_68 > 20 * of_72);
  // Large heads run with the library on sm_90, and without tensor cores elsewhere.
  const double of_128 = backward_seconds(small_attention(few + "128")),
               of_256 = backward_seconds(small_attention(few + "256"));
  CHECK(of_256 == Approx(2 * of_128).epsilon(0.01));
  CHECK(backward_seconds(small_attention(few + "256", {"cluster.preset=dgx-a100"})) >
        10 * backward_seconds(small_attention(few + "128", {"cluster.preset=dgx-a100"})));
  // A window runs with our own kernels on tensor cores: 7 products in place of 5, at a fraction of the
  // library's rate on sm_90.
  const core::job::JobSpec windowed = small_attention(few + "128, attention: {window: 4095}"),
                           whole = small_attention(few + "128");
  const parallel::Topology h100 = core::spec::job_topology(whole);
  const auto ratio = [&](OpClass::Kind kind) {
    const core::rank::RankRecord a = attention_record(windowed, h100), b = attention_record(whole, h100);
    CHECK(attention_of(a, kind).what.kernel == AttentionKernel::tensor_cores);
    CHECK(attention_of(b, kind).what.kernel == AttentionKernel::library);
    return core::plan::op_seconds(attention_of(a, kind), h100) /
           core::plan::op_seconds(attention_of(b, kind), h100);
  };
  CHECK(ratio(OpClass::Kind::attention_forward) == Approx(2.0).epsilon(0.01));
  CHECK(ratio(OpClass::Kind::attention_backward) == Approx(1.75 * 7 / 5).epsilon(0.01));
}

TEST_CASE("attention's workspace may use a part of the memory that the plan leaves free",
          "[plan][attention]") {
  const core::job::JobSpec job = small_attention("heads: 32, kv_heads: 8, head_dim: 128, seq_len: 8192");
  parallel::Topology topology = core::spec::job_topology(job);
  const std::int64_t plenty = topology.device.memory_bytes;
  REQUIRE(plenty > 0);
  const core::rank::RankRecord roomy = attention_record(job, topology);
  CHECK(roomy.attention_limit_bytes > kGibibyte);
  CHECK_FALSE(core::rank::attention_is_limited(roomy));
  // Without spare memory, or if its size is unknown, the limit is 1 GiB, so that jobs still fit.
  topology.device.memory_bytes = 0;
  const core::rank::RankRecord tight = attention_record(job, topology);
  CHECK(tight.attention_limit_bytes == kGibibyte);
  CHECK(core::rank::attention_is_limited(tight));
  CHECK(attention_of(tight, OpClass::Kind::attention_backward).what.kernel == AttentionKernel::library);
  CHECK(tight.memory.total_bytes() < roomy.memory.total_bytes());
  const parallel::Layout layout = parallel::resolve_layout(
      job.parallel, topology, core::rank::model_costs(job.model), job.microbatches());
  const std::int64_t overhead = core::rank::overhead_bytes(job, layout, 0);
  for (const std::int64_t left :
       {std::int64_t{-1}, std::int64_t{0}, kGibibyte, 3 * kGibibyte, 8 * kGibibyte}) {
    topology.device.memory_bytes = tight.memory.total_bytes() + overhead + left;
    const core::rank::RankRecord record = attention_record(job, topology);
    // The limit doubles while the increase is at most half of the memory left.
    CHECK(record.attention_limit_bytes == kGibibyte * (left >= 6 * kGibibyte   ? 4
                                                       : left >= 2 * kGibibyte ? 2
                                                                               : 1));
    if (left >= 0) CHECK(record.memory.total_bytes() + overhead <= topology.device.memory_bytes);
  }
  // The run uses the limit of its plan.
  topology.device.memory_bytes = plenty;
  CHECK(core::rank::dry_run(job, layout, 0, topology.device).attention_limit_bytes ==
        roomy.attention_limit_bytes);
  const core::plan::Plan plan = core::plan::make_plan(job, topology);
  CHECK(plan.stages.front().memory.total_bytes() == roomy.memory.total_bytes());
}

TEST_CASE("a job that requires the library is refused if our own kernels would run", "[plan][attention]") {
  const std::string require = "attention={backward: deterministic, require: library}";
  const core::job::JobSpec job = llama_8b(131072, {require});
  CHECK_THROWS_WITH(attention_plan_of(job), Catch::Contains("attention.require is library") &&
                                                Catch::Contains("backward of 131072 tokens") &&
                                                Catch::Contains("set attention.backward: fast"));
  const parallel::Topology topology = core::spec::job_topology(job);
  const parallel::Layout layout = parallel::resolve_layout(
      job.parallel, topology, core::rank::model_costs(job.model), job.microbatches());
  CHECK_THROWS_AS(core::rank::dry_run(job, layout, 0, topology.device), base::CapacityError);
  CHECK(attention_plan_of(llama_8b(131072, {"attention={backward: fast, require: library}"})).fits);
  CHECK_THROWS_WITH(attention_plan_of(small_attention("heads: 8, seq_len: 512, head_dim: 68",
                                                      {"attention={require: library}"})),
                    Catch::Contains("as the library does not serve it"));
  CHECK_NOTHROW(attention_plan_of(
      small_attention("heads: 8, seq_len: 512, head_dim: 64", {"attention={require: library}"})));
}

TEST_CASE("the search's bound of a layout is not above its plan if attention is limited",
          "[plan][attention]") {
  core::job::JobSpec job = llama_8b(32768);
  const parallel::Topology topology = core::spec::job_topology(job);
  const core::plan::Plan own = core::plan::make_plan(job, topology);
  REQUIRE(own.fits);
  const core::plan::SearchResult found = core::plan::search_layouts(job, topology, {.threads = 2});
  REQUIRE_FALSE(found.best.empty());
  CHECK(found.best.front().step_seconds <= own.time.step_seconds * (1 + 1e-9));
}

TEST_CASE("the error names attention: fast if only attention's workspace does not fit", "[plan][attention]") {
  // One key head with its 16 query heads needs 2 GiB, twice the limit, and still uses the library.
  const core::job::JobSpec job = small_attention("heads: 16, kv_heads: 1, head_dim: 128, seq_len: 8192"),
                           quick = small_attention("heads: 16, kv_heads: 1, head_dim: 128, seq_len: 8192",
                                                   {"attention=fast"});
  parallel::Topology topology = core::spec::job_topology(job);
  topology.device.memory_bytes = 0;  // keeps the limit at its minimum
  const core::plan::Plan plan = core::plan::make_plan(job, topology),
                         fast = core::plan::make_plan(quick, topology);
  REQUIRE(plan.peak_bytes - fast.peak_bytes > kGibibyte);
  CHECK(plan.attention.own_calls == 0);
  topology.device_memory_bytes = plan.peak_bytes - kGibibyte / 2;
  core::plan::Plan refused = core::plan::make_plan(job, topology);
  REQUIRE_FALSE(refused.fits);
  refused.near = core::plan::near_changes(job, topology, core::plan::NoneFits::nothing);
  REQUIRE_FALSE(refused.near.empty());
  CHECK(refused.near.front().change == "attention: fast");
  CHECK(refused.near.front().peak_bytes == fast.peak_bytes);
  CHECK_THAT(core::plan::plan_text(refused, 0), Catch::Contains("fits with attention: fast ("));
  // If the job would not fit with `fast` either, the error does not name it.
  topology.device_memory_bytes = fast.peak_bytes - 1;
  for (const core::plan::NearLayout& near :
       core::plan::near_changes(job, topology, core::plan::NoneFits::nothing))
    CHECK(near.change != "attention: fast");
}
