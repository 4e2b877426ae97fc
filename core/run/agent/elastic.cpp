#include "core/run/agent/elastic.h"

#include <algorithm>

#include "core/run/agent/replan.h"
#include "core/spec/faults_fields.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::run {
namespace {

/// Resets options that only apply to several nodes and have no effect on one.
void leave_to_several(job::JobSpec& job) {
  const job::JobSpec plain;
  job.supervise.heartbeat_seconds = plain.supervise.heartbeat_seconds;
  job.supervise.dead_after_seconds = plain.supervise.dead_after_seconds;
  job.supervise.coordinator = plain.supervise.coordinator;
  job.cluster.spares = plain.cluster.spares;
  job.cluster.elastic = plain.cluster.elastic;
  job.cluster.replan = plain.cluster.replan;
  job.cluster.min_replicas = plain.cluster.min_replicas;
  job.checkpoint.partner = plain.checkpoint.partner;
  job.checkpoint.partner_wait_seconds = plain.checkpoint.partner_wait_seconds;
}

/// Removes faults of ranks or links that do not exist at this size.
void leave_out_faults(job::JobSpec& job) {
  const std::int64_t ranks = job.parallel.ranks();
  std::erase_if(job.faults.inject, [&](const job::Fault& fault) {
    return fault.rank >= ranks || !spec::unfit(fault.kind, job).empty();
  });
  job::RandomFaults& random = job.faults.random;
  std::erase_if(random.kinds, [&](const std::string& word) {
    const auto kind = job::fault_kind_of(word);
    return kind && !spec::unfit(*kind, job).empty();
  });
  if (random.kinds.empty()) random = {};
  if (!job.faults.any()) job.faults = {};
}

bool is_valid(const job::JobSpec& job) {
  try {
    spec::parse_job(spec::to_yaml(job), "job.yaml");
    return true;
  } catch (const base::SpecError&) {
    return false;
  }
}

}  // namespace

std::optional<job::JobSpec> job_on(const job::JobSpec& whole, std::int64_t nodes) {
  if (nodes >= whole.cluster.nodes) return whole;
  const std::int64_t replica = whole.parallel.ranks() / whole.parallel.dp,
                     of_node = whole.parallel.ranks() / whole.cluster.nodes;
  for (; nodes > 0; --nodes) {
    const std::int64_t dp = nodes * of_node / replica;
    if (nodes * of_node % replica != 0 || dp < whole.cluster.min_replicas) continue;
    job::JobSpec job = whole;
    job.parallel.dp = dp;
    job.cluster.nodes = nodes;
    leave_out_faults(job);
    if (nodes == 1) leave_to_several(job);
    if (is_valid(job)) return job;
  }
  return std::nullopt;
}

std::optional<job::JobSpec> job_on(const job::JobSpec& whole, std::int64_t nodes, const std::string& layout) {
  if (layout.empty()) return job_on(whole, nodes);
  job::JobSpec job = with_layout(whole, nodes, layout_from(layout));
  leave_out_faults(job);
  if (nodes == 1) leave_to_several(job);
  return job;
}

std::optional<JobSize> JobSizes::exactly_on(std::int64_t nodes) {
  if (!whole_.cluster.replan) {
    auto job = job_on(whole_, nodes);
    if (!job || job->cluster.nodes != nodes) return std::nullopt;
    return JobSize{*std::move(job)};
  }
  const auto [planned, is_new] = planned_.try_emplace(nodes);
  if (!is_new) return planned->second;
  const auto size = [&](const plan::LayoutChoice& choice) {
    const std::string layout = layout_text(choice);
    return JobSize{job_on(whole_, nodes, layout).value(), layout};
  };
  if (const auto choice = replanned(whole_, nodes, rates_,
                                    [&](const plan::LayoutChoice& c) { return is_valid(size(c).job); }))
    planned->second = size(*choice);
  return planned->second;
}

std::optional<JobSize> JobSizes::on(std::int64_t nodes) {
  if (nodes >= whole_.cluster.nodes) return JobSize{whole_};
  for (; nodes > 0; --nodes)
    if (auto size = exactly_on(nodes)) return size;
  return std::nullopt;
}

JobSize JobSizes::smallest() {
  for (std::int64_t nodes = 1; nodes < whole_.cluster.nodes; ++nodes)
    if (auto size = exactly_on(nodes)) return *std::move(size);
  return JobSize{whole_};
}

}  // namespace trainerd::core::run
