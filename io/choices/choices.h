#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/tokenizer/tokenizer.h"

namespace trainerd::io {

/// One choice of a question, as tokens: the prompt followed by the choice. Only the choice is scored.
struct ChoiceText {
  std::vector<std::int32_t> tokens;  ///< at most seq_len + 1
  std::int64_t prompt_tokens = 0;    ///< at least 1
};

/// Fraction of questions whose right choice has the highest likelihood, and the same by likelihood per
/// character.
struct ChoiceAccuracy {
  double accuracy = 0, accuracy_norm = 0;
};

/// Questions with several choices, as tokens. Follows EleutherAI's lm-evaluation-harness: prompt and choice
/// are encoded as one text, and the tokens after those of the prompt alone belong to the choice. White space
/// at the prompt's end belongs to the choice. A text that is too long loses its beginning. The number of
/// characters of a choice is its Unicode code points without leading white space.
class Choices {
 public:
  struct Options {
    std::string path;            ///< a JSONL file
    std::int64_t questions = 0;  ///< most questions, from the start of the file; 0: all
    std::int64_t seq_len = 0;
  };
  /// A line is {"prompt": text, "choices": [text, ...], "answer": number from 0, or the right choice's text}.
  /// Other members are ignored. Throws DataError naming file and line: another shape, fewer than two choices,
  /// equal choices, an answer that is not a choice, an empty prompt, a choice of no tokens or of more than
  /// seq_len. Throws also for a file without questions.
  Choices(const Options& options, const Tokenizer& tokenizer);

  std::int64_t questions() const { return static_cast<std::int64_t>(questions_.size()); }
  /// Texts of all questions, in order.
  const std::vector<ChoiceText>& texts() const { return texts_; }
  /// Number of texts that lost their beginning.
  std::int64_t shortened() const { return shortened_; }
  /// `losses`: per text, the sum of its choice's negative log-likelihoods. The first of equal choices wins.
  ChoiceAccuracy score(std::span<const double> losses) const;

 private:
  struct Question {
    std::size_t first = 0;  ///< index of its first text
    std::size_t answer = 0;
    std::vector<double> characters;  ///< per choice
  };
  void add(const std::string& line, const Options& options, Encoder& encoder);
  void add_text(const std::string& prompt, const std::string& choice, const Options& options,
                Encoder& encoder);

  std::vector<Question> questions_;
  std::vector<ChoiceText> texts_;
  std::int64_t shortened_ = 0;
};

}  // namespace trainerd::io
