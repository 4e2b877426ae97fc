#include "core/spec/check_preferences.h"

namespace trainerd::core::spec {

std::vector<KeyProblem> preference_problems(const job::JobSpec& job) {
  const io::DataOptions& d = job.data;
  std::vector<KeyProblem> problems;
  if (!job.loss.dpo.on()) {
    if (d.packing == io::Packing::pairs && d.format != io::DataFormat::synthetic)
      problems.push_back(
          {"data.packing",
           "pairs are for direct preference optimisation: set loss.dpo.beta (0.1), or packing to "
           "concatenate or best_fit"});
    return problems;
  }
  const auto refuse = [&](const char* key, const char* what) { problems.push_back({key, what}); };
  if (d.format == io::DataFormat::synthetic) {
    refuse("data.format",
           "synthetic tokens are no pairs of answers: make token files by `trainerd data prepare --pairs` "
           "and set it "
           "to tokens");
    return problems;
  }
  if (d.format == io::DataFormat::text)
    refuse("data.format",
           "a text holds no pairs of answers: make token files by `trainerd data prepare --pairs` and set it "
           "to tokens");
  if (d.packing != io::Packing::pairs)
    refuse("data.packing", "with loss.dpo a sample is a pair of answers: set it to pairs, or leave it out");
  if (!d.document_mask)
    refuse("data.document_mask", "with loss.dpo no answer sees the other: set it to true, or leave it out");
  else if (!d.reset_positions)
    refuse("data.reset_positions",
           "with loss.dpo each answer begins at position 0: set it to true, or leave it out");
  if (d.document_mask && d.max_documents != 3)
    refuse("data.max_documents", "with loss.dpo a sample has two answers and padding (nearest valid: 3)");
  return problems;
}

}  // namespace trainerd::core::spec
