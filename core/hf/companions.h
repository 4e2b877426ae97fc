#pragma once

#include <cstdint>
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

/// Names of the tokenizer's files that `directory` has, sorted. Throws StorageError.
std::vector<std::string> tokenizer_files(const std::string& directory);
/// Whether one of them is the file of this 128-bit XXH3; true where there is neither a tokenizer.json nor a
/// tokenizer.model to compare. Throws StorageError.
bool may_be_tokenizer(const std::string& directory, const std::string& hash);
/// Their checksum; empty where there are none. Throws CheckpointError.
std::string tokenizer_checksum(const std::string& directory);
/// Copies them into `to`, which is made, and flushes them. Throws CheckpointError.
void copy_tokenizer(const std::string& from, const std::string& to);
/// The same in place of a directory `to` that is there, which stays whole until they are copied.
void replace_tokenizer(const std::string& from, const std::string& to);

}  // namespace trainerd::core::hf
