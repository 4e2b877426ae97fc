#include "core/run/worker/run_tokenizer.h"

#include <filesystem>
#include <optional>
#include <system_error>

#include "io/tokens/dataset_info.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

/// Of the data, as its files say it.
struct Stated {
  std::string hash, file;  ///< empty: they do not say
  std::string by;          ///< that says it
};

Stated stated_by(const job::JobSpec& job, const io::DataFiles& files) {
  if (job.data.format == io::DataFormat::text) return {"bytes", "bytes", "data.format: text"};
  const auto dataset = io::check_one_tokenizer(job.data, job.model.vocab, false, files);
  if (!dataset) return {};
  return {dataset->hash, dataset->file, dataset->path};
}

}  // namespace

RunTokenizer run_tokenizer(const job::JobSpec& job, const io::DataFiles& files) {
  RunTokenizer run;
  const std::string& asked = job.evaluate.tokenizer;
  if (job.data.format == io::DataFormat::synthetic && asked.empty()) {
    run.missing = "synthetic tokens stand for no text";
    return run;
  }
  const Stated stated = job.data.format == io::DataFormat::synthetic ? Stated{} : stated_by(job, files);
  if (asked.empty()) {
    if (stated.hash.empty()) {
      run.missing = "the data does not say which tokenizer made it";
      return run;
    }
    std::error_code error;
    const bool bytes = stated.hash == "bytes";
    if (!bytes && (stated.file.empty() || !std::filesystem::is_regular_file(stated.file, error))) {
      run.missing = stated.by + " names the tokenizer " + stated.file + ", which is not there";
      return run;
    }
    run.tokenizer = io::open_tokenizer(bytes ? "bytes" : stated.file);
    if (run.tokenizer->info().hash == stated.hash) return run;
    run.tokenizer.reset();
    run.missing = stated.file + " is not the tokenizer any more that " + stated.by + " names";
    return run;
  }
  run.tokenizer = io::open_tokenizer(asked);
  const io::TokenizerInfo& info = run.tokenizer->info();
  if (!stated.hash.empty() && info.hash != stated.hash)
    throw base::data_error("evaluate.tokenizer: " + asked + " is " + info.hash +
                           ", and the data was made by " + stated.hash + ", as " + stated.by +
                           " says: name that one");
  if (info.vocab > job.model.vocab)
    throw base::data_error("evaluate.tokenizer: " + asked + " has a vocabulary of " +
                           std::to_string(info.vocab) + ", and model.vocab is " +
                           std::to_string(job.model.vocab) + ": it is of another model");
  return run;
}

}  // namespace trainerd::core::run
