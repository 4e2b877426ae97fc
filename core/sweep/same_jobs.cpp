#include "core/sweep/same_jobs.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>

#include "core/spec/compose.h"
#include "core/spec/spec.h"

namespace trainerd::core::sweep {
namespace {

constexpr std::string_view kPreset = "model.preset";

/// The resolved job without what a sweep gives each of its jobs, and without the preset's name: a preset
/// trains by its values alone.
std::string what_it_trains(const SweepJob& job) {
  job::JobSpec spec = job.spec;
  spec.name.clear();
  spec.output.clear();
  spec.checkpoint.durable.to.clear();
  spec.model.preset.clear();
  return spec::to_yaml(spec);
}

std::string set_json(const SweepJob& job, std::string_view key) {
  const auto at = std::ranges::find_if(job.set, [&](const SetKey& set) { return set.path == key; });
  return at == job.set.end() ? "" : at->json;
}

std::string list_text(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

/// Keys that the sweep gives the two jobs with different values.
std::vector<std::string> differing_keys(const SweepJob& one, const SweepJob& other) {
  std::vector<std::string> keys;
  for (const SweepJob* job : {&one, &other})
    for (const SetKey& set : job->set)
      if (set_json(one, set.path) != set_json(other, set.path) &&
          std::ranges::find(keys, set.path) == keys.end())
        keys.push_back(set.path);
  return keys;
}

/// "optimizer.lr and seed change nothing: ".
std::string differing_text(const std::vector<std::string>& keys) {
  if (keys.empty()) return "";
  return list_text(keys) + (keys.size() == 1 ? " changes nothing: " : " change nothing: ");
}

/// The name of a preset; empty: none.
std::string preset_of(const SweepJob& job) {
  const auto json = nlohmann::json::parse(set_json(job, kPreset), nullptr, false);
  return json.is_string() ? json.get<std::string>() : "";
}

/// How the two jobs would differ by their presets; empty: they have the same.
std::string preset_hint(const SweepJob& one, const SweepJob& other, const std::vector<std::string>& keys) {
  if (std::ranges::find(keys, kPreset) == keys.end()) return "";
  std::vector<std::string> shadowed =
      spec::keys_that_model_presets_differ_in(preset_of(one), preset_of(other));
  if (shadowed.empty()) return "";
  const std::string first = shadowed[0];
  return "; the presets differ in " + list_text(shadowed) +
         ", and the job's own go over them: take these away, by `" + first + ": ~`" +
         (shadowed.size() > 1 ? " and so on" : "");
}

struct Remark {
  std::string keys;
  std::string jobs;
  std::string hint;
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
    const std::vector<std::string> differing = differing_keys(*at->second, job);
    const std::string keys = differing_text(differing);
    const auto known =
        std::ranges::find_if(remarks, [&](const Remark& remark) { return remark.keys == keys; });
    if (known != remarks.end()) ++known->more;
    else
      remarks.push_back(
          {keys, at->second->name + " and " + job.name, preset_hint(*at->second, job, differing)});
  }
  std::vector<std::string> lines;
  for (const Remark& remark : remarks)
    lines.push_back(remark.keys + remark.jobs + " are the same job" +
                    (remark.more == 0   ? std::string()
                     : remark.more == 1 ? ", and 1 more pair like them"
                                        : ", and " + std::to_string(remark.more) + " more pairs like them") +
                    remark.hint);
  return lines;
}

}  // namespace trainerd::core::sweep
