#include "kernels/base/turns.h"

#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>

using trainerd::base::Turns;

namespace {

struct TurnError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Appends `letter` `times` times, and gives way after each.
void write_letters(Turns& turns, std::string& text, char letter, int times) {
  for (int i = 0; i < times; ++i) {
    text += letter;
    turns.give_way();
  }
}

/// What is left on the stack when a function ends.
struct Guard {
  std::string& text;
  ~Guard() { text += '.'; }
};

}  // namespace

TEST_CASE("two functions go on in turns, and the longer one alone to its end", "[turns]") {
  Turns turns;
  for (const auto& [first, second, expected] :
       {std::tuple(3, 3, "ababab"), std::tuple(4, 2, "ababaa"), std::tuple(1, 4, "abbbb"),
        std::tuple(0, 2, "bb"), std::tuple(2, 0, "aa")}) {
    std::string text;
    turns.run([&, n = first] { write_letters(turns, text, 'a', n); },
              [&, n = second] { write_letters(turns, text, 'b', n); });
    CHECK(text == expected);
    CHECK(!turns.running());
  }
}

TEST_CASE("an error of one function ends the other, whose objects are destroyed, and is thrown", "[turns]") {
  Turns turns;
  std::string text;
  const auto fails = [&] {
    write_letters(turns, text, 'x', 2);
    throw TurnError("broken");
  };
  const auto goes_on = [&] {
    const Guard guard{text};
    write_letters(turns, text, 'o', 9);
  };
  CHECK_THROWS_WITH(turns.run(fails, goes_on), "broken");
  CHECK(text == "xoxo.");
  text.clear();
  CHECK_THROWS_WITH(turns.run(goes_on, fails), "broken");
  CHECK(text == "oxoxo.");
  // Before the second begins.
  text.clear();
  CHECK_THROWS_WITH(turns.run([] { throw TurnError("at once"); }, goes_on), "at once");
  CHECK(text.empty());
  // And it works again.
  text.clear();
  turns.run([&] { write_letters(turns, text, 'a', 1); }, [&] { write_letters(turns, text, 'b', 1); });
  CHECK(text == "ab");
}

TEST_CASE("an error that a function catches itself does not disturb the other", "[turns]") {
  Turns turns;
  std::string text;
  const auto catches = [&] {
    for (int i = 0; i < 3; ++i) {
      try {
        turns.give_way();
        throw TurnError("caught");
      } catch (const TurnError&) {
        text += 'c';
      }
      turns.give_way();
    }
  };
  turns.run(catches, catches);
  CHECK(text == "cccccc");
}
