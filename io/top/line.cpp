#include "io/top/line.h"

#include <algorithm>
#include <array>

namespace trainerd::io {
namespace {

// SGR code of each tone, and of each ledger part in the ledger's order.
constexpr std::array<const char*, 7> kTones{"", "1", "2", "32", "33", "31", "36"};
constexpr std::array<const char*, 13> kParts{"34", "33", "94", "93", "35", "36", "95",
                                             "31", "32", "96", "91", "37", "90"};

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

}  // namespace

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string cut_to(std::string_view text, std::size_t columns) {
  if (columns_of(text) <= columns) return std::string(text);
  if (columns == 0) return "";
  std::size_t at = 0;
  for (std::size_t column = 0; at < text.size(); ++at)
    if (begins_character(text[at]) && ++column == columns) break;
  return std::string(text.substr(0, at)) + "…";
}

Line& Line::put(std::string_view text, const char* sequence) {
  std::string shown = cut_to(text, room());
  // A log may contain anything: control characters must not reach the terminal.
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; },
      ' ');
  used_ += columns_of(shown);
  if (colors_ == Colors::none || *sequence == 0 || shown.empty()) text_ += shown;
  else text_ += std::string("\033[") + sequence + "m" + shown + "\033[0m";
  return *this;
}

Line& Line::add(std::string_view text, Tone tone) {
  return put(text, kTones.at(static_cast<std::size_t>(tone)));
}

Line& Line::add_part(std::string_view text, std::size_t part) {
  return put(text, kParts[part % kParts.size()]);
}

Line& Line::pad_to(std::size_t column) {
  return column > used_ ? put(std::string(std::min(column, width_) - used_, ' '), "") : *this;
}

Line& Line::add_right(std::string_view text, Tone tone) {
  const std::size_t columns = columns_of(text);
  if (columns + 1 > room() && used_ > 0) return *this;
  return pad_to(width_ - std::min(columns, width_)).add(text, tone);
}

}  // namespace trainerd::io
