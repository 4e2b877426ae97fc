#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/hf/elements.h"
#include "core/job/model_options.h"

// Hugging Face directories in and out. Each tensor is in memory by itself, and no more than 64 MiB of it
// unless it is transposed.

namespace trainerd::core::hf {

struct ImportOptions {
  std::string from;  ///< a Hugging Face directory
  std::string out;   ///< the checkpoint's directory, which is made
  std::int64_t most_shard_bytes = std::int64_t{5} << 30;
  /// Told the directory that is filled meanwhile, and at the end an empty text.
  std::function<void(const std::string& partial)> on_partial = [](const std::string&) {};
};
struct Imported {
  std::string path;  ///< of the checkpoint, absolute
  job::ModelOptions model;
  std::vector<std::string> notes;  ///< what training will do otherwise
  std::string tokenizer;           ///< names of the tokenizer's files that it has; empty: none
};
/// Writes a checkpoint of step 0 that holds the weights alone, in bf16 where the source is bf16 and else in
/// fp32, and the tokenizer's files. Throws CheckpointError; nothing is left then.
Imported import_weights(const ImportOptions& options);

/// What is made of a checkpoint of adapters (LoRA): a directory that PEFT loads, or a model of them and their
/// base.
enum class AdapterForm : std::uint8_t { adapter, merged };

struct ExportOptions {
  std::string from;                     ///< a checkpoint, or a run's output: its newest
  std::string out;                      ///< the directory, which is made
  std::optional<Element> element = {};  ///< none: as the checkpoint holds the weights
  std::int64_t most_shard_bytes = std::int64_t{5'000'000'000};
  bool tokenizer = true;  ///< false: the tokenizer's files are not wanted
  std::optional<AdapterForm> form =
      {};                 ///< none: the weights, or the adapters where the checkpoint holds these
  std::string base = {};  ///< merged: where the base's weights are now; empty: where they were
  std::function<void(const std::string& partial)> on_partial = [](const std::string&) {};  ///< as above
  bool average = false;  ///< in place of the last weights, or adapters, their average (key `ema`), in fp32
};
struct Exported {
  std::string from;  ///< the checkpoint's directory
  std::string architecture;
  std::optional<AdapterForm> form = {};  ///< none: the checkpoint holds a model's weights
  std::size_t files = 0;
  std::int64_t bytes = 0;
  std::string tokenizer = {};           ///< names of the tokenizer's files; empty: none
  std::vector<std::string> notes = {};  ///< what some programs do not take
};
/// Writes a Hugging Face directory that transformers loads, or of adapters one that PEFT loads. Throws
/// CheckpointError: no family that is known has such models, the tokenizer's files are not there any more, a
/// value is not finite, a form of adapters is asked for where there are none; nothing is left then.
Exported export_weights(const ExportOptions& options);

}  // namespace trainerd::core::hf
