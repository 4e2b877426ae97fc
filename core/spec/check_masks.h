#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/job/job.h"

namespace trainerd::core::spec {

/// Whether the job says this key.
using Given = std::function<bool(const char* path)>;

/// What the keys of documents are where the job leaves them out.
void derive_documents(job::JobSpec& job, const Given& given);

/// A key and what is wrong with it.
struct KeyProblem {
  const char* path;
  std::string what;
};
/// Of loss masks and documents; none in a job that reads no files.
std::vector<KeyProblem> data_mask_problems(const job::JobSpec& job, const Given& given);

}  // namespace trainerd::core::spec
