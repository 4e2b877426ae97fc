#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trainerd::io {

enum class Tone : std::uint8_t { plain, strong, dim, good, warn, bad, run };

/// Columns that UTF-8 text takes, one for each character: what is drawn here has no wide ones.
std::size_t columns_of(std::string_view text);
/// Its first `columns` columns, with "…" for what is cut.
std::string cut_to(std::string_view text, std::size_t columns);

/// One line of a terminal. What goes beyond its width is cut.
class Line {
 public:
  enum class Colors : std::uint8_t { none, ansi };
  Line(std::size_t width, Colors colors) : width_(width), colors_(colors) {}

  Line& add(std::string_view text, Tone tone = Tone::plain);
  /// In the colour of a part of the time ledger.
  Line& add_part(std::string_view text, std::size_t part);
  /// Spaces up to a column.
  Line& pad_to(std::size_t column);
  /// At the right end; nothing where it does not fit.
  Line& add_right(std::string_view text, Tone tone = Tone::plain);
  /// Another line, as it is. It fits.
  Line& append_made(const Line& other) {
    text_ += other.text_;
    used_ += other.used_;
    return *this;
  }
  std::size_t used() const { return used_; }
  std::size_t room() const { return width_ - used_; }
  /// With control sequences, where it has colours.
  const std::string& text() const { return text_; }

 private:
  Line& put(std::string_view text, const char* sequence);

  std::size_t width_, used_ = 0;
  Colors colors_;
  std::string text_;
};

}  // namespace trainerd::io
