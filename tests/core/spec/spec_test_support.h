#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "core/spec/spec.h"
#include "kernels/base/error.h"

namespace trainerd::core {

/// A complete valid job. Tests add their faulty line to it.
inline const std::string kJob =
    "name: tiny\n"                                                                                // 1
    "steps: 20\n"                                                                                 // 2
    "model: {layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 176, vocab: 256, seq_len: 32}\n"  // 3
    "batch: {global: 8, micro: 2}\n"                                                              // 4
    "data: {train: [a.txt], valid: [b.txt]}\n";                                                   // 5

/// The problems of a job, line by line; empty if it has none.
inline std::vector<std::string> problems(const std::string& text,
                                         const std::vector<std::string>& overrides = {}) {
  try {
    spec::parse_job(text, "job.yaml", overrides);
  } catch (const base::SpecError& e) {
    std::vector<std::string> lines{""};
    for (const char c : std::string(e.what()))
      if (c == '\n') lines.emplace_back();
      else lines.back() += c;
    return lines;
  }
  return {};
}

/// The problems of kJob followed by `line`, which is line 6.
inline std::vector<std::string> with_line(const std::string& line) { return problems(kJob + line + "\n"); }

using Lines = std::vector<std::string>;

}  // namespace trainerd::core
