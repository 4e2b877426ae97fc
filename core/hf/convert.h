#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/hf/elements.h"
#include "core/job/model_options.h"

// Import from and export to Hugging Face directories. One tensor is in memory at a time, at most 64 MiB of it
// unless it is transposed.

namespace trainerd::core::hf {

struct ImportOptions {
  std::string from;  ///< a Hugging Face directory
  std::string out;   ///< the checkpoint's directory, which is created
  std::int64_t most_shard_bytes = std::int64_t{5} << 30;
  /// Called with the directory being filled, and with an empty text at the end.
  std::function<void(const std::string& partial)> on_partial = [](const std::string&) {};
};
struct Imported {
  std::string path;  ///< absolute path of the checkpoint
  job::ModelOptions model;
  std::vector<std::string> notes;  ///< differences in training here
  std::string tokenizer;           ///< names of its tokenizer files; empty: none
};
/// Writes a checkpoint of step 0 with the weights only, in bf16 if the source is bf16 and else in fp32, and
/// the tokenizer files. Throws CheckpointError and leaves nothing behind then.
Imported import_weights(const ImportOptions& options);

/// Output for a checkpoint of adapters (LoRA): a directory for PEFT, or the model merged with its base.
enum class AdapterForm : std::uint8_t { adapter, merged };

struct ExportOptions {
  std::string from;                     ///< a checkpoint, or a run's output (its newest)
  std::string out;                      ///< the directory, which is created
  std::optional<Element> element = {};  ///< none: same as in the checkpoint
  std::int64_t most_shard_bytes = std::int64_t{5'000'000'000};
  bool tokenizer = true;                 ///< false: do not export the tokenizer files
  std::optional<AdapterForm> form = {};  ///< none: whatever the checkpoint holds
  std::string base = {};                 ///< for merged: current path of the base's weights; empty: unchanged
  std::function<void(const std::string& partial)> on_partial = [](const std::string&) {};  ///< as above
  bool average = false;  ///< export the average (key `ema`), in fp32, instead of the last weights or adapters
};
struct Exported {
  std::string from;  ///< the checkpoint's directory
  std::string architecture;
  std::optional<AdapterForm> form = {};  ///< none: the checkpoint holds a model's weights
  std::size_t files = 0;
  std::int64_t bytes = 0;
  std::string tokenizer = {};           ///< names of the tokenizer files; empty: none
  std::vector<std::string> notes = {};  ///< features that some programs do not support
};
/// Writes a Hugging Face directory for transformers, or for adapters one for PEFT. Throws CheckpointError if
/// no known family has such models, the tokenizer files are missing, a value is not finite, or a form of
/// adapters is requested without adapters. Leaves nothing behind then.
Exported export_weights(const ExportOptions& options);

}  // namespace trainerd::core::hf
