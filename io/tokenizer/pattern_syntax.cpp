#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>

#include "io/tokenizer/pattern.h"

namespace trainerd::io {
namespace {

constexpr std::array<std::string_view, 37> kCategories{
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
    "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
    "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};

bool is_letter_or_digit(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Translates an expression to PCRE2's syntax, from left to right.
class Translation {
 public:
  explicit Translation(std::string_view expression) : rest_(expression) {}

  std::string run() {
    while (!rest_.empty()) {
      if (take("[")) set();
      else if (rest_.front() == '\\') escape();
      else if (rest_.front() == '(') group();
      else if (std::string_view("?*+{").find(rest_.front()) != std::string_view::npos) repeat();
      else if (std::string_view("^$.").find(rest_.front()) != std::string_view::npos)
        refuse(rest_.substr(0, 1));
      else copy(1);
    }
    return out_;
  }

 private:
  [[noreturn]] static void refuse(std::string_view part) {
    throw std::invalid_argument("it has `" + std::string(part) + "`");
  }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    copy(text.size());
    return true;
  }
  void copy(std::size_t bytes) {
    out_ += rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
  }

  void group() {
    for (const std::string_view begin : {"(?:", "(?i:", "(?=", "(?!"})
      if (take(begin)) return;
    if (rest_.starts_with("(?") || rest_.starts_with("(*")) refuse(rest_.substr(0, 3));
    copy(1);
  }

  // PCRE2's \s also matches U+180E, which is not white space since Unicode 6.3.
  void escape() {
    const char c = rest_.size() > 1 ? rest_[1] : '\0';
    const auto put = [&](std::string_view text) {
      out_ += text;
      rest_.remove_prefix(2);
    };
    if (c == 's') return put("\\p{White_Space}");
    if (c == 'S') return put("\\P{White_Space}");
    if (c == 'd') return put("\\p{Nd}");
    if (c == 'D') return put("\\P{Nd}");
    if (c == 'r' || c == 'n' || c == 't' || c == 'f') return copy(2);
    if (c == 'p' || c == 'P') return property();
    if (c == '\0' || is_letter_or_digit(c) || static_cast<unsigned char>(c) >= 0x80)
      refuse(rest_.substr(0, 2));
    copy(2);
  }

  void property() {
    const std::size_t end = rest_.find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || end == std::string_view::npos) refuse(rest_.substr(0, 2));
    const std::string_view name = rest_.substr(3, end - 3);
    if (std::find(kCategories.begin(), kCategories.end(), name) == kCategories.end())
      refuse(rest_.substr(0, end + 1));
    copy(end + 1);
  }

  // Called after "[". Oniguruma has nested sets and intersections, which PCRE2 reads as plain characters.
  void set() {
    take("^");
    if (rest_.starts_with("]")) refuse("[]");
    while (!rest_.starts_with("]")) {
      if (rest_.empty()) throw std::invalid_argument("a `[` has no `]`");
      if (rest_.front() == '[' || rest_.starts_with("&&")) refuse(rest_.substr(0, 2));
      if (rest_.front() == '\\') escape();
      else copy(1);
    }
    copy(1);
  }

  void repeat() {
    if (rest_.front() == '{') {
      std::size_t at = 1;
      const auto digits = [&] {
        const std::size_t first = at;
        while (at < rest_.size() && std::isdigit(static_cast<unsigned char>(rest_[at])) != 0) ++at;
        return at - first;
      };
      const bool lower = digits() > 0;
      if (at < rest_.size() && rest_[at] == ',') {
        ++at;
        digits();
      }
      if (!lower || at >= rest_.size() || rest_[at] != '}') refuse(rest_.substr(0, at + 1));
      copy(at + 1);
      // Both have another meaning in Oniguruma.
      if (rest_.starts_with("?") || rest_.starts_with("+")) refuse("}" + std::string(rest_.substr(0, 1)));
      return;
    }
    copy(1);
    if (!take("?")) take("+");
  }

  std::string_view rest_;
  std::string out_;
};

}  // namespace

std::string pcre2_expression(const std::string& expression) { return Translation(expression).run(); }

std::string literal_expression(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && !is_letter_or_digit(c) && byte > 0x20 && byte != 0x7f) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace trainerd::io
