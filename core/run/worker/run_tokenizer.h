#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/job/job.h"
#include "io/files/data_files.h"
#include "io/tokenizer/tokenizer.h"

namespace trainerd::core::run {

/// The tokenizer of a run's data, where it can be found: `tokenizer` or why not.
struct RunTokenizer {
  std::unique_ptr<io::Tokenizer> tokenizer;
  std::string missing;                   ///< "the data does not say ..."
  std::string file = {};                 ///< its file; empty: none, as of bytes
  std::optional<std::int32_t> end = {};  ///< the token that ends each document, as the data says
  bool lost = false;  ///< the data names a file that is not there any more, or another one now
};

/// The tokenizer that the job's tokens were made by: `evaluate.tokenizer`; of texts bytes; else the file that
/// the data's `dataset.json` names, where it is still there and the same. Throws DataError where
/// `evaluate.tokenizer` cannot be opened, is not the one that the data was made by, or has a larger
/// vocabulary than the model. `files` opens the data.
RunTokenizer run_tokenizer(const job::JobSpec& job, const io::DataFiles& files);

/// What is wrong where the data was made by another tokenizer than the model's, whose files are in
/// `directory`, or is text, which gives bytes; empty: nothing, or data.other_tokenizer allows it. Throws
/// DataError: the data cannot be read.
std::string other_tokenizer(const job::JobSpec& job, const std::string& directory,
                            const io::DataFiles& files);

}  // namespace trainerd::core::run
