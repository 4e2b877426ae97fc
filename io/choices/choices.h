#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/tokenizer/tokenizer.h"

namespace trainerd::io {

/// One choice of a question as a text of tokens: the prompt's, then those that count.
struct ChoiceText {
  std::vector<std::int32_t> tokens;  ///< seq_len + 1 at most
  std::int64_t prompt_tokens = 0;    ///< at least 1
};

/// Shares of the questions whose right choice has the highest likelihood, and the highest likelihood per
/// character.
struct ChoiceAccuracy {
  double accuracy = 0, accuracy_norm = 0;
};

/// Questions with several choices, each as tokens, by the rules of EleutherAI's lm-evaluation-harness: the
/// text is the prompt with the choice behind it, encoded as one; what is behind the tokens of the prompt
/// alone is the choice's; white space at the prompt's end belongs to the choice. A text that is too long
/// loses its beginning. A choice's characters are its Unicode code points without white space before it.
class Choices {
 public:
  struct Options {
    std::string path;            ///< of a JSONL file
    std::int64_t questions = 0;  ///< at most, from its start; 0: all
    std::int64_t seq_len = 0;
  };
  /// A line is {"prompt": text, "choices": [text, ...], "answer": number from 0, or the right choice's text}.
  /// Other members are left alone. Throws DataError naming file and line: what is not such an object, fewer
  /// than two choices, equal ones, an answer that is none of them, a prompt without text, a choice of no
  /// tokens or of more than seq_len; a file without questions.
  Choices(const Options& options, const Tokenizer& tokenizer);

  std::int64_t questions() const { return static_cast<std::int64_t>(questions_.size()); }
  /// Of all questions, one after the other.
  const std::vector<ChoiceText>& texts() const { return texts_; }
  /// Those whose beginning is left out.
  std::int64_t shortened() const { return shortened_; }
  /// `losses`: by text the sum of its choice's negative log-likelihoods. Of equal ones the first is the best.
  ChoiceAccuracy score(std::span<const double> losses) const;

 private:
  struct Question {
    std::size_t first = 0;  ///< of its texts
    std::size_t answer = 0;
    std::vector<double> characters;  ///< by choice
  };
  void add(const std::string& line, const Options& options, Encoder& encoder);
  void add_text(const std::string& prompt, const std::string& choice, const Options& options,
                Encoder& encoder);

  std::vector<Question> questions_;
  std::vector<ChoiceText> texts_;
  std::int64_t shortened_ = 0;
};

}  // namespace trainerd::io
