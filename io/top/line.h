#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trainerd::io {

enum class Tone : std::uint8_t { plain, strong, dim, good, warn, bad, run };

/// Returns the columns of UTF-8 text, one per character; no wide characters are used here.
std::size_t columns_of(std::string_view text);
/// Returns the first `columns` columns, with "…" in place of the rest.
std::string cut_to(std::string_view text, std::size_t columns);

/// One line of a terminal. Text beyond its width is cut.
class Line {
 public:
  enum class Colors : std::uint8_t { none, ansi };
  Line(std::size_t width, Colors colors) : width_(width), colors_(colors) {}

  Line& add(std::string_view text, Tone tone = Tone::plain);
  /// Adds text in the colour of a ledger part.
  Line& add_part(std::string_view text, std::size_t part);
  /// Adds spaces up to a column.
  Line& pad_to(std::size_t column);
  /// Adds text at the right end; nothing if it does not fit.
  Line& add_right(std::string_view text, Tone tone = Tone::plain);
  /// Appends a finished line, which must fit.
  Line& append_made(const Line& other) {
    text_ += other.text_;
    used_ += other.used_;
    return *this;
  }
  std::size_t used() const { return used_; }
  std::size_t room() const { return width_ - used_; }
  /// Includes control sequences if the line has colours.
  const std::string& text() const { return text_; }

 private:
  Line& put(std::string_view text, const char* sequence);

  std::size_t width_, used_ = 0;
  Colors colors_;
  std::string text_;
};

}  // namespace trainerd::io
