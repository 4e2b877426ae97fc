#include "core/run/agent/difference_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace trainerd::core::run {

std::optional<DifferenceVerdict> DifferenceWatch::add(ResultsDiffer m) {
  const std::int64_t step = m.step;
  std::map<std::int64_t, ResultsDiffer>& of_step = told_[step];
  const std::vector<std::int64_t> ranks = m.ranks;
  const ResultsDiffer::Found found = m.found;
  of_step[m.rank] = std::move(m);
  if (of_step.size() < ranks.size()) return std::nullopt;
  DifferenceVerdict verdict{.step = step, .ranks = ranks, .message = {}, .details = {}};
  for (const auto& [rank, differs] : of_step)
    verdict.details.push_back(fmt::format("rank {}: {}", rank, fmt::join(differs.tensors, ", ")));
  told_.erase(step);
  const std::string who = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
  const std::string what = fmt::format("silent corruption in step {}: {} computed ", step, who);
  switch (found) {
    case ResultsDiffer::Found::one_of_three:
      verdict.message = what +
                        "other results the first time than the second; the third time agrees with one "
                        "of them, and the step goes on with that";
      break;
    case ResultsDiffer::Found::no_two_alike:
      verdict.message = what + "three times, and no two results are alike";
      verdict.fatal = true;
      break;
    case ResultsDiffer::Found::after_spike:
      verdict.message =
          what +
          "other results when the step was computed again after a spike: its hardware is the cause, "
          "not the data";
      break;
  }
  for (const std::int64_t rank : ranks) {
    const auto [at, fresh] = first_.try_emplace(rank, step);
    if (fresh || at->second == step || verdict.fatal) continue;
    verdict.message += fmt::format("; rank {} differed in step {} too, so the run ends", rank, at->second);
    verdict.fatal = true;
  }
  return verdict;
}

}  // namespace trainerd::core::run
