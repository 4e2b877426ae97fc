#include "core/plan/replay/stage_records.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "core/model/parameters.h"
#include "core/model/recompute.h"
#include "core/plan/cost/cost_model.h"
#include "core/plan/replay/graph_issue.h"
#include "core/rank/dry_run.h"
#include "parallel/layout/schedule_shape.h"

namespace trainerd::core::plan {
namespace {

using parallel::OpKind;

/// Pipeline ranks with the same key record the same step: their chunks declare the same parameters, recompute
/// the same layers with the same windows, pass results to themselves or to others, use the same pools and
/// classes of slots, and have the same kinds of actions.
std::string class_of(const job::JobSpec& job, const parallel::Layout& layout, const kernels::Target& target,
                     std::int64_t pipeline_rank, const train::SlotCounts& slots,
                     const rank::ActionCounts& counts) {
  std::string key;
  const auto add = [&key](std::int64_t number) { key += std::to_string(number) + ","; };
  const std::vector<parallel::ChunkSpan> chunks = parallel::chunks_of(layout, pipeline_rank);
  const parallel::ScheduleShape shape = parallel::schedule_shape(layout.options, job.microbatches());
  for (int i = 0; i < shape.virtual_stages; ++i)
    for (const int chunk = shape.chunk_of(static_cast<int>(pipeline_rank), i);
         const int of : {chunk - 1, chunk})
      add(of >= 0 && shape.stays_on_rank(of) ? 1 : 0);
  for (const parallel::ChunkSpan& span : chunks) {
    key += span.embedding ? "e" : "", key += span.head ? "h" : "";
    for (std::int64_t layer = span.first_layer; layer < span.first_layer + span.layers; ++layer) {
      add(static_cast<std::int64_t>(model::recompute_of(job.recompute, layer)));
      const job::LayerOptions options = job::layer_options(job.model, layer);
      add(options.window), add(options.experts ? 1 : 0);
    }
    key += ";";
  }
  const model::DeclaredParams declared = model::declare_parameters(
      job.model, chunks, job.microbatch_tokens(), layout.options.sequence_parallel, target.vocab_multiple,
      {layout.options.ep, 0, layout.options.experts_apart()});
  for (const model::ParamInfo& p : declared.infos) {
    const std::int64_t tp = p.expert ? layout.options.expert_tp() : layout.options.tp;
    for (const std::int64_t size : parallel::local_shape(p.shard, tp).sizes) add(size);
    for (const std::int64_t of :
         {static_cast<std::int64_t>(p.shard.placement), static_cast<std::int64_t>(p.shard.granularity),
          p.shard.block.rows, p.shard.block.columns, std::int64_t{p.shard.owner}, std::int64_t{p.decay},
          std::int64_t{p.gemm_weight}, p.gemm_tokens, static_cast<std::int64_t>(p.unit),
          std::int64_t{p.vectors}, std::int64_t{p.cut_alone}, p.grad_uses, std::int64_t{p.trainable}})
      add(of);
  }
  add(declared.tied_copy);
  for (const int pool : slots.pool_of_chunk) add(pool);
  for (const auto& pool : slots.of_pool)
    for (const int count : pool) key += count == 0 ? '0' : '1';
  for (const auto& [action, count] : counts) {
    for (const int of : {action.chunk, static_cast<int>(action.kind), static_cast<int>(action.role)}) add(of);
    if (action.other) add(static_cast<int>(action.other->role));
  }
  return key;
}

}  // namespace

StageRecords record_all(const job::JobSpec& job, const parallel::Layout& layout,
                        const kernels::Target& target, const std::vector<train::SlotCounts>& slots) {
  StageRecords records;
  records.counts = rank::action_counts(parallel::schedule_shape(layout.options, job.microbatches()));
  std::map<std::string, std::vector<std::size_t>> classes;
  for (std::size_t rank = 0; rank < slots.size(); ++rank)
    classes[class_of(job, layout, target, static_cast<std::int64_t>(rank), slots[rank], records.counts[rank])]
        .push_back(rank);
  records.of_rank.resize(slots.size());
  records.memory.resize(slots.size());
  const auto record_of = [&](std::size_t rank, const kernels::Target& on,
                             std::span<const train::SlotCounts> alike) {
    return std::make_shared<rank::RankRecord>(rank::record_rank(
        job, layout, representative(layout, static_cast<std::int64_t>(rank)), on, slots[rank], alike));
  };
  kernels::Target least = target;
  least.memory_bytes = 0;
  for (const auto& [key, ranks] : classes) {
    std::vector<train::SlotCounts> alike;
    for (const std::size_t rank : ranks) alike.push_back(slots[rank]);
    const auto record = record_of(ranks.front(), least, alike);
    if (target.memory_bytes > 0 && rank::attention_is_limited(*record)) {
      // Memory left for attention's workspace differs between ranks with their slots.
      std::map<std::int64_t, std::vector<std::size_t>> by_limit;
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const std::int64_t overhead =
            rank::overhead_bytes(job, layout, representative(layout, static_cast<std::int64_t>(ranks[i])));
        by_limit[rank::attention_limit(target, record->memory_alike[i].total_bytes() + overhead)].push_back(
            i);
      }
      for (const auto& [limit, members] : by_limit) {
        kernels::Target roomier = least;
        roomier.attention_limit_bytes = limit;
        std::vector<train::SlotCounts> of_members;
        for (const std::size_t i : members) of_members.push_back(slots[ranks[i]]);
        const auto again = limit == target.attention_limit_bytes
                               ? record
                               : record_of(ranks[members.front()], roomier, of_members);
        for (std::size_t m = 0; m < members.size(); ++m) {
          const std::size_t rank = ranks[members[m]];
          records.of_rank[rank] = again;
          records.memory[rank] = again == record ? record->memory_alike[members[m]] : again->memory_alike[m];
        }
      }
      continue;
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      records.of_rank[ranks[i]] = record;
      records.memory[ranks[i]] = record->memory_alike[i];
    }
  }
  return records;
}

ReplayInput replay_input(const job::JobSpec& job, const parallel::Topology& topology,
                         const GroupPlaces& groups, const StageRecords& records) {
  const auto t = std::make_shared<parallel::Topology>(topology);
  const parallel::ParallelOptions& p = job.parallel;
  t->measured.busy = std::min(p.ranks(), t->devices_per_node);
  ReplayInput input;
  input.schedule = parallel::schedule_shape(job.parallel, job.microbatches());
  input.overlap_p2p = job.parallel.overlap_p2p;
  // A CPU's progress threads run on the cores that compute. Shared-memory communicators copy what they send.
  input.own_progress = t->device.kind == kernels::DeviceKind::cuda;
  if (input.own_progress) input.slowdown_beside = kSlowdownBeside;
  input.messages_in_order = input.own_progress && !job::uses_staged(job);
  for (const auto& record : records.of_rank) input.records.push_back(record.get());
  input.launch_seconds = t->measured.known() ? 0 : t->rates.launch_seconds;
  for (std::size_t rank = 0; rank < records.of_rank.size(); ++rank)
    input.graphs.push_back(graph_issue(job, *records.of_rank[rank], records.counts[rank], *t).used);
  input.compared_seconds = kComparedCallSeconds;
  input.op_seconds = [t](const rank::RecordedOp& op) { return op_seconds(op, *t); };
  input.collective_cost = [t, &groups](std::int64_t rank, const rank::RecordedCollective& c,
                                       const rank::RankRecord& record) {
    const parallel::Group group = record.groups[static_cast<std::size_t>(c.group)];
    if (parallel::is_host_link(group)) return host_cost(c.bytes, *t);
    return collective_cost(c.kind, c.bytes, groups.at(rank, group), *t);
  };
  input.message_cost = [t, &groups, bytes = rank::flow_bytes(job)](int from, int to) {
    return message_cost(bytes, groups.link(from, to), *t);
  };
  return input;
}

}  // namespace trainerd::core::plan
