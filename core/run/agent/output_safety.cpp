#include "core/run/agent/output_safety.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/run/worker/batches.h"
#include "core/run/worker/resume_check.h"
#include "io/storage/storage.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

namespace fs = std::filesystem;

bool lies_in(const fs::path& directory, const fs::path& path) {
  return std::mismatch(directory.begin(), directory.end(), path.begin(), path.end()).first == directory.end();
}

/// The path, or what comes before the pattern of a glob.
fs::path without_pattern(const std::string& path) {
  const std::size_t at = path.find_first_of("*?[");
  return at == std::string::npos ? fs::path(path) : fs::path(path.substr(0, at)).parent_path();
}

/// Paths that the job reads, each with its key.
std::vector<std::pair<std::string, std::string>> paths_read(const job::JobSpec& job) {
  std::vector<std::pair<std::string, std::string>> read;
  const auto add = [&read](const std::string& key, const std::vector<std::string>& paths) {
    for (const std::string& path : paths)
      if (!path.empty() && !io::is_remote(path)) read.emplace_back(key, path);
  };
  const io::DataOptions& data = job.data;
  add("data.train", data.train), add("data.mask", data.mask);
  add("data.valid", data.valid), add("data.valid_mask", data.valid_mask);
  for (const io::DataSource& source : data.sources)
    add("data.sources", source.path), add("data.sources", source.mask);
  for (const io::ValidationSet& set : data.valid_sets)
    add("data.valid_sets", set.path), add("data.valid_sets", set.mask);
  for (const job::ChoiceSet& set : job.evaluate.choices) add("evaluate.choices", {set.path});
  if (job.evaluate.tokenizer != "bytes") add("evaluate.tokenizer", {job.evaluate.tokenizer});
  add("model.from", {job.model.from});
  if (job.cluster.preset.find('/') != std::string::npos) add("cluster.preset", {job.cluster.preset});
  return read;
}

bool holds_a_run(const fs::path& output) {
  std::error_code error;
  return fs::exists(output / "run.json", error) || fs::exists(output / "steps.jsonl", error);
}

/// Throws if the run's own files would be read as training text.
void refuse_output_in_data(const job::JobSpec& job, const fs::path& output) {
  if (job.data.format != io::DataFormat::text) return;
  for (const auto& [key, path] : paths_read(job)) {
    std::error_code error;
    const bool all_below = fs::is_directory(path, error) || path.find("**") != std::string::npos;
    const fs::path top = fs::weakly_canonical(without_pattern(path), error);
    if (key.starts_with("data.") && all_below && !error && lies_in(top, output))
      throw base::spec_error("output: " + job.output + " lies in " + key + ", " + path +
                             ", of which every file is read, so also what the run writes: set `output` to a "
                             "directory outside it");
  }
}

}  // namespace

void require_safe_output(const AgentOptions& options) {
  const job::JobSpec& job = options.job;
  std::error_code error;
  const fs::path output = fs::weakly_canonical(io::local_path(job.output), error);
  if (error) return;  // opening the directory reports it
  const bool is_job = !options.invocation.job_file.empty() &&
                      fs::equivalent(options.invocation.job_file, output / "job.yaml", error);
  if (is_job && !holds_a_run(output))
    throw base::spec_error((output / "job.yaml").string() +
                           " is the job itself, and the run would replace it by the resolved job: rename the "
                           "file, or set `output` to another directory");
  const fs::path here = fs::weakly_canonical(fs::current_path(error), error);
  if (here != output && lies_in(output, here) && !holds_a_run(output))
    throw base::spec_error("output: the working directory lies in " + output.string() +
                           ", which no run has written: name a directory of the run's own");
  refuse_output_in_data(job, output);
  if (!options.fresh || !fs::exists(output, error)) return;
  const auto refuse = [&](const std::string& what) {
    throw base::spec_error("--fresh: " + what + " lies in the output " + job.output +
                           ", which would be moved aside: set `output` to another directory");
  };
  const auto inside = [&](const fs::path& path) {
    std::error_code unknown;
    const fs::path whole = fs::weakly_canonical(path, unknown);
    return !unknown && lies_in(output, whole);
  };
  if (lies_in(output, here)) refuse("the working directory");
  if (!is_job && inside(options.invocation.job_file)) refuse("the job, " + options.invocation.job_file + ",");
  for (const auto& [key, path] : paths_read(job))
    if (inside(without_pattern(path))) refuse(key + ", " + path + ",");
  look_at_data(job, data_files(job, options.find_s3));
}

}  // namespace trainerd::core::run
