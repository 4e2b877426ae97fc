#include "core/run/agent/difference_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace trainerd::core::run {

namespace {

/// The rank that computed wrongly in a step. It is known if only one rank differs, or if only one rank's own
/// part of the loss differs, which no other rank contributes to. A wrong gradient reaches every rank of its
/// all-reduce. None if several ranks differ alike.
std::optional<std::int64_t> culprit_of(const std::map<std::int64_t, ResultsDiffer>& of_step) {
  if (of_step.size() == 1) return of_step.begin()->first;
  std::optional<std::int64_t> culprit;
  for (const auto& [rank, differs] : of_step) {
    if (std::find(differs.tensors.begin(), differs.tensors.end(), "loss") == differs.tensors.end()) continue;
    if (culprit) return std::nullopt;
    culprit = rank;
  }
  return culprit;
}

}  // namespace

std::optional<DifferenceVerdict> DifferenceWatch::add(ResultsDiffer m) {
  const std::int64_t step = m.step;
  std::map<std::int64_t, ResultsDiffer>& of_step = reported_[step];
  const std::vector<std::int64_t> ranks = m.ranks;
  const ResultsDiffer::Found found = m.found;
  of_step[m.rank] = std::move(m);
  if (of_step.size() < ranks.size()) return std::nullopt;
  DifferenceVerdict verdict{.step = step, .ranks = ranks, .message = {}, .details = {}};
  for (const auto& [rank, differs] : of_step)
    verdict.details.push_back(fmt::format("rank {}: {}", rank, fmt::join(differs.tensors, ", ")));
  const std::optional<std::int64_t> culprit = culprit_of(of_step);
  reported_.erase(step);
  const std::string who = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
  const std::string what = fmt::format("silent corruption in step {}: {} computed ", step, who);
  switch (found) {
    case ResultsDiffer::Found::one_of_three:
      verdict.message = what +
                        "other results the first time than the second; the third time agrees with one "
                        "of them, and the step goes on with that";
      break;
    case ResultsDiffer::Found::no_two_alike:
      verdict.message = what + (ranks.size() == 1 ? "three times, and no two results are alike"
                                                  : "three times, and no two of the computations are alike "
                                                    "on all ranks");
      verdict.fatal = true;
      break;
    case ResultsDiffer::Found::after_spike:
      verdict.message =
          what +
          "other results when the step was computed again after a spike: its hardware is the cause, "
          "not the data";
      break;
    case ResultsDiffer::Found::changed_state: break;  // reported by Run::on_changed_state
  }
  if (!culprit) return verdict;
  const auto [at, fresh] = first_.try_emplace(*culprit, step);
  if (fresh || at->second == step || verdict.fatal) return verdict;
  verdict.message += fmt::format("; rank {} differed in step {} too, so the run ends", *culprit, at->second);
  verdict.fatal = true;
  return verdict;
}

}  // namespace trainerd::core::run
