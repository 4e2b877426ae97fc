#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "io/tokens/options.h"
#include "io/tokens/source_files.h"

namespace trainerd::io {

/// The tokenizer that token files were made by, as the `dataset.json` beside them says (`trainerd data
/// prepare` writes it).
struct DatasetTokenizer {
  std::string path;  ///< of the dataset.json
  std::string hash;
  std::int64_t vocab = 0;
  std::string file = {};  ///< as `prepare` was given it: a path or "bytes"; empty: it does not say
  std::optional<std::int32_t> end = {};  ///< the token that ends each document
};

/// Of `files`. None: no dataset.json lies beside any of them. Throws DataError: one is broken, two name
/// different tokenizers.
std::optional<DatasetTokenizer> dataset_tokenizer(std::span<const SourceFile> files);

/// Whether the `dataset.json` in `folder` says that each of its token files has a loss mask; none where it
/// says neither, or there is no such file. Throws DataError: it is broken.
std::optional<bool> dataset_has_masks(const std::string& folder, const DataFiles& from = {});

/// Whether it says that the documents are pairs of answers, a chosen one and then the rejected one; false
/// where there is no such file. Throws DataError: it is broken.
bool dataset_has_pairs(const std::string& folder, const DataFiles& from = {});

/// Pairs of answers are trained on as such and in no other way. Throws DataError: files of pairs are read
/// otherwise, or others as pairs; pairs without loss masks.
void check_pairs(std::span<const SourceFile> files, Packing packing);

/// The checksum (128-bit XXH3, in hex) that the `dataset.json` beside a file of tokens, its index or its mask
/// has of it; none: it has none, or there is no such file. Throws DataError: it is broken.
std::optional<std::string> dataset_checksum(const std::string& path, const DataFiles& from = {});

/// That of the training data. Throws DataError when its sources, or with `validates` these and the validation
/// data, were made by different tokenizers.
std::optional<DatasetTokenizer> check_one_tokenizer(const DataOptions& data, std::int64_t vocab,
                                                    bool validates, const DataFiles& from = {});

}  // namespace trainerd::io
