#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace trainerd::apps {

struct GenerateArgs {
  std::string from;       ///< checkpoint, run's output, or Hugging Face directory
  std::string prompt;     ///< "-": standard input
  std::string chat;       ///< name of a template; empty: the prompt is plain text
  std::string tokenizer;  ///< file or "bytes"; empty: the one next to the weights
  std::int64_t max_tokens = 64;
  double temperature = 0;
  std::int64_t top_k = 0;
  double top_p = 1;
  std::uint64_t seed = 0;
  bool ignore_end = false;
  std::string device = "auto", precision;
  std::int64_t threads = 0;
  bool json = false;
};
CLI::App* add_generate(CLI::App& app, GenerateArgs& args);
/// Continues a text with a trained model.
int generate_command(const GenerateArgs& args);

}  // namespace trainerd::apps
