#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// What of a Hugging Face directory training does not read and an exported model is to have again: its
// tokenizer, and the text of its configuration.

namespace trainerd::core::hf {

/// Where a model's weights came from, as checkpoints keep it.
struct Origin {
  std::string config;             ///< the text of config.json; empty: not of a Hugging Face directory
  std::string generation_config;  ///< of generation_config.json; empty: there is none
  std::string tokenizer;  ///< 128-bit XXH3 of the tokenizer's files and their names; empty: there are none
  std::string from;       ///< the path that the weights were taken from
  std::string content;    ///< a checksum of the weights

  bool operator==(const Origin&) const = default;
};
/// As TrainingState::origin holds it, and back; an empty text is an empty origin. Throws CheckpointError
/// naming `path`.
std::string to_text(const Origin& origin);
Origin parse_origin(const std::string& text, const std::string& path);

/// The ids that end a text, as generation_config.json says, or else config.json. Empty: neither does.
std::vector<std::int32_t> end_ids(const Origin& origin);

/// The folder of a checkpoint, or of a run's output, that holds the tokenizer's files.
inline constexpr const char* kCompanionFolder = "tokenizer";

/// A file of a tokenizer: its name beside a model, and where it lies.
struct TokenizerFile {
  std::string name, path;
};
/// Those that `directory` has, sorted by name. Throws StorageError.
std::vector<TokenizerFile> tokenizer_files_in(const std::string& directory);
/// `file`, from which a tokenizer was opened, as tokenizer.json or tokenizer.model, and the others that lie
/// beside it, but for the tokenizer in the other form. Throws StorageError.
std::vector<TokenizerFile> tokenizer_files_with(const std::string& file);
/// Names of the tokenizer's files that `directory` has, sorted. Throws StorageError.
std::vector<std::string> tokenizer_files(const std::string& directory);
/// Whether one of them is the file of this 128-bit XXH3; true where there is neither a tokenizer.json nor a
/// tokenizer.model to compare. Throws StorageError.
bool may_be_tokenizer(const std::string& directory, const std::string& hash);
/// Their checksum; empty where there are none. Throws CheckpointError.
std::string tokenizer_checksum(const std::string& directory);
std::string tokenizer_checksum(const std::vector<TokenizerFile>& files);
/// Copies them into `to`, which is made, and flushes them. Throws CheckpointError.
void copy_tokenizer(const std::vector<TokenizerFile>& files, const std::string& to);
/// The same in place of a directory `to` that is there, which stays whole until they are copied.
void replace_tokenizer(const std::vector<TokenizerFile>& files, const std::string& to);
/// The record of a model whose only source is its data's tokenizer: the tokens that begin and end a text,
/// where there are such.
Origin tokenizer_origin(const std::vector<TokenizerFile>& files, std::optional<std::int32_t> bos,
                        std::optional<std::int32_t> eos);

}  // namespace trainerd::core::hf
