#include "io/choices/choices.h"

#include <catch2/catch.hpp>

#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Matchers::Contains;

namespace {

Choices choices_of(const std::string& lines, std::int64_t seq_len = 32, std::int64_t questions = 0) {
  const TempDir dir;
  write_file(dir / "quiz.jsonl", lines);
  return {{.path = dir / "quiz.jsonl", .questions = questions, .seq_len = seq_len}, *open_tokenizer("bytes")};
}

std::string text_of(const ChoiceText& text) { return {text.tokens.begin(), text.tokens.end()}; }

std::string refusal_of_line(const std::string& line, std::int64_t seq_len = 32) {
  return message_of<DataError>([&] { choices_of("\n" + line + "\n", seq_len); });
}

}  // namespace

TEST_CASE("a choice's tokens are those behind the prompt's, with the white space between them") {
  const Choices quiz =
      choices_of(R"({"prompt": "Is it \u00e9?  ", "choices": ["yes", " no"], "answer": 1})"
                 "\n\n"
                 R"({"prompt": "2+2=", "choices": ["4", "5", "22"], "answer": "4", "topic": "sums"})");
  CHECK(quiz.questions() == 2);
  REQUIRE(quiz.texts().size() == 5);
  CHECK(text_of(quiz.texts()[0]) == "Is it \xc3\xa9?  yes");
  CHECK(quiz.texts()[0].prompt_tokens == 9);  // up to "?", in bytes
  CHECK(text_of(quiz.texts()[1]) == "Is it \xc3\xa9?   no");
  CHECK(text_of(quiz.texts()[4]) == "2+2=22");
  CHECK(quiz.texts()[4].prompt_tokens == 4);
  CHECK(quiz.shortened() == 0);
  CHECK(choices_of(R"({"prompt": "a", "choices": ["b", "c"], "answer": 0})"
                   "\n{",
                   32, 1)
            .questions() == 1);
}

TEST_CASE("accuracy is that of the likeliest choice, and of the likeliest per character") {
  const Choices quiz = choices_of(R"({"prompt": "a", "choices": [" b", " \u00e9\u00e9\u00e9"], "answer": 1})"
                                  "\n"
                                  R"({"prompt": "a", "choices": ["b", "c"], "answer": 0})");
  const auto both = [&](std::vector<double> losses) {
    const ChoiceAccuracy score = quiz.score(losses);
    return std::pair(score.accuracy, score.accuracy_norm);
  };
  // Loss 2 for 1 character, 3 for 3 characters: the first is likelier, the second per character.
  CHECK(both({2, 3, 1, 2}) == std::pair(0.5, 1.0));
  CHECK(both({2, 1.5, 2, 1}) == std::pair(0.5, 0.5));
  CHECK(both({2, 7, 2, 1}) == std::pair(0.0, 0.0));
  CHECK(both({2, 2, 1, 1}) == std::pair(0.5, 1.0));  // the first of equal choices
}

TEST_CASE("a text that is too long loses the beginning of its prompt") {
  const std::string line = R"({"prompt": "0123456789", "choices": ["ab", "c"], "answer": 0})";
  const Choices quiz = choices_of(line, 7);
  CHECK(text_of(quiz.texts()[0]) == "456789ab");
  CHECK(quiz.texts()[0].prompt_tokens == 6);
  CHECK(quiz.shortened() == 2);
  CHECK(choices_of(line, 10).shortened() == 1);
  CHECK(text_of(choices_of(line, 2).texts()[0]) == "9ab");
  CHECK_THAT(refusal_of_line(line, 1),
             Contains("quiz.jsonl:2: a choice has 2 tokens, and model.seq_len is 1"));
}

TEST_CASE("what is no question is refused with its file and line") {
  const auto line = [](const std::string& prompt, const std::string& choices, const std::string& answer) {
    return "{\"prompt\": " + prompt + ", \"choices\": " + choices + ", \"answer\": " + answer + "}";
  };
  CHECK_THAT(refusal_of_line("[1]"), Contains("quiz.jsonl:2: it is not an object"));
  CHECK_THAT(refusal_of_line("{"), Contains("quiz.jsonl:2: "));
  CHECK_THAT(refusal_of_line(R"({"choices": ["a", "b"], "answer": 0})"), Contains("prompt"));
  CHECK_THAT(refusal_of_line(line("\" \"", R"(["a", "b"])", "0")), Contains("\"prompt\" has no text"));
  CHECK_THAT(refusal_of_line(line("\"p\"", R"(["a"])", "0")), Contains("not a list of two or more"));
  CHECK_THAT(refusal_of_line(line("\"p\"", R"(["a", 1])", "0")), Contains("a choice is not a text"));
  CHECK_THAT(refusal_of_line(line("\"p\"", R"(["a", "a"])", "0")), Contains("two choices are the same"));
  CHECK_THAT(refusal_of_line(line("\"p\"", R"(["a", " "])", "0")), Contains("a choice has no text"));
  for (const char* answer : {"2", "-1", "0.5", "null", "\"c\""})
    CHECK_THAT(refusal_of_line(line("\"p\"", R"(["a", "b"])", answer)), Contains("\"answer\" is"));
  CHECK_THAT(refusal_of_line("{\"prompt\": \"\xff\"}"), Contains("it is not UTF-8"));
  CHECK_THAT(refusal_of_line(""), Contains("there are no questions in it"));
  CHECK_THROWS_AS(
      Choices({.path = "/no/such/quiz.jsonl", .questions = 0, .seq_len = 8}, *open_tokenizer("bytes")),
      DataError);
}
