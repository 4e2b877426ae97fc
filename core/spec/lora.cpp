#include "core/spec/lora.h"

#include <algorithm>
#include <initializer_list>

#include "core/spec/problems.h"

namespace trainerd::core::spec {
namespace {

constexpr double kMaxRank = 1 << 16;

/// The projections that `all-linear` stands for.
std::vector<std::string> all_targets(const job::ModelOptions& m) {
  if (m.mla.on()) {
    std::vector<std::string> names{job::kLatentProjections.begin(), job::kLatentProjections.end()};
    if (m.mla.q_lora_rank == 0) names.erase(names.begin()), names.front() = "q_proj";
    names.emplace_back("o_proj");
    if (!m.experts.on()) names.insert(names.end(), {"gate_proj", "up_proj", "down_proj"});
    return names;
  }
  if (m.experts.on()) return {"q_proj", "k_proj", "v_proj", "o_proj"};
  if (job::gated(m.mlp)) return {job::kProjections.begin(), job::kProjections.end()};
  return {job::kGpt2Projections.begin(), job::kGpt2Projections.end()};
}

std::vector<std::string> known_targets(const job::ModelOptions& m) {
  std::vector<std::string> names = all_targets(m);
  names.insert(names.begin(), std::string(job::kAllProjections));
  if (m.mla.on()) {
    if (!m.experts.on()) names.emplace_back("gate_up_proj");
  } else if (m.experts.on()) names.emplace_back("qkv_proj");
  else if (job::gated(m.mlp))
    names.insert(names.end(), job::kMergedProjections.begin(), job::kMergedProjections.end());
  return names;
}

}  // namespace

void add_lora(FieldTable& t, job::LoraOptions& lora) {
  const std::string none = "lora.rank is 0, so there are no adapters";
  t.add("lora.rank", &lora.rank,
        "train adapters of this rank (LoRA) in place of the weights of `model.from`, which stay as they are")
      .between(0, kMaxRank)
      .idle_if(!lora.on(), none);
  t.add("lora.alpha", &lora.alpha, "`alpha` / `rank` is what the adapters' product is multiplied by")
      .above(0)
      .or_else("2 x `rank`")
      .idle_if(!lora.on(), none);
  t.add("lora.targets", &lora.targets,
        "projections that get adapters, by their names in Hugging Face models: `q_proj`, `k_proj`, `v_proj`, "
        "`o_proj`, `gate_proj`, `up_proj`, `down_proj`; of GPT-2 `c_attn`, `c_proj`, `c_fc`; of latent "
        "attention `q_a_proj`, `q_b_proj`, `kv_a_proj_with_mqa`, `kv_b_proj`; `all-linear`: all of "
        "them; `qkv_proj` and `gate_up_proj` adapt what they name together (Phi-3)")
      .or_else("`all-linear`")
      .idle_if(!lora.on(), none);
}

std::vector<KeyProblem> complete_lora(job::JobSpec& job) {
  job::LoraOptions& lora = job.model.lora;
  std::vector<KeyProblem> problems;
  if (!lora.on()) return problems;
  if (job.model.from.empty())
    problems.push_back(
        {"lora.rank",
         "adapters are trained beside given weights, and there are none: name them in model.from, or "
         "leave `lora` out to train all weights from the seed"});
  if (job.model.mla.on() && !job::gated(job.model.mlp))
    problems.push_back({"lora.rank",
                        "adapters of a model with latent attention need an MLP with a gate: set model.mlp to "
                        "swiglu or geglu"});
  if (lora.alpha == 0) lora.alpha = 2 * static_cast<double>(lora.rank);
  const auto named = [&](std::string_view name) {
    return std::find(lora.targets.begin(), lora.targets.end(), name) != lora.targets.end();
  };
  const std::vector<std::string> known = known_targets(job.model);
  for (const std::string& target : lora.targets)
    if (std::find(known.begin(), known.end(), target) == known.end())
      problems.push_back(
          {"lora.targets",
           show(target) + " is not a projection that can be adapted: set it to " + list_words(known)});
  const bool all = lora.targets.empty() || named(job::kAllProjections);
  const auto apart = [&](std::string_view merged, std::initializer_list<std::string_view> parts) {
    for (const std::string_view part : parts)
      if (named(merged) && (all || named(part)))
        problems.push_back({"lora.targets", std::string(merged) + " adapts " + std::string(part) +
                                                " too: leave one of them out"});
  };
  apart("qkv_proj", {"q_proj", "k_proj", "v_proj"});
  apart("gate_up_proj", {"gate_proj", "up_proj"});
  std::vector<std::string> targets = all_targets(job.model);
  std::erase_if(targets, [&](const std::string& name) { return !all && !named(name); });
  for (const std::string_view name : job::kMergedProjections)
    if (named(name)) targets.emplace_back(name);
  lora.targets = std::move(targets);
  return problems;
}

}  // namespace trainerd::core::spec
