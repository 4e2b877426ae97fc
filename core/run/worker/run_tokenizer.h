#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/job/job.h"
#include "io/files/data_files.h"
#include "io/tokenizer/tokenizer.h"

namespace trainerd::core::run {

/// The tokenizer of a run's data, or why it is not available.
struct RunTokenizer {
  std::unique_ptr<io::Tokenizer> tokenizer;
  std::string missing;                   ///< "the data does not say ..."
  std::string file = {};                 ///< its file; empty: none, as for bytes
  std::optional<std::int32_t> end = {};  ///< token at the end of each document, from the data
  bool lost = false;                     ///< the data names a file that is gone or has changed
};

/// The tokenizer that made the job's tokens: `evaluate.tokenizer`; for text, bytes; else the file in the
/// data's `dataset.json`, if it still exists unchanged. Throws DataError if `evaluate.tokenizer` cannot be
/// opened, is not the one that made the data, or has a larger vocabulary than the model. `files` opens the
/// data.
RunTokenizer run_tokenizer(const job::JobSpec& job, const io::DataFiles& files);

/// An error text if the data was made with another tokenizer than the model's, whose files are in
/// `directory`, or is text, whose tokens are bytes. Empty if they match or data.other_tokenizer allows it.
/// Throws DataError if the data cannot be read.
std::string other_tokenizer(const job::JobSpec& job, const std::string& directory,
                            const io::DataFiles& files);

}  // namespace trainerd::core::run
