#include "core/plan/predict/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "core/model/parameters.h"
#include "core/plan/cost/checkpoint_interval.h"
#include "core/plan/cost/cost_model.h"
#include "core/plan/cost/group_places.h"
#include "core/plan/predict/schedule_report.h"
#include "core/plan/replay/stage_records.h"
#include "core/rank/attention_check.h"
#include "core/rank/dry_run.h"
#include "core/rank/fp8_check.h"
#include "core/train/canary_step.h"
#include "core/train/optimizer.h"
#include "core/train/rank_schedule.h"
#include "kernels/base/error.h"
#include "parallel/schedule/schedule.h"

namespace trainerd::core::plan {
namespace {

using parallel::Topology;

Plan plan_of(const job::JobSpec& job, const Topology& topology, const parallel::Layout& layout) {
  Plan plan;
  plan.job = job;
  plan.topology = topology;
  plan.layout = parallel::describe(layout);
  return plan;
}

/// Fit of the node whose ranks need most.
rank::Fit fit_of(const parallel::Layout& layout, const Topology& t, std::span<const rank::RankNeeds> stages,
                 std::int64_t snapshots) {
  const std::int64_t ranks = layout.grid.ranks(), stride = layout.grid.stride(parallel::Axis::pp),
                     pp = layout.grid.size(parallel::Axis::pp);
  rank::Fit worst;
  std::vector<std::int64_t> stages_of_node, before;  // most nodes hold the same stages as the previous one
  std::vector<rank::RankNeeds> node;
  const bool one_stage = stride % t.devices_per_node == 0;  // look at one node per stage
  for (std::int64_t first = 0; first < ranks; first += one_stage ? stride : t.devices_per_node) {
    stages_of_node.clear();
    for (std::int64_t rank = first; rank < std::min(first + t.devices_per_node, ranks); ++rank)
      stages_of_node.push_back(rank / stride % pp);
    if (stages_of_node == before) continue;
    before = stages_of_node;
    node.clear();
    for (const std::int64_t stage : stages_of_node) node.push_back(stages[static_cast<std::size_t>(stage)]);
    const rank::Fit fit = rank::judge_fit(node, t, snapshots);
    worst.device_bytes = std::max(worst.device_bytes, fit.device_bytes),
    worst.node_bytes = std::max(worst.node_bytes, fit.node_bytes);
    worst.on_device = worst.on_device && fit.on_device, worst.on_node = worst.on_node && fit.on_node;
  }
  return worst;
}

void plan_memory(Plan& plan, const parallel::Layout& layout, const StageRecords& records,
                 const PlanChanges& changes) {
  const Topology& t = plan.topology;
  const bool own = t.device_memory_bytes > 0;
  plan.device_bytes = device_bytes(t, layout.grid.ranks());
  std::vector<rank::RankNeeds> needs;
  for (std::size_t rank = 0; rank < records.memory.size(); ++rank) {
    StagePlan& stage = plan.stages.emplace_back();
    stage.chunks = parallel::chunks_of(layout, static_cast<std::int64_t>(rank));
    stage.memory = records.memory[rank];
    for (const auto& region : stage.memory.regions)
      for (const auto& [term, bytes] : region.terms)
        (region.kind == kernels::MemoryBudget::RegionKind::host ? stage.host_terms : stage.terms)[term] +=
            bytes;
    const std::int64_t snapshots = rank::host_snapshots(plan.job) * records.of_rank[rank]->snapshot_bytes;
    const std::int64_t who = representative(layout, static_cast<std::int64_t>(rank));
    const std::int64_t reserve = rank::overhead_bytes(plan.job, layout, who),
                       overhead = rank::device_overhead(t, reserve);
    if (own) stage.terms["device_overhead"] = overhead;
    else stage.terms["snapshots"] = snapshots;  // they share the node's memory
    const std::int64_t logits = changes.more_logits ? changes.more_logits(stage) : 0;
    if (logits > 0) stage.terms["logits"] += logits;
    stage.bytes = stage.memory.total_bytes() + logits + (own ? overhead : snapshots);
    if (stage.bytes > plan.peak_bytes) plan.peak_bytes = stage.bytes, plan.worst_stage = rank;
    const std::int64_t staging = rank::staging_bytes(plan.job, layout, who);
    plan.staging_bytes = std::max(plan.staging_bytes, staging);
    needs.push_back({stage.memory.total_bytes() + logits, records.of_rank[rank]->snapshot_bytes,
                     staging + stage.memory.host_bytes(), reserve});
  }
  plan.fit = fit_of(layout, t, needs, rank::host_snapshots(plan.job));
  plan.fits = plan.fit.fits();
}

void count_traffic(Plan& plan, const parallel::Layout& layout, const StageRecords& records,
                   const GroupPlaces& groups, const parallel::ScheduleShape& shape) {
  std::map<parallel::Group, TrafficPlan> worst;
  for (std::size_t rank = 0; rank < records.of_rank.size(); ++rank) {
    const rank::RankRecord& record = *records.of_rank[rank];
    std::map<parallel::Group, TrafficPlan> mine;
    const auto count = [&](const rank::RecordedSegment& segment, std::int64_t times) {
      for (const rank::RecordedEvent& e : segment) {
        if (e.kind != rank::RecordedEvent::Kind::issue) continue;
        const rank::RecordedCollective& c = record.collectives[static_cast<std::size_t>(e.index)];
        const parallel::Group group = record.groups[static_cast<std::size_t>(c.group)];
        const GroupPlace& place = groups.at(static_cast<std::int64_t>(rank), group);
        TrafficPlan& t = mine[group];
        const bool host = parallel::is_host_link(group);
        t.group = info(group).name, t.link = host ? "host" : parallel::to_string(place.link);
        t.size = place.size;
        t.calls += times;
        t.bytes += static_cast<double>(times * c.bytes);
        if (plan.timed)
          t.seconds +=
              static_cast<double>(times) * (host ? host_cost(c.bytes, plan.topology).seconds()
                                                 : collective_seconds(c.kind, c.bytes, place, plan.topology));
      }
    };
    count(record.before, 1), count(record.after, 1);
    for (const auto& [key, times] : records.counts[rank]) count(record.actions.at(key), times);
    for (auto& [group, t] : mine)
      if (const auto at = worst.find(group);
          at == worst.end() || at->second.seconds < t.seconds || at->second.bytes < t.bytes)
        worst[group] = t;
  }
  for (auto& [group, t] : worst) plan.communication.push_back(t);
  if (shape.stages == 1) return;
  TrafficPlan pp{.group = info(parallel::Group::pp).name, .link = "", .size = shape.stages};
  parallel::Link slowest = parallel::Link::none;
  for (std::int64_t r = 0; r + 1 < shape.stages; ++r) slowest = std::max(slowest, groups.link(r, r + 1));
  pp.link = parallel::to_string(slowest);
  // An inner rank receives and sends each chunk's activations and their gradients.
  pp.calls = 4 * layout.options.virtual_stages * shape.microbatches;
  pp.bytes = static_cast<double>(pp.calls * rank::flow_bytes(plan.job));
  if (plan.timed)
    pp.seconds =
        static_cast<double>(pp.calls) * message_seconds(rank::flow_bytes(plan.job), slowest, plan.topology);
  plan.communication.push_back(pp);
}

void plan_time(Plan& plan, const parallel::Layout& layout, const GroupPlaces& groups,
               const StageRecords& records, const PlanChanges& changes) {
  const job::JobSpec& job = plan.job;
  const Topology& t = plan.topology;
  plan.timed = has_rates(t, job);
  const parallel::ScheduleShape shape = parallel::schedule_shape(job.parallel, job.microbatches());
  count_traffic(plan, layout, records, groups, shape);
  if (!plan.timed) return;
  ReplayInput input = replay_input(job, t, groups, records);
  if (changes.replay) changes.replay(groups, input);
  plan.time = replay(input);

  const double devices = static_cast<double>(layout.grid.ranks()),
               tokens = static_cast<double>(job.tokens_per_step());
  const double step = plan.time.step_seconds;
  if (const std::int64_t every = job.supervise.verify_every; every > 0)
    plan.verify_seconds = (step - plan.time.mean[base::LedgerPart::optimizer]) / static_cast<double>(every);
  plan.tokens_per_second_per_device = tokens / step / devices;
  plan.model_tflops_per_device = job::flops_per_token(job.model) * plan.tokens_per_second_per_device / 1e12;
  plan.mfu = plan.model_tflops_per_device * 1e12 / peak_flops(t, job.precision.compute);
  double flops = 0;
  for (std::size_t rank = 0; rank < records.of_rank.size(); ++rank)
    flops += records.of_rank[rank]->flops(records.counts[rank]);
  plan.hardware_tflops_per_device = flops / static_cast<double>(records.of_rank.size()) / step / 1e12;
}

double canary_seconds(const Plan& plan, const parallel::Layout& layout,
                      const std::vector<train::SlotCounts>& slots, const GroupPlaces& groups) {
  const job::JobSpec job = train::canary_job(plan.job);
  const StageRecords records = record_all(job, layout, plan.topology.device, slots);
  const Replay time = replay(replay_input(job, plan.topology, groups, records));
  return time.step_seconds - time.mean[base::LedgerPart::optimizer];
}

/// The parameters of the whole model.
std::vector<model::ParamInfo> all_parameters(const job::ModelOptions& model) {
  const parallel::ChunkSpan whole{.first_layer = 0, .layers = model.layers, .embedding = true, .head = true};
  return model::declare_parameters(model, {&whole, 1}, 1, false, model::kLogicalVocab).infos;
}

kernels::DType master_dtype(const model::ParamInfo& info, const job::PrecisionRecipe& p) {
  return info.biases_of_layer >= 0 ? kernels::DType::f32 : p.master;
}

/// Bytes of the optimizer's states of one element.
std::int64_t state_bytes(const job::JobSpec& job, const model::ParamInfo& info) {
  std::int64_t bytes = 0;
  for (const std::string& state : train::optimizer_states(job.optimizer, info))
    bytes += kernels::size_of(model::state_dtype(state, job.precision));
  return bytes;
}

void plan_checkpoints(Plan& plan, const StageRecords& records) {
  const Topology& t = plan.topology;
  constexpr double kDay = 86400;
  for (const model::ParamInfo& info : all_parameters(plan.job.model))
    if (info.trainable)
      plan.checkpoint.bytes +=
          info.shard.logical.numel() *
          (kernels::size_of(master_dtype(info, plan.job.precision)) + state_bytes(plan.job, info));
  std::int64_t snapshot = 0;
  for (const auto& record : records.of_rank) snapshot = std::max(snapshot, record->snapshot_bytes);
  if (t.host_bytes_per_second > 0)
    plan.checkpoint.snapshot_seconds = static_cast<double>(snapshot) / t.host_bytes_per_second;
  const bool beside = plan.timed && plan.job.checkpoint.async && t.device.runs_behind_host();
  const double before_update =
      beside ? plan.time.step_seconds - plan.time.mean[base::LedgerPart::optimizer] : 0.0;
  plan.checkpoint.stall_seconds = std::max(0.0, plan.checkpoint.snapshot_seconds - before_update);
  const double nodes =
      std::ceil(static_cast<double>(plan.job.parallel.ranks()) / static_cast<double>(t.devices_per_node));
  if (t.failures_per_node_day > 0) plan.checkpoint.failure_seconds = kDay / (t.failures_per_node_day * nodes);
  if (plan.checkpoint.snapshot_seconds > 0 && plan.checkpoint.failure_seconds > 0)
    plan.checkpoint.interval_seconds =
        daly_interval_seconds(plan.checkpoint.snapshot_seconds, plan.checkpoint.failure_seconds);
}

}  // namespace

std::int64_t device_bytes(const Topology& t, std::int64_t ranks) {
  return t.device_memory_bytes > 0 ? t.device_memory_bytes
                                   : t.node_memory_bytes / std::min(ranks, t.devices_per_node);
}

Plan plan_layout(const job::JobSpec& job, const Topology& topology, const parallel::Layout& layout,
                 const std::vector<train::SlotCounts>& slots, const GroupPlaces& groups,
                 WhenTooLarge when_too_large, const PlanChanges& changes) {
  Plan plan = plan_of(job, topology, layout);
  const StageRecords records = record_all(job, layout, topology.device, slots);
  for (const auto& record : records.of_rank) {
    rank::require_attention(job, *record);
    rank::require_fp8(*record, topology.device);
  }
  plan_memory(plan, layout, records, changes);
  if (!plan.fits && when_too_large == WhenTooLarge::memory_alone) return plan;
  plan_time(plan, layout, groups, records, changes);
  for (std::size_t rank = 0; rank < records.of_rank.size(); ++rank)
    if (const GraphIssue issue = graph_issue(job, *records.of_rank[rank], records.counts[rank], topology);
        plan.timed && issue.issue_seconds > plan.graphs.issue_seconds)
      plan.graphs = issue;
  plan.attention = plan_attention(records, topology, plan.timed);
  plan_checkpoints(plan, records);
  return plan;
}

Plan make_plan(const job::JobSpec& job, const Topology& topology, const PlanChanges& changes) {
  rank::require_room_for_ranks(job, topology);
  parallel::Layout layout =
      parallel::resolve_layout(job.parallel, topology, rank::model_costs(job.model), job.microbatches());
  if (changes.layout) changes.layout(layout);
  const std::vector<train::SlotCounts> slots = train::count_all_slots(job, layout);
  const GroupPlaces groups(job.model, layout, topology);
  Plan plan = plan_layout(job, topology, layout, slots, groups, WhenTooLarge::all, changes);
  job::JobSpec as_run = job;
  if (topology.device.kind == kernels::DeviceKind::cuda) as_run.device = job::DeviceChoice::cuda;
  if (plan.timed && job::has_canary(as_run))
    plan.canary_seconds = canary_seconds(plan, layout, slots, groups);
  return plan;
}

LeastState least_state(const job::JobSpec& job, const parallel::Topology& topology) {
  const job::PrecisionRecipe& p = job.precision;
  const parallel::ParallelOptions& layout = job.parallel;
  const std::int64_t snapshots = rank::host_snapshots(job);
  LeastState least;
  for (const model::ParamInfo& info : all_parameters(job.model)) {
    const bool biases = info.biases_of_layer >= 0, one_copy = biases || p.master == p.params;
    const std::int64_t elements = info.shard.logical.numel();
    const auto hold = [&](bool offloaded, std::int64_t bytes) {
      (offloaded ? least.host_bytes : least.bytes) += elements * bytes;
    };
    hold(layout.offload_params, kernels::size_of(biases ? kernels::DType::f32 : p.params));
    if (!info.trainable) continue;
    if (!biases) hold(layout.offload_grads, kernels::size_of(p.grads));
    const std::int64_t master = kernels::size_of(master_dtype(info, p)), states = state_bytes(job, info);
    hold(job.optimizer.offload, (one_copy ? 0 : master) + states);
    least.host_bytes += snapshots * elements * (master + states);
  }
  const std::int64_t device = device_bytes(topology, layout.ranks()),
                     nodes = (layout.ranks() + topology.devices_per_node - 1) / topology.devices_per_node,
                     host = topology.node_memory_bytes * nodes;
  if (device > 0) least.devices = (least.bytes + device - 1) / device;
  least.fits = least.devices <= layout.ranks() && (host == 0 || least.host_bytes <= host);
  return least;
}

std::vector<RampPlan> ramp_plans(const job::JobSpec& job, const parallel::Topology& topology) {
  std::vector<RampPlan> plans;
  std::map<std::int64_t, double> known;  // by batch
  for (const job::BatchSpan& span : job.batch.spans(0, job.steps)) {
    if (span.global == job.batch.global) continue;
    if (!known.contains(span.global)) {
      const Plan plan = make_plan(job.with_batch(span.global), topology);
      if (!plan.timed) return {};
      known[span.global] = plan.time.step_seconds + plan.verify_seconds;
    }
    plans.push_back({span, known[span.global]});
  }
  return plans;
}

}  // namespace trainerd::core::plan
