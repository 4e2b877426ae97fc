#include "core/spec/check_masks.h"

#include <algorithm>

namespace trainerd::core::spec {

void derive_documents(job::JobSpec& job, const Given& given) {
  io::DataOptions& d = job.data;
  if (!given("data.reset_positions")) d.reset_positions = d.document_mask;
  if (d.document_mask && !given("data.max_documents"))
    d.max_documents = std::min(job.model.seq_len, std::max<std::int64_t>(16, job.model.seq_len / 16));
}

std::vector<KeyProblem> data_mask_problems(const job::JobSpec& job, const Given& given) {
  const io::DataOptions& d = job.data;
  std::vector<KeyProblem> problems;
  if (d.format == io::DataFormat::synthetic) return problems;
  if (given("data.mask") && given("data.sources"))
    problems.push_back({"data.mask", "data.sources is given: name each source's masks in its own mask"});
  if (given("data.valid_mask") && d.valid.empty())
    problems.push_back({"data.valid_mask", "there is no data.valid that it could be of: leave it out"});
  if (d.end_token >= job.model.vocab)
    problems.push_back({"data.end_token", std::to_string(d.end_token) + " is not in the vocabulary of " +
                                              std::to_string(job.model.vocab)});
  const bool separates = d.document_mask || d.reset_positions;
  if (separates && d.format == io::DataFormat::text && d.end_token == io::DataOptions::kNoToken)
    problems.push_back({d.document_mask ? "data.document_mask" : "data.reset_positions",
                        "a text does not say where its documents begin: set data.end_token to the byte that "
                        "ends one, or give token files with documents"});
  if (d.packing == io::Packing::best_fit && d.format == io::DataFormat::text)
    problems.push_back(
        {"data.packing",
         "a text does not say where its documents begin: give token files with documents (`trainerd "
         "data prepare` writes them) and format: tokens, or set it to concatenate"});
  if (d.packing == io::Packing::best_fit && d.end_token != io::DataOptions::kNoToken)
    problems.push_back({"data.end_token",
                        "packing: best_fit takes documents from Megatron's index alone: leave it out, or set "
                        "packing: concatenate"});
  if (d.document_mask && d.max_documents > job.model.seq_len)
    problems.push_back({"data.max_documents", std::to_string(d.max_documents) +
                                                  " is more than a sample has tokens (nearest valid: " +
                                                  std::to_string(job.model.seq_len) + ")"});
  return problems;
}

}  // namespace trainerd::core::spec
