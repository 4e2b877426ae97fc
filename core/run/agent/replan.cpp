#include "core/run/agent/replan.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/plan/cost/cost_model.h"
#include "core/plan/search/search.h"
#include "core/spec/machines.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

// Layouts that one search returns, and the maximum number of searches. The job may reject layouts because of
// its other settings.
constexpr std::size_t kKept = 5;
constexpr int kSearches = 5;

}  // namespace

job::JobSpec with_layout(const job::JobSpec& whole, std::int64_t nodes, const plan::LayoutChoice& layout) {
  job::JobSpec job = plan::with_choice(whole, layout);
  job.cluster.nodes = nodes;
  return job;
}

std::optional<plan::LayoutChoice> replanned(const job::JobSpec& whole, std::int64_t nodes,
                                            const std::optional<parallel::Topology>& rates,
                                            const std::function<bool(const plan::LayoutChoice&)>& is_valid) {
  // The job's own settings on these ranks: each layout leaves out those that it has no use for.
  job::JobSpec job = whole;
  job.cluster.nodes = nodes;
  parallel::ParallelOptions& p = job.parallel;
  const std::int64_t ranks = nodes * whole.parallel.ranks() / whole.cluster.nodes;
  p.tp = p.pp = p.ep = 1, p.etp = 0;
  p.cp = ranks % whole.parallel.cp == 0 ? whole.parallel.cp : 1;
  p.dp = ranks / p.cp;
  p.zero_group = 0;
  parallel::Topology topology = spec::job_topology(job);
  if (rates) topology = spec::with_rates(topology, *rates);
  const bool timed = plan::has_rates(topology, whole);
  std::vector<plan::LayoutChoice> all = plan::all_layouts(job, topology);
  std::erase_if(all, [&](const plan::LayoutChoice& c) { return c.dp < whole.cluster.min_replicas; });
  const auto padded = [&](const plan::LayoutChoice& c) { return whole.batch.global % (c.dp * c.micro) != 0; };
  if (whole.padding_sequences() == 0 && !std::ranges::all_of(all, padded)) std::erase_if(all, padded);
  const plan::LayoutChoice own = plan::choice_of(whole);
  std::map<std::size_t, std::vector<plan::LayoutChoice>> by_changes;
  for (const plan::LayoutChoice& layout : all)
    by_changes[timed ? 0 : plan::changes(own, layout)].push_back(layout);
  for (auto& [changes, layouts] : by_changes)
    for (int searches = 0; searches < kSearches && !layouts.empty(); ++searches) {
      const plan::SearchResult found =
          plan::search_layouts(job, topology, {.keep = kKept, .layouts = layouts});
      if (found.best.empty()) break;
      for (const plan::RankedLayout& best : found.best) {
        if (is_valid(best.choice)) return best.choice;
        std::erase(layouts, best.choice);
      }
    }
  return std::nullopt;
}

std::string layout_text(const plan::LayoutChoice& c) {
  return nlohmann::json{{"tp", c.tp},
                        {"cp", c.cp},
                        {"pp", c.pp},
                        {"dp", c.dp},
                        {"ep", c.ep},
                        {"etp", c.etp},
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
    c.tp = j.at("tp"), c.cp = j.at("cp"), c.pp = j.at("pp"), c.dp = j.at("dp"), c.ep = j.at("ep");
    c.etp = j.at("etp");
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
