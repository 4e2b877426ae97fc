#include "core/run/agent/replan.h"

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/plan/cost/cost_model.h"
#include "core/plan/search/search.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

// Of the best that the planner finds, how many are tried: a job may refuse a layout for what it has besides.
constexpr std::size_t kTries = 5;

bool is_valid(const job::JobSpec& job) {
  try {
    spec::parse_job(spec::to_yaml(job), "job.yaml");
    return true;
  } catch (const base::SpecError&) {
    return false;
  }
}

}  // namespace

job::JobSpec with_layout(const job::JobSpec& whole, std::int64_t nodes, const plan::LayoutChoice& layout) {
  job::JobSpec job = plan::with_choice(whole, layout);
  job.cluster.nodes = nodes;
  return job;
}

std::optional<plan::LayoutChoice> replanned(const job::JobSpec& whole, std::int64_t nodes) {
  plan::LayoutChoice replicas;
  replicas.dp = nodes * whole.parallel.ranks() / whole.cluster.nodes;
  replicas.micro = whole.batch.micro;
  replicas.bucket_bytes = whole.parallel.bucket_bytes;
  replicas.recompute = whole.recompute;
  const job::JobSpec job = with_layout(whole, nodes, replicas);
  const parallel::Topology topology = spec::job_topology(job);
  const bool timed = plan::has_rates(topology, whole.precision.compute);
  const plan::LayoutChoice own = plan::choice_of(whole);
  std::map<std::size_t, std::vector<plan::LayoutChoice>> by_changes;
  for (const plan::LayoutChoice& layout : plan::all_layouts(job, topology))
    if (layout.dp >= whole.cluster.min_replicas)
      by_changes[timed ? 0 : plan::changes(own, layout)].push_back(layout);
  for (const auto& [changes, layouts] : by_changes) {
    const plan::SearchResult found =
        plan::search_layouts(job, topology, {.keep = kTries, .layouts = layouts});
    for (const plan::RankedLayout& best : found.best)
      if (is_valid(with_layout(whole, nodes, best.choice))) return best.choice;
  }
  return std::nullopt;
}

std::string layout_text(const plan::LayoutChoice& c) {
  return nlohmann::json{{"tp", c.tp},
                        {"pp", c.pp},
                        {"dp", c.dp},
                        {"zero", c.zero},
                        {"zero_group", c.zero_group},
                        {"bucket_bytes", c.bucket_bytes},
                        {"micro", c.micro},
                        {"virtual_stages", c.virtual_stages},
                        {"sequence_parallel", c.sequence_parallel},
                        {"schedule", static_cast<int>(c.schedule)},
                        {"recompute", static_cast<int>(c.recompute.kind)},
                        {"recompute_every", c.recompute.every}}
      .dump();
}

plan::LayoutChoice layout_from(const std::string& text) {
  try {
    const nlohmann::json j = nlohmann::json::parse(text);
    plan::LayoutChoice c;
    c.tp = j.at("tp"), c.pp = j.at("pp"), c.dp = j.at("dp");
    c.zero = j.at("zero"), c.zero_group = j.at("zero_group"), c.bucket_bytes = j.at("bucket_bytes");
    c.micro = j.at("micro"), c.virtual_stages = j.at("virtual_stages");
    c.sequence_parallel = j.at("sequence_parallel");
    c.schedule = static_cast<parallel::ScheduleKind>(j.at("schedule").get<int>());
    c.recompute = {static_cast<job::RecomputeKind>(j.at("recompute").get<int>()), j.at("recompute_every")};
    return c;
  } catch (const nlohmann::json::exception& error) {
    throw base::spec_error(std::string("the layout that node 0 has chosen cannot be read: ") + error.what());
  }
}

}  // namespace trainerd::core::run
