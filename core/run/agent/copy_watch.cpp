#include "core/run/agent/copy_watch.h"

#include <algorithm>
#include <set>
#include <utility>

namespace trainerd::core::run {
namespace {

constexpr std::size_t kShownTensors = 8;

/// "ranks 1, 3".
std::string ranks_text(const std::vector<std::int64_t>& ranks) {
  std::string text;
  for (const std::int64_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace

std::optional<CopyVerdict> CopyWatch::add(CopiesHashed m) {
  if (!m.names.empty()) names_[m.rank] = std::move(m.names);
  auto& of_step = sent_[m.step];
  of_step[m.rank] = std::move(m.hashes);
  if (std::cmp_less(of_step.size(), ranks_)) return std::nullopt;
  CopyVerdict verdict = compare(m.step);
  sent_.erase(m.step);
  if (!verdict.ranks.empty()) return verdict;
  ++equal_;
  equal_step_ = std::max(equal_step_, m.step);
  return std::nullopt;
}

CopyVerdict CopyWatch::compare(std::int64_t step) const {
  std::map<std::string, std::map<std::uint64_t, std::vector<std::int64_t>>> holders;  // by name and hash
  for (const auto& [rank, hashes] : sent_.at(step)) {
    const auto names = names_.find(rank);
    for (std::size_t i = 0; i < hashes.size() && names != names_.end(); ++i)
      holders[names->second.at(i)][hashes[i]].push_back(rank);
  }
  CopyVerdict verdict{.step = step, .ranks = {}, .decided = true, .details = {}};
  std::set<std::int64_t> odd;
  std::size_t more = 0;
  for (const auto& [name, by_hash] : holders) {
    if (by_hash.size() < 2) continue;
    std::size_t all = 0;
    const std::vector<std::int64_t>* most = nullptr;
    for (const auto& [hash, ranks] : by_hash) {
      all += ranks.size();
      if (most == nullptr || ranks.size() > most->size()) most = &ranks;
    }
    const bool majority = 2 * most->size() > all;
    verdict.decided = verdict.decided && majority;
    std::vector<std::int64_t> named;
    for (const auto& [hash, ranks] : by_hash)
      if (!majority || &ranks != most) named.insert(named.end(), ranks.begin(), ranks.end());
    std::sort(named.begin(), named.end());
    odd.insert(named.begin(), named.end());
    if (verdict.details.size() == kShownTensors) {
      ++more;
      continue;
    }
    verdict.details.push_back(majority ? name + ": " + ranks_text(named) + " against " + ranks_text(*most)
                                       : name + ": " + ranks_text(named) + " against each other");
  }
  if (more > 0) verdict.details.push_back("and " + std::to_string(more) + " more");
  verdict.ranks.assign(odd.begin(), odd.end());
  return verdict;
}

std::string to_text(const CopyVerdict& verdict) {
  const std::string state = "the state after step " + std::to_string(verdict.step) + ": ";
  if (verdict.decided)
    return "silent corruption in " + state + ranks_text(verdict.ranks) +
           (verdict.ranks.size() == 1 ? " differs from its replicas" : " differ from their replicas");
  return "silent corruption in " + state + ranks_text(verdict.ranks) +
         " differ, and there is no majority that tells which is right";
}

}  // namespace trainerd::core::run
