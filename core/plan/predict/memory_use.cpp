#include "core/plan/predict/memory_use.h"

#include <array>

#include "kernels/memory/memory.h"

namespace trainerd::core::plan {
namespace {

using kernels::MemoryTerm;

constexpr std::array<const char*, 6> kUses{"parameters",  "gradients", "optimizer",
                                           "activations", "workspace", "other"};
constexpr std::size_t kOther = kUses.size() - 1;

std::size_t use_of(MemoryTerm term) {
  switch (term) {
    case MemoryTerm::parameters:
    case MemoryTerm::prepared_weights: return 0;
    case MemoryTerm::gradients: return 1;
    case MemoryTerm::master_weights:
    case MemoryTerm::moments: return 2;
    case MemoryTerm::activations:
    case MemoryTerm::logits: return 3;
    case MemoryTerm::workspace: return 4;
    case MemoryTerm::batch:
    case MemoryTerm::control:
    case MemoryTerm::count_: break;
  }
  return kOther;
}

}  // namespace

std::vector<std::pair<std::string, std::int64_t>> memory_by_use(std::span<const RankClass> classes) {
  std::array<std::int64_t, kUses.size()> bytes{};
  for (const RankClass& c : classes)
    for (const kernels::MemoryBudget::Region& region : c.plan.memory.regions) {
      if (region.kind == kernels::MemoryBudget::RegionKind::host) continue;
      std::int64_t left = region.bytes;  // bytes without a term are alignment
      for (std::size_t t = 0; t < static_cast<std::size_t>(MemoryTerm::count_); ++t) {
        const auto term = static_cast<MemoryTerm>(t);
        const auto found = region.terms.find(kernels::to_string(term));
        if (found == region.terms.end()) continue;
        bytes[use_of(term)] += c.ranks * found->second;
        left -= found->second;
      }
      bytes[kOther] += c.ranks * left;
    }
  std::vector<std::pair<std::string, std::int64_t>> uses;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != 0) uses.emplace_back(kUses[i], bytes[i]);
  return uses;
}

}  // namespace trainerd::core::plan
