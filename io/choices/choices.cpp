#include "io/choices/choices.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "io/prepare/line_reader.h"
#include "io/text/json.h"
#include "io/text/utf8.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

// One question as read from a line.
struct Asked {
  std::string prompt;
  std::vector<std::string> choices;
  std::size_t answer = 0;
};

std::size_t answer_of(const nlohmann::json& answer, const std::vector<std::string>& choices) {
  if (answer.is_string()) {
    const auto found = std::find(choices.begin(), choices.end(), answer.get<std::string>());
    if (found == choices.end()) throw JsonError("\"answer\" is none of the choices");
    return static_cast<std::size_t>(found - choices.begin());
  }
  if (!answer.is_number_integer() || answer.get<std::int64_t>() < 0 ||
      std::cmp_greater_equal(answer.get<std::int64_t>(), choices.size()))
    throw JsonError("\"answer\" is neither the text of a choice nor its number, from 0 to " +
                    std::to_string(choices.size() - 1));
  return answer.get<std::size_t>();
}

Asked parse_question(std::string_view line) {
  const nlohmann::json j = parse_json(line);
  if (!j.is_object()) throw JsonError("it is not an object");
  Asked asked;
  asked.prompt = string_member(j, "prompt");
  const nlohmann::json& choices = member(j, "choices");
  if (!choices.is_array() || choices.size() < 2) throw JsonError("\"choices\" is not a list of two or more");
  for (const nlohmann::json& choice : choices) {
    if (!choice.is_string()) throw JsonError("a choice is not a text");
    asked.choices.push_back(choice.get<std::string>());
    if (std::count(asked.choices.begin(), asked.choices.end(), asked.choices.back()) > 1)
      throw JsonError("two choices are the same");
  }
  asked.answer = answer_of(member(j, "answer"), asked.choices);
  return asked;
}

// Returns the position where trailing white space begins.
std::size_t end_of_text(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();)
    if (!is_white_space(next_code_point(text, at))) end = at;
  return end;
}

// Returns the number of code points without leading white space.
double characters_of(std::string_view choice) {
  double characters = 0;
  for (std::size_t at = 0; at < choice.size();)
    if (!is_white_space(next_code_point(choice, at)) || characters > 0) ++characters;
  return characters;
}

}  // namespace

Choices::Choices(const Options& options, const Tokenizer& tokenizer) {
  const std::unique_ptr<Encoder> encoder = tokenizer.encoder(SpecialText::token);
  LineReader lines(options.path, 0);
  for (std::int64_t number = 1; options.questions == 0 || questions() < options.questions; ++number) {
    const auto line = lines.next();
    if (!line) break;
    const bool blank = std::all_of(line->text.begin(), line->text.end(),
                                   [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
    if (blank) continue;
    const auto wrong = [&](const std::string& what) {
      return base::data_error(options.path + ":" + std::to_string(number) + ": " + what);
    };
    try {
      if (invalid_utf8(line->text) != std::string_view::npos) throw JsonError("it is not UTF-8");
      add(std::string(line->text), options, *encoder);
    } catch (const JsonError& error) {
      throw wrong(error.what());
    } catch (const EncodeError& error) {
      throw wrong(error.what());
    }
  }
  if (questions_.empty()) throw base::data_error(options.path + ": there are no questions in it");
}

void Choices::add(const std::string& line, const Options& options, Encoder& encoder) {
  Asked asked = parse_question(line);
  const std::size_t end = end_of_text(asked.prompt);
  if (end == 0) throw JsonError("\"prompt\" has no text");
  Question question{.first = texts_.size(), .answer = asked.answer, .characters = {}};
  for (const std::string& choice : asked.choices) {
    question.characters.push_back(characters_of(choice));
    if (question.characters.back() == 0) throw JsonError("a choice has no text");
    add_text(asked.prompt.substr(0, end), asked.prompt.substr(end) + choice, options, encoder);
  }
  questions_.push_back(std::move(question));
}

void Choices::add_text(const std::string& prompt, const std::string& choice, const Options& options,
                       Encoder& encoder) {
  std::vector<std::int32_t> alone;
  encoder.encode(prompt, alone);
  ChoiceText text;
  encoder.encode(prompt + choice, text.tokens);
  const auto all = static_cast<std::int64_t>(text.tokens.size());
  text.prompt_tokens = static_cast<std::int64_t>(alone.size());
  if (text.prompt_tokens == 0) throw JsonError("\"prompt\" has no tokens");
  if (text.prompt_tokens >= all)
    throw JsonError("the choice \"" + choice + "\" has no tokens of its own behind the prompt");
  if (all - text.prompt_tokens > options.seq_len)
    throw JsonError("a choice has " + std::to_string(all - text.prompt_tokens) +
                    " tokens, and model.seq_len is " + std::to_string(options.seq_len));
  if (const std::int64_t over = all - (options.seq_len + 1); over > 0) {
    text.tokens.erase(text.tokens.begin(), text.tokens.begin() + static_cast<std::ptrdiff_t>(over));
    text.prompt_tokens -= over;
    ++shortened_;
  }
  texts_.push_back(std::move(text));
}

ChoiceAccuracy Choices::score(std::span<const double> losses) const {
  base::check(losses.size() == texts_.size(), "each choice has its loss");
  double right = 0, right_by_character = 0;
  for (const Question& question : questions_) {
    std::size_t best = 0, best_by_character = 0;
    const auto loss = [&](std::size_t choice) { return losses[question.first + choice]; };
    const auto per_character = [&](std::size_t choice) { return loss(choice) / question.characters[choice]; };
    for (std::size_t i = 1; i < question.characters.size(); ++i) {
      if (loss(i) < loss(best)) best = i;
      if (per_character(i) < per_character(best_by_character)) best_by_character = i;
    }
    right += best == question.answer ? 1 : 0;
    right_by_character += best_by_character == question.answer ? 1 : 0;
  }
  const auto count = static_cast<double>(questions_.size());
  return {right / count, right_by_character / count};
}

}  // namespace trainerd::io
