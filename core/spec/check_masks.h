#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Whether the job says this key.
using Given = std::function<bool(const char* path)>;

/// What the keys of documents are where the job leaves them out.
void derive_documents(job::JobSpec& job, const Given& given);

/// Of loss masks and documents; none in a job that reads no files.
std::vector<KeyProblem> data_mask_problems(const job::JobSpec& job, const Given& given);

/// Of paths of the data that have a scheme: `s3://bucket/key` alone is one.
std::vector<KeyProblem> data_scheme_problems(const job::JobSpec& job);

}  // namespace trainerd::core::spec
