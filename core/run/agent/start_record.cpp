#include "core/run/agent/start_record.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "core/run/agent/git_state.h"
#include "io/text/json.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "kernels/base/output_file.h"

namespace trainerd::core::run {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGitSeconds = 2;

constexpr std::array kRecordedPrefixes{"SLURM_", "CUDA_",   "NVIDIA_", "NCCL_", "OMP_", "GOMP_",  "KMP_",
                                       "DNNL_",  "ONEDNN_", "GLOO_",   "UCX_",  "FI_",  "MALLOC_"};
constexpr std::array kRecordedNames{"HOSTNAME", "LD_LIBRARY_PATH", "LD_PRELOAD", "TZ"};
constexpr std::array kSecretWords{"KEY",        "TOKEN", "SECRET", "PASS",   "PWD",
                                  "CREDENTIAL", "AUTH",  "JWT",    "COOKIE", "PRIVATE"};

Json git_json(const std::optional<GitState>& git) {
  if (!git) return nullptr;
  if (!git->error.empty()) return {{"error", git->error}};
  return {{"commit", git->commit},
          {"branch", git->branch},
          {"dirty", !git->changed.empty()},
          {"changed", git->changed}};
}

}  // namespace

bool may_record(const std::string& variable) {
  std::string upper = variable;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const auto holds = [&](const char* word) { return upper.find(word) != std::string::npos; };
  if (std::any_of(kSecretWords.begin(), kSecretWords.end(), holds)) return false;
  return std::any_of(kRecordedPrefixes.begin(), kRecordedPrefixes.end(),
                     [&](const char* prefix) { return variable.starts_with(prefix); }) ||
         std::find(kRecordedNames.begin(), kRecordedNames.end(), variable) != kRecordedNames.end();
}

StartTags write_start(const std::string& path, const StartRecord& record) {
  const Invocation& call = record.invocation;
  const auto git = git_state_of(call.job_file, kGitSeconds);
  std::error_code error;
  const Json line{
      {"wall_time", base::wall_seconds()},
      {"step", record.step},
      {"version", record.version},
      {"commit", record.commit},
      {"arguments", call.arguments},
      {"directory", std::filesystem::current_path(error).string()},
      {"job_file", std::filesystem::absolute(call.job_file, error).string()},
      {"job_git", git_json(git)},
      {"data",
       {{"files", record.data.files()}, {"content", record.data.content()}, {"valid", record.data.valid}}},
      {"hosts", record.hosts},
      {"device", record.device},
      {"layout", record.layout},
      {"environment", call.environment}};
  const std::string text = io::to_text(line) + "\n";
  StartTags start{
      .tags = {{"trainerd.data_fingerprint", data_text(record.data.files(), record.data.content())}},
      .problem = {}};
  const base::UniqueFd fd = base::open_append(path);
  const int failed = fd ? base::write_all(fd.get(), std::as_bytes(std::span(text))) : errno;
  if (failed != 0) start.problem = path + " cannot be written: " + base::errno_text(failed);
  if (git && git->error.empty()) {
    start.tags.emplace_back("mlflow.source.git.commit", git->commit);
    start.tags.emplace_back("mlflow.source.git.branch", git->branch);
    start.tags.emplace_back("trainerd.configuration_changed", git->changed.empty() ? "no" : "yes");
  }
  return start;
}

}  // namespace trainerd::core::run
