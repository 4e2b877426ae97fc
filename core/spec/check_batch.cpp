#include "core/spec/check_batch.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace trainerd::core::spec {
namespace {

using std::to_string;

constexpr std::size_t kMaxBatchStages = 1000;

/// `least`: sequences that leave every data-parallel rank one.
void check_ramp(const job::JobSpec& job, std::int64_t least, std::vector<KeyProblem>& problems) {
  const job::BatchOptions& b = job.batch;
  if (b.ramp.size() > kMaxBatchStages)
    problems.push_back({"batch.ramp", to_string(b.ramp.size()) + " stages are more than " +
                                          to_string(kMaxBatchStages) + ": give some more steps each"});
  for (std::size_t i = 0; i < b.ramp.size(); ++i) {
    const std::int64_t global = b.ramp[i].global;
    const std::string path = "batch.ramp[" + to_string(i) + "].global";
    if (global > b.global)
      problems.push_back({path, to_string(global) +
                                    " is more than batch.global, which is the largest "
                                    "(nearest valid: " +
                                    to_string(b.global) + ")"});
    else if (global >= 1 && global < least)
      problems.push_back({path, to_string(global) +
                                    " leaves data-parallel ranks without a sequence at micro " +
                                    to_string(b.micro) + " and dp " + to_string(job.parallel.dp) +
                                    " (nearest valid: " + to_string(std::max(least, b.micro)) + ")"});
    else if (global >= 1 && global < b.micro)
      problems.push_back({path, to_string(global) + " is less than micro " + to_string(b.micro) +
                                    " (nearest valid: " + to_string(b.micro) + ")"});
  }
}

}  // namespace

std::vector<KeyProblem> batch_problems(const job::JobSpec& job) {
  const job::BatchOptions& b = job.batch;
  std::vector<KeyProblem> problems;
  // A smaller batch would leave a rank, or a part of every microbatch, with padding only.
  const std::int64_t dp = job.parallel.dp, least = b.micro > 0 && dp > 0 ? (dp - 1) * b.micro + 1 : 1;
  if (b.global < least)
    problems.push_back({"batch.global", to_string(b.global) +
                                            " leaves data-parallel ranks without a sequence at micro " +
                                            to_string(b.micro) + " and dp " + to_string(dp) +
                                            " (nearest valid: " + to_string(least) + ")"});
  else if (b.micro > b.global)
    problems.push_back({"batch.micro", to_string(b.micro) + " is more than the global batch of " +
                                           to_string(b.global) +
                                           " sequences (nearest valid: " + to_string(b.global) + ")"});
  else check_ramp(job, least, problems);
  std::int64_t tokens = 0;
  if (__builtin_mul_overflow(b.global, job.model.seq_len, &tokens) ||
      __builtin_mul_overflow(tokens, job.steps, &tokens))
    problems.push_back(
        {"steps", "steps x batch.global x seq_len does not fit in 63 bits: train on fewer tokens"});
  return problems;
}

}  // namespace trainerd::core::spec
