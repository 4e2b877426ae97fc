// Any bytes give a job or a SpecError, and a job's resolved form reads back as the same job.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/spec/spec.h"
#include "kernels/base/error.h"

namespace {

// The first line of an input may be an override: "--set a.b=value".
constexpr const char* kSet = "--set ";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainerd;
  std::string text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> overrides;
  if (text.starts_with(kSet)) {
    const std::size_t begin = std::string(kSet).size();
    const std::size_t end = text.find('\n');
    overrides.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
    text.erase(0, end == std::string::npos ? text.size() : end + 1);
  }
  core::job::JobSpec job;
  try {
    job = core::spec::parse_job(text, "fuzz.yaml", overrides);
  } catch (const base::SpecError&) {
    return 0;
  }
  // The code below must not throw: an escaping exception is a finding.
  if (!(core::spec::parse_job(core::spec::to_yaml(job), "resolved.yaml") == job)) std::abort();
  if (core::job::count_parameters(job.model).total <= 0 || job.microbatches() <= 0 ||
      job.tokens_per_step() <= 0)
    std::abort();
  return 0;
}
