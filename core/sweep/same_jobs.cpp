#include "core/sweep/same_jobs.h"

#include <algorithm>
#include <unordered_map>

#include "core/spec/spec.h"

namespace trainerd::core::sweep {
namespace {

/// The resolved job without the keys that are individual to a sweep's jobs, and without the preset's name,
/// because only a preset's values matter.
std::string what_it_trains(const SweepJob& job) {
  job::JobSpec spec = job.spec;
  spec.name.clear();
  spec.output.clear();
  spec.checkpoint.durable.to.clear();
  spec.model.preset.clear();
  return spec::to_yaml(spec);
}

std::string set_json(const SweepJob& job, const std::string& key) {
  const auto at = std::ranges::find_if(job.set, [&](const SetKey& set) { return set.path == key; });
  return at == job.set.end() ? "" : at->json;
}

/// "optimizer.lr and seed": keys that the sweep sets differently in the two jobs.
std::string differing_text(const SweepJob& one, const SweepJob& other) {
  std::vector<std::string> keys;
  for (const SweepJob* job : {&one, &other})
    for (const SetKey& set : job->set)
      if (set_json(one, set.path) != set_json(other, set.path) &&
          std::ranges::find(keys, set.path) == keys.end())
        keys.push_back(set.path);
  std::string text;
  for (std::size_t i = 0; i < keys.size(); ++i)
    text += (i == 0 ? "" : i + 1 == keys.size() ? " and " : ", ") + keys[i];
  return text + (keys.empty() ? "" : keys.size() == 1 ? " changes nothing: " : " change nothing: ");
}

struct Remark {
  std::string keys;
  std::string jobs;
  std::size_t more = 0;
};

}  // namespace

std::vector<std::string> same_job_remarks(const Sweep& sweep) {
  std::unordered_map<std::string, const SweepJob*> first;
  std::vector<Remark> remarks;
  for (const SweepJob& job : sweep.jobs) {
    if (!job.refused.empty()) continue;
    const auto [at, is_new] = first.try_emplace(what_it_trains(job), &job);
    if (is_new) continue;
    const std::string keys = differing_text(*at->second, job);
    const auto known =
        std::ranges::find_if(remarks, [&](const Remark& remark) { return remark.keys == keys; });
    if (known != remarks.end()) ++known->more;
    else remarks.push_back({keys, at->second->name + " and " + job.name});
  }
  std::vector<std::string> lines;
  for (const Remark& remark : remarks)
    lines.push_back(remark.keys + remark.jobs + " are the same job" +
                    (remark.more == 0   ? std::string()
                     : remark.more == 1 ? ", and 1 more pair like them"
                                        : ", and " + std::to_string(remark.more) + " more pairs like them"));
  return lines;
}

}  // namespace trainerd::core::sweep
