#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Parts of a Hugging Face directory that training does not use but an exported model needs: the tokenizer and
// the text of its configuration.

namespace trainerd::core::hf {

/// Origin of a model's weights, as stored in checkpoints.
struct Origin {
  std::string config;             ///< text of config.json; empty: not from a Hugging Face directory
  std::string generation_config;  ///< text of generation_config.json; empty: there is none
  std::string tokenizer;  ///< 128-bit XXH3 of the tokenizer files and their names; empty: there are none
  std::string from;       ///< source path of the weights
  std::string content;    ///< checksum of the weights

  bool operator==(const Origin&) const = default;
};
/// Convert to and from the text in TrainingState::origin. An empty text is an empty origin. Throws
/// CheckpointError that names `path`.
std::string to_text(const Origin& origin);
Origin parse_origin(const std::string& text, const std::string& path);

/// The ids that end a text, from generation_config.json, or else config.json. Empty if neither has them.
std::vector<std::int32_t> end_ids(const Origin& origin);

/// The folder with the tokenizer files, in a checkpoint or in a run's output.
inline constexpr const char* kCompanionFolder = "tokenizer";

/// A tokenizer file: its name next to a model, and its path.
struct TokenizerFile {
  std::string name, path;
};
/// The tokenizer files in `directory`, sorted by name. Throws StorageError.
std::vector<TokenizerFile> tokenizer_files_in(const std::string& directory);
/// The tokenizer file `file`, named tokenizer.json or tokenizer.model by its content, and its companion
/// files, without a tokenizer in the other form. Throws StorageError.
std::vector<TokenizerFile> tokenizer_files_with(const std::string& file);
/// Names of the tokenizer files in `directory`, sorted. Throws StorageError.
std::vector<std::string> tokenizer_files(const std::string& directory);
/// True if one of them has this 128-bit XXH3, or if there is no tokenizer.json or tokenizer.model to compare.
/// Throws StorageError.
bool may_be_tokenizer(const std::string& directory, const std::string& hash);
/// Checksum of the tokenizer files; empty if there are none. Throws CheckpointError.
std::string tokenizer_checksum(const std::string& directory);
std::string tokenizer_checksum(const std::vector<TokenizerFile>& files);
/// Creates `to`, copies the files into it and flushes them. Throws CheckpointError.
void copy_tokenizer(const std::vector<TokenizerFile>& files, const std::string& to);
/// The same for an existing directory `to`, which is replaced only after the files are copied.
void replace_tokenizer(const std::vector<TokenizerFile>& files, const std::string& to);
/// The origin of a model that has only a data tokenizer as its source: the tokens that begin and end a text,
/// if they exist.
Origin tokenizer_origin(const std::vector<TokenizerFile>& files, std::optional<std::int32_t> bos,
                        std::optional<std::int32_t> eos);

}  // namespace trainerd::core::hf
