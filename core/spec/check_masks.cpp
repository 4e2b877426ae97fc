#include "core/spec/check_masks.h"

#include <algorithm>

#include "io/s3/client.h"
#include "kernels/base/error.h"

namespace trainerd::core::spec {

namespace {

// Two answers and the padding.
constexpr std::int64_t kPairDocuments = 3;

}  // namespace

void derive_documents(job::JobSpec& job, const Given& given) {
  io::DataOptions& d = job.data;
  if (job.loss.dpo.on()) {
    if (!given("data.packing")) d.packing = io::Packing::pairs;
    if (!given("data.document_mask")) d.document_mask = true;
    if (!given("data.max_documents")) d.max_documents = kPairDocuments;
  }
  if (!given("data.reset_positions")) d.reset_positions = d.document_mask;
  if (d.document_mask && !job.loss.dpo.on() && !given("data.max_documents"))
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
  if (d.packing != io::Packing::concatenate && d.end_token != io::DataOptions::kNoToken)
    problems.push_back({"data.end_token",
                        std::string("packing: ") + (d.packing == io::Packing::pairs ? "pairs" : "best_fit") +
                            " takes documents from Megatron's index alone: leave it out, or set "
                            "packing: concatenate"});
  if (d.document_mask && d.max_documents > job.model.seq_len)
    problems.push_back({"data.max_documents", std::to_string(d.max_documents) +
                                                  " is more than a sample has tokens (nearest valid: " +
                                                  std::to_string(job.model.seq_len) + ")"});
  return problems;
}

std::vector<KeyProblem> data_scheme_problems(const job::JobSpec& job) {
  const io::DataOptions& d = job.data;
  std::vector<KeyProblem> problems;
  if (d.format == io::DataFormat::synthetic) return problems;
  const auto check = [&](const char* key, const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      if (path.find("://") == std::string::npos) continue;
      try {
        io::parse_s3(path);
      } catch (const base::SpecError& error) {
        problems.push_back({key, error.what()});
      }
    }
  };
  check("data.train", d.train);
  check("data.valid", d.valid);
  check("data.mask", d.mask);
  check("data.valid_mask", d.valid_mask);
  for (const io::ValidationSet& set : d.valid_sets) {
    check("data.valid_sets", set.path);
    check("data.valid_sets", set.mask);
  }
  for (const io::DataSource& source : d.sources) {
    check("data.sources", source.path);
    check("data.sources", source.mask);
  }
  return problems;
}

}  // namespace trainerd::core::spec
