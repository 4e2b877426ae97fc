#include "io/s3/xml.h"

#include <array>
#include <charconv>
#include <utility>

namespace trainerd::io {
namespace {

bool is_name_end(char c) { return c == '>' || c == '/' || c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Decodes entities: "&amp;" -> "&". Numeric ones only below 128, since keys are listed URL-encoded.
std::string decoded(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, char>, 5> kNames{
      {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::size_t end = text[at] == '&' ? text.find(';', at) : std::string_view::npos;
    if (end == std::string_view::npos) {
      out += text[at];
      continue;
    }
    const std::string_view name = text.substr(at + 1, end - at - 1);
    char c = 0;
    for (const auto& [known, value] : kNames)
      if (name == known) c = value;
    if (name.starts_with('#')) {
      const bool is_hex = name.size() > 1 && (name[1] == 'x' || name[1] == 'X');
      unsigned code = 0;
      std::from_chars(name.data() + (is_hex ? 2 : 1), name.data() + name.size(), code, is_hex ? 16 : 10);
      if (code > 0 && code < 128) c = static_cast<char>(code);
    }
    if (c == 0) {
      out += text[at];
      continue;
    }
    out += c;
    at = end;
  }
  return out;
}

}  // namespace

std::vector<std::string_view> xml_elements(std::string_view text, std::string_view name) {
  std::vector<std::string_view> found;
  const std::string close = "</" + std::string(name) + ">";
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string_view::npos;) {
    const std::string_view rest = text.substr(at + 1);
    if (!rest.starts_with(name) || rest.size() == name.size() || !is_name_end(rest[name.size()])) {
      ++at;
      continue;
    }
    const std::size_t end = text.find('>', at);
    if (end == std::string_view::npos) break;
    if (text[end - 1] == '/') {
      found.push_back(text.substr(end, 0));
      at = end;
      continue;
    }
    const std::size_t stop = text.find(close, end);
    if (stop == std::string_view::npos) break;
    found.push_back(text.substr(end + 1, stop - end - 1));
    at = stop + close.size();
  }
  return found;
}

std::optional<std::string> xml_text(std::string_view text, std::string_view name) {
  const std::vector<std::string_view> found = xml_elements(text, name);
  if (found.empty()) return std::nullopt;
  return decoded(found.front());
}

std::string url_decoded(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    unsigned byte = 0;
    if (text[at] == '%' && at + 2 < text.size() &&
        std::from_chars(text.data() + at + 1, text.data() + at + 3, byte, 16).ptr == text.data() + at + 3) {
      out += static_cast<char>(byte);
      at += 2;
    } else {
      out += text[at] == '+' ? ' ' : text[at];
    }
  }
  return out;
}

}  // namespace trainerd::io
