#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// True if the job gives this key.
using Given = std::function<bool(const char* path)>;

/// Sets the document keys that the job leaves out.
void derive_documents(job::JobSpec& job, const Given& given);

/// Problems of loss masks and documents; none if the job reads no files.
std::vector<KeyProblem> data_mask_problems(const job::JobSpec& job, const Given& given);

/// Problems of data paths with a scheme: only `s3://bucket/key` is supported.
std::vector<KeyProblem> data_scheme_problems(const job::JobSpec& job);

}  // namespace trainerd::core::spec
