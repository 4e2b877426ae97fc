#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "io/tokens/options.h"
#include "io/tokens/source_files.h"

namespace trainerd::io {

/// The tokenizer that made the token files, as recorded in the `dataset.json` beside them (written by
/// `trainerd data prepare`).
struct DatasetTokenizer {
  std::string path;  ///< path of the dataset.json
  std::string hash;
  std::int64_t vocab = 0;
  std::string file = {};                 ///< as passed to `prepare`: a path or "bytes"; empty if not recorded
  std::optional<std::int32_t> end = {};  ///< the token that ends each document
};

/// Returns the tokenizer of `files`; none if no dataset.json lies beside any of them. Throws DataError if a
/// dataset.json is invalid or if two name different tokenizers.
std::optional<DatasetTokenizer> dataset_tokenizer(std::span<const SourceFile> files);

/// Returns whether the `dataset.json` in `folder` declares loss masks for its token files; none if it does
/// not say or if there is no such file. Throws DataError if it is invalid.
std::optional<bool> dataset_has_masks(const std::string& folder, const DataFiles& from = {});

/// Returns true if the `dataset.json` in `folder` declares that the documents are pairs of answers (chosen,
/// then rejected); false if there is no such file. Throws DataError if it is invalid.
bool dataset_has_pairs(const std::string& folder, const DataFiles& from = {});

/// Checks that pairs of answers are used only with Packing::pairs. Throws DataError if files of pairs are
/// read with another packing, if other files are read as pairs, or if pairs have no loss masks.
void check_pairs(std::span<const SourceFile> files, Packing packing);

/// Returns the checksum (128-bit XXH3, in hex) that the `dataset.json` beside `path` records for it. `path`
/// is a token file, its index or its mask. None if nothing is recorded. Throws DataError if dataset.json is
/// invalid.
std::optional<std::string> dataset_checksum(const std::string& path, const DataFiles& from = {});

/// Returns the tokenizer of the training data. Throws DataError if its sources were made by different
/// tokenizers. `validates`: the validation data is checked too.
std::optional<DatasetTokenizer> check_one_tokenizer(const DataOptions& data, std::int64_t vocab,
                                                    bool validates, const DataFiles& from = {});

}  // namespace trainerd::io
