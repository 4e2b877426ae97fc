#include "core/run/worker/run_tokenizer.h"

#include <filesystem>
#include <optional>
#include <system_error>

#include "core/hf/companions.h"
#include "io/tokens/dataset_info.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

/// The tokenizer according to the data's files.
struct Stated {
  std::string hash, file;                ///< empty: not stated
  std::string by;                        ///< the file that states it
  std::optional<std::int32_t> end = {};  ///< end-of-document token
};

Stated stated_by(const job::JobSpec& job, const io::DataFiles& files) {
  if (job.data.format == io::DataFormat::text) return {"bytes", "bytes", "data.format: text"};
  const auto dataset = io::check_one_tokenizer(job.data, job.model.vocab, false, files);
  if (!dataset) return {};
  return {dataset->hash, dataset->file, dataset->path, dataset->end};
}

// Error text: the data is bytes, but the model's ids mean other texts.
std::string bytes_of_other(const job::JobSpec& job, const std::string& directory) {
  std::string inputs, tokenizer = directory;
  for (const io::DataSource& source : job.data.sources)
    for (const std::string& path : source.path) inputs += path + " ";
  for (const std::string& path : job.data.train) inputs += path + " ";
  for (const char* name : {"tokenizer.model", "tokenizer.json"})
    if (std::error_code error; std::filesystem::exists(std::filesystem::path(directory) / name, error))
      tokenizer = (std::filesystem::path(directory) / name).string();
  return "data.format: text gives one token a byte, and the model has a tokenizer, in " + directory +
         ": encode the text by it (trainerd data prepare " + inputs + "--out tokens --tokenizer " +
         tokenizer +
         "), and set data: {format: tokens, train: [tokens]}; or set data.other_tokenizer: allow to train on "
         "bytes";
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
  run.end = stated.end;
  if (asked.empty()) {
    if (stated.hash.empty()) {
      run.missing = "the data does not say which tokenizer made it";
      return run;
    }
    std::error_code error;
    const bool bytes = stated.hash == "bytes";
    if (!bytes && (stated.file.empty() || !std::filesystem::is_regular_file(stated.file, error))) {
      run.missing = stated.by + " names the tokenizer " + stated.file + ", which is not there";
      run.lost = true;
      return run;
    }
    run.tokenizer = io::open_tokenizer(bytes ? "bytes" : stated.file);
    if (!bytes) run.file = stated.file;
    if (run.tokenizer->info().hash == stated.hash) return run;
    run.tokenizer.reset();
    run.lost = true;
    run.missing = stated.file + " is not the tokenizer any more that " + stated.by + " names";
    return run;
  }
  run.tokenizer = io::open_tokenizer(asked);
  if (asked != "bytes") run.file = asked;
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

std::string other_tokenizer(const job::JobSpec& job, const std::string& directory,
                            const io::DataFiles& files) {
  if (job.data.other_tokenizer == io::OtherTokenizer::allow) return "";
  if (job.data.format == io::DataFormat::text) return bytes_of_other(job, directory);
  const auto data = io::check_one_tokenizer(job.data, job.model.vocab, false, files);
  if (!data || hf::may_be_tokenizer(directory, data->hash)) return "";
  return data->path + ": the data was prepared by the tokenizer " +
         (data->file.empty() ? "" : data->file + " ") + "(xxh3 " + data->hash +
         "), and the model's is another one, in " + directory +
         ": prepare the data by that one, or set data.other_tokenizer: allow if both give the same ids";
}

}  // namespace trainerd::core::run
