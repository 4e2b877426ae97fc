#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/text/utf8.h"

namespace trainerd::test {

/// Same as mixed_text in tests/io/tokenizers/make.py: words of many scripts, odd texts and code points from
/// all of Unicode 14, drawn by Splitmix64.
class MixedText {
 public:
  explicit MixedText(const std::string& mix_file) : mix_(nlohmann::json::parse(std::ifstream(mix_file))) {}

  std::string make(std::uint64_t seed, std::size_t bytes) {
    state_ = seed;
    const auto words = mix_["words"].get<std::vector<std::string>>();
    const auto odd = mix_["odd"].get<std::vector<std::string>>();
    const auto ranges = mix_["ranges"].get<std::vector<std::pair<std::uint32_t, std::uint32_t>>>();
    std::string text;
    while (text.size() < bytes) {
      const std::uint64_t kind = below(16);
      if (kind < 12) {
        text += words[below(words.size())];
      } else if (kind < 14) {
        text += odd[below(odd.size())];
      } else {
        const auto [first, last] = ranges[below(ranges.size())];
        for (std::uint64_t left = 1 + below(6); left > 0; --left)
          io::append_utf8(text, first + static_cast<std::uint32_t>(below(last - first + 1)));
      }
      if (below(4) != 0) text += ' ';
    }
    return text;
  }

 private:
  std::uint64_t below(std::uint64_t count) {
    state_ += 0x9E3779B97F4A7C15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return (z ^ (z >> 31)) % count;
  }
  nlohmann::json mix_;
  std::uint64_t state_ = 0;
};

}  // namespace trainerd::test
