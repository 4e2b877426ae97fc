#include "core/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "core/model/parameters.h"
#include "core/plan/cost_model.h"
#include "core/plan/dry_run.h"
#include "core/plan/schedule_report.h"
#include "core/train/rank_groups.h"
#include "kernels/base/error.h"
#include "parallel/schedule/schedule.h"

namespace trainerd::core {
namespace {

using parallel::Axis;
using parallel::PlacedGrid;
using parallel::Topology;

constexpr std::int64_t kSnapshots = 2;  // that a node keeps of each of its ranks

/// The first tensor- and data-parallel rank of a pipeline rank: it holds as much as any of them.
std::int64_t representative(const parallel::Layout& layout, std::int64_t pipeline_rank) {
  parallel::ProcessGrid::Coordinate place{};
  place[static_cast<std::size_t>(Axis::pp)] = pipeline_rank;
  return layout.grid.rank(place);
}

/// Pipeline ranks with the same key record the same step.
std::string class_of(const JobSpec& job, const parallel::Layout& layout, std::int64_t pipeline_rank, const SlotCounts& slots) {
  std::string key;
  for (const parallel::StageSpan& span : parallel::chunks_of(layout, pipeline_rank))
    key += std::to_string(span.layers) + "@" + std::to_string(span.first_layer % job.recompute.every) + (span.embedding ? "e" : "") +
           (span.head ? "h" : "") + ",";
  for (const auto& chunk : slots)
    for (const int count : chunk) key += count == 0 ? '0' : '1';
  return key;
}

/// The record of each pipeline rank, and its memory.
struct Records {
  std::vector<std::shared_ptr<RankRecord>> of_rank;
  std::vector<kernels::MemoryPlan> memory;
};

Records record_all(const JobSpec& job, const parallel::Layout& layout, const kernels::Target& target) {
  const std::vector<SlotCounts> slots = count_all_slots(job, layout);
  std::map<std::string, std::vector<std::size_t>> classes;
  for (std::size_t rank = 0; rank < slots.size(); ++rank)
    classes[class_of(job, layout, static_cast<std::int64_t>(rank), slots[rank])].push_back(rank);
  Records records;
  records.of_rank.resize(slots.size());
  records.memory.resize(slots.size());
  for (const auto& [key, ranks] : classes) {
    std::vector<SlotCounts> alike;
    for (const std::size_t rank : ranks) alike.push_back(slots[rank]);
    const auto record = std::make_shared<RankRecord>(record_rank(
        job, layout, representative(layout, static_cast<std::int64_t>(ranks.front())), target, slots[ranks.front()], alike));
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      records.of_rank[ranks[i]] = record;
      records.memory[ranks[i]] = record->memory_alike[i];
    }
  }
  return records;
}

Plan plan_of(const JobSpec& job, const Topology& topology, const parallel::Layout& layout) {
  Plan plan;
  plan.job = job;
  plan.topology = topology;
  plan.layout = parallel::describe(layout);
  return plan;
}

void plan_memory(Plan& plan, const parallel::Layout& layout, const Records& records) {
  const Topology& t = plan.topology;
  const bool own = t.device_memory_bytes > 0;
  plan.device_bytes = own ? t.device_memory_bytes : t.node_memory_bytes / t.devices_per_node;
  for (std::size_t rank = 0; rank < records.memory.size(); ++rank) {
    StagePlan& stage = plan.stages.emplace_back();
    stage.chunks = parallel::chunks_of(layout, static_cast<std::int64_t>(rank));
    stage.memory = records.memory[rank];
    for (const auto& region : stage.memory.regions)
      for (const auto& [term, bytes] : region.terms) stage.terms[term] += bytes;
    if (t.device_overhead_bytes > 0) stage.terms["device_overhead"] = t.device_overhead_bytes;
    // Where devices share the node's memory, snapshots do too.
    if (!own) stage.terms["snapshots"] = kSnapshots * records.of_rank[rank]->snapshot_bytes;
    stage.bytes = stage.memory.total_bytes() + t.device_overhead_bytes + (own ? 0 : stage.terms["snapshots"]);
    if (stage.bytes > plan.peak_bytes) plan.peak_bytes = stage.bytes, plan.worst_stage = rank;
  }
  for (std::int64_t rank = 0; rank < layout.grid.ranks() && uses_staged(plan.job); ++rank)
    plan.staging_bytes = std::max(plan.staging_bytes, staging_bytes(plan.job, layout, rank));
  plan.fits = plan.peak_bytes <= plan.device_bytes;
}

/// Where the groups of the pipeline ranks' representatives lie.
class Groups {
 public:
  Groups(const JobSpec& job, const parallel::Layout& layout, const PlacedGrid& placed) : placed_(placed), layout_(layout) {
    for (std::int64_t r = 0; r < layout.options.pp; ++r) {
      auto& mine = places_.emplace_back();
      for (const GroupRanks& group : groups_of(layout, representative(layout, r), job.model)) {
        if (group.name == "pp") continue;
        // All ranks are one group, whoever asks.
        if (group.name == "world" && r > 0) mine[group.name] = places_.front()["world"];
        else mine[group.name] = place_of(placed, group.ranks);
      }
    }
  }
  const GroupPlace& at(std::int64_t pipeline_rank, const std::string& group) const {
    return places_[static_cast<std::size_t>(pipeline_rank)].at(group);
  }
  parallel::Link link(std::int64_t from, std::int64_t to) const {
    const std::vector<std::int64_t> pair{representative(layout_, from), representative(layout_, to)};
    return placed_.link(pair, Axis::dp);
  }

 private:
  const PlacedGrid& placed_;
  const parallel::Layout& layout_;
  std::vector<std::map<std::string, GroupPlace>> places_;
};

void count_traffic(Plan& plan, const parallel::Layout& layout, const Records& records, const Groups& groups,
                   const parallel::ScheduleShape& shape) {
  std::map<std::string, TrafficPlan> worst;
  for (std::size_t rank = 0; rank < records.of_rank.size(); ++rank) {
    const RankRecord& record = *records.of_rank[rank];
    std::map<std::string, TrafficPlan> mine;
    const auto count = [&](const RecordedSegment& segment, std::int64_t times) {
      for (const RecordedEvent& e : segment) {
        if (e.kind != RecordedEvent::Kind::issue) continue;
        const RecordedCollective& c = record.collectives[static_cast<std::size_t>(e.index)];
        const std::string& name = record.groups[static_cast<std::size_t>(c.group)];
        const GroupPlace& place = groups.at(static_cast<std::int64_t>(rank), name);
        TrafficPlan& t = mine[name];
        t.group = name, t.link = parallel::to_string(place.link), t.size = place.size;
        t.calls += times;
        t.bytes += static_cast<double>(times * c.bytes);
        if (plan.timed) t.seconds += static_cast<double>(times) * collective_seconds(c.op, c.bytes, place, plan.topology);
      }
    };
    count(record.before, 1), count(record.after, 1);
    for (const auto& [key, segment] : record.actions) count(segment, RankRecord::times(key, shape.microbatches));
    for (auto& [name, t] : mine)
      if (const auto at = worst.find(name); at == worst.end() || at->second.seconds < t.seconds || at->second.bytes < t.bytes)
        worst[name] = t;
  }
  for (auto& [name, t] : worst) plan.communication.push_back(t);
  if (shape.stages == 1) return;
  TrafficPlan pp{.group = "pp", .link = "", .size = shape.stages};
  parallel::Link slowest = parallel::Link::none;
  for (std::int64_t r = 0; r + 1 < shape.stages; ++r) slowest = std::max(slowest, groups.link(r, r + 1));
  pp.link = parallel::to_string(slowest);
  // A rank within the pipeline receives and sends each chunk's flow, and its gradient.
  pp.calls = 4 * layout.options.virtual_stages * shape.microbatches;
  pp.bytes = static_cast<double>(pp.calls * flow_bytes(plan.job));
  if (plan.timed) pp.seconds = static_cast<double>(pp.calls) * message_seconds(flow_bytes(plan.job), slowest, plan.topology);
  plan.communication.push_back(pp);
}

void plan_time(Plan& plan, const parallel::Layout& layout, const Records& records) {
  const JobSpec& job = plan.job;
  const Topology& t = plan.topology;
  plan.timed = t.rates.known() && peak_flops(t, job.precision.compute) > 0;
  PlacedGrid placed(layout.grid, t);
  placed.virtual_stages = layout.options.virtual_stages;
  const Groups groups(job, layout, placed);
  const parallel::ScheduleShape shape = schedule_shape(job);
  count_traffic(plan, layout, records, groups, shape);
  if (!plan.timed) return;
  ReplayInput input;
  input.schedule = shape;
  input.overlap_p2p = job.parallel.overlap_p2p;
  for (const auto& record : records.of_rank) input.records.push_back(record.get());
  input.op_seconds = [&](const RecordedOp& op) { return op_seconds(op, t); };
  input.collective_seconds = [&](std::int64_t rank, const RecordedCollective& c, const RankRecord& record) {
    return collective_seconds(c.op, c.bytes, groups.at(rank, record.groups[static_cast<std::size_t>(c.group)]), t);
  };
  std::map<std::pair<int, int>, double> messages;
  input.message_seconds = [&](int from, int to) {
    const auto [at, fresh] = messages.try_emplace({from, to}, 0.0);
    if (fresh) at->second = message_seconds(flow_bytes(job), groups.link(from, to), t);
    return at->second;
  };
  plan.time = replay(input);

  const double devices = static_cast<double>(layout.grid.ranks()), tokens = static_cast<double>(job.tokens_per_step());
  const double step = plan.time.step_seconds;
  plan.tokens_per_second_per_device = tokens / step / devices;
  plan.model_tflops_per_device = flops_per_token(job.model) * plan.tokens_per_second_per_device / 1e12;
  plan.mfu = plan.model_tflops_per_device * 1e12 / peak_flops(t, job.precision.compute);
  double flops = 0;
  for (const auto& record : records.of_rank) flops += record->flops(job.microbatches());
  plan.hardware_tflops_per_device = flops / static_cast<double>(records.of_rank.size()) / step / 1e12;
}

void plan_checkpoints(Plan& plan, const Records& records) {
  const Topology& t = plan.topology;
  constexpr double kDay = 86400;
  const PrecisionRecipe& p = plan.job.precision;
  plan.checkpoint.bytes = count_parameters(plan.job.model).total * (kernels::size_of(p.master) + 2 * kernels::size_of(p.moments));
  std::int64_t snapshot = 0;
  for (const auto& record : records.of_rank) snapshot = std::max(snapshot, record->snapshot_bytes);
  if (t.host_bytes_per_second > 0) plan.checkpoint.snapshot_seconds = static_cast<double>(snapshot) / t.host_bytes_per_second;
  const parallel::ParallelOptions& sizes = plan.job.parallel;
  const double ranks = static_cast<double>(sizes.tp * sizes.cp * sizes.dp * sizes.pp);
  const double nodes = std::ceil(ranks / static_cast<double>(t.devices_per_node));
  if (t.failures_per_node_day > 0) plan.checkpoint.failure_seconds = kDay / (t.failures_per_node_day * nodes);
  plan.checkpoint.interval_seconds = std::sqrt(2 * plan.checkpoint.snapshot_seconds * plan.checkpoint.failure_seconds);
}

/// The plan's memory alone; nothing when the job cannot be laid out so.
std::optional<Plan> memory_plan(const JobSpec& job, const Topology& topology) {
  const parallel::ParallelOptions& p = job.parallel;
  if (job.batch.micro < 1 || p.dp < 1 || job.batch.global % (job.batch.micro * p.dp) != 0) return std::nullopt;
  if (!tensor_parallel_problem(job.model, p.tp).empty()) return std::nullopt;
  if (p.sequence_parallel && job.batch.micro * job.model.seq_len % p.tp != 0) return std::nullopt;
  try {
    const parallel::Layout layout = parallel::resolve_layout(p, topology, model_costs(job.model), job.microbatches());
    if (!p.allow_tp_across_nodes && !PlacedGrid(layout.grid, topology).tp_problem().empty()) return std::nullopt;
    Plan plan = plan_of(job, topology, layout);
    plan_memory(plan, layout, record_all(job, layout, topology.device));
    return plan;
  } catch (const base::SpecError&) {
    return std::nullopt;
  } catch (const base::CapacityError&) {
    return std::nullopt;
  }
}

}  // namespace

// Changes that cost speed and no devices, the cheapest first; then two of them together.
void find_near_layouts(Plan& plan) {
  constexpr std::size_t kEnough = 3;
  struct Change {
    std::string text;
    JobSpec job;
  };
  std::vector<Change> changes;
  const auto add = [&](const JobSpec& from, const std::string& before, const std::string& text, const auto& change) {
    JobSpec job = from;
    change(job);
    if (!(job == from)) changes.push_back({before.empty() ? text : before + ", " + text, job});
  };
  const auto list = [&](const JobSpec& from, const std::string& before) {
    const parallel::ParallelOptions& p = from.parallel;
    if (p.tp > 1) add(from, before, "parallel.sequence_parallel: true", [](JobSpec& j) { j.parallel.sequence_parallel = true; });
    for (std::int64_t zero = p.zero + 1; zero <= 3 && p.dp > 1; ++zero)
      add(from, before, "parallel.zero: " + std::to_string(zero), [&](JobSpec& j) { j.parallel.zero = zero; });
    for (const auto kind : {RecomputeKind::selective, RecomputeKind::full})
      if (from.recompute.kind < kind)
        add(from, before, kind == RecomputeKind::full ? "recompute: {kind: full}" : "recompute: {kind: selective}",
            [&](JobSpec& j) { j.recompute = {kind, 1}; });
    for (std::int64_t micro = from.batch.micro / 2; micro >= 1; micro /= 2)
      add(from, before, "batch.micro: " + std::to_string(micro), [&](JobSpec& j) { j.batch.micro = micro; });
    const auto split = [&](const char* axis, std::int64_t parallel::ParallelOptions::*size) {
      for (std::int64_t by = 2; p.dp % by == 0 && by <= 16; by *= 2)
        add(from, before,
            std::string("parallel.") + axis + ": " + std::to_string(p.*size * by) + ", parallel.dp: " + std::to_string(p.dp / by),
            [&](JobSpec& j) { j.parallel.*size *= by, j.parallel.dp /= by; });
    };
    split("tp", &parallel::ParallelOptions::tp);
    split("pp", &parallel::ParallelOptions::pp);
  };
  list(plan.job, "");
  const std::vector<Change> single = changes;
  const auto try_all = [&](const std::vector<Change>& all, std::size_t from) {
    for (std::size_t i = from; i < all.size() && plan.near.size() < kEnough; ++i)
      if (const auto other = memory_plan(all[i].job, plan.topology); other && other->fits)
        plan.near.push_back({all[i].text, other->peak_bytes});
  };
  try_all(changes, 0);
  if (!plan.near.empty()) return;
  for (const Change& change : single) list(change.job, change.text);
  try_all(changes, single.size());
}

Plan make_plan(const JobSpec& job, const Topology& topology) {
  const parallel::Layout layout = parallel::resolve_layout(job.parallel, topology, model_costs(job.model), job.microbatches());
  Plan plan = plan_of(job, topology, layout);
  const Records records = record_all(job, layout, topology.device);
  plan_memory(plan, layout, records);
  plan_time(plan, layout, records);
  plan_checkpoints(plan, records);
  return plan;
}

}  // namespace trainerd::core
