#include "io/tokenizer/sentencepiece_normalizer.h"

#include "io/text/utf8.h"
#include "io/tokenizer/encode_error.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

// Without the check of std::string_view::substr, which is a call for each character.
std::string_view first_bytes(std::string_view text, std::size_t bytes) { return {text.data(), bytes}; }

// The first code point of 2 bytes in UTF-8, and the last of 3.
constexpr std::uint32_t kTwoBytes = 0x80, kThreeBytes = 0xffff;

bool inside_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

}  // namespace

std::string with_spaces(std::string_view piece) {
  std::string text;
  for (std::size_t at = 0;;) {
    const std::size_t space = piece.find(kPieceSpace, at);
    text += piece.substr(at, space - at);
    if (space == std::string_view::npos) return text;
    text += ' ';
    at = space + kPieceSpace.size();
  }
}

// Layout: size of the array in bytes, the array, the replacements (normalizer.cc, DecodePrecompiledCharsMap).
Charsmap::Charsmap(std::string_view bytes) {
  const auto word = [&](std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    return value;
  };
  const std::size_t size = bytes.size() > 4 ? word(0) : 0;
  if (size == 0 || size >= bytes.size() - 4 || size % 4 != 0)
    throw SentencePieceError(
        "its precompiled_charsmap is damaged: the sizes of its parts are not those of it");
  units_.resize(size / 4);
  for (std::size_t i = 0; i < units_.size(); ++i) units_[i] = word(4 + i * 4);
  replacements_ = bytes.substr(4 + size);
  if (invalid_utf8(replacements_) != kNone)
    throw SentencePieceError("its precompiled_charsmap is damaged: its replacements are not UTF-8");
  for (unsigned first = 0; first < 128; ++first) {
    const std::size_t node = child(0, static_cast<unsigned char>(first));
    if (node == kNone) continue;
    const auto alone = static_cast<char>(first);
    ascii_[first] = longest(std::string_view(&alone, 1)).bytes > 0;
    for (unsigned second = 0; second < 128 && !ascii_[first]; ++second)
      ascii_[first] = child(node, static_cast<unsigned char>(second)) != kNone;
  }
}

Charsmap::Rule Charsmap::longest(std::string_view text) const {
  Rule rule;
  if (units_.empty()) return rule;
  std::size_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node == kNone) break;
    if ((units_[node] >> 8 & 1) == 0) continue;
    const std::size_t leaf = children(node);
    const std::size_t place = leaf < units_.size() ? units_[leaf] & 0x7fffffffu : kNone;
    if (place >= replacements_.size()) throw EncodeError("its precompiled_charsmap is damaged");
    rule = {i + 1, replacements_.c_str() + place};
  }
  if (rule.bytes > 0 && ((rule.bytes < text.size() && inside_character(text[rule.bytes])) ||
                         (!rule.to.empty() && inside_character(rule.to[0]))))
    throw EncodeError("its precompiled_charsmap cuts a character in two");
  return rule;
}

bool Charsmap::concerns(std::string_view character) const {
  if (units_.empty()) return false;
  std::size_t node = 0;
  for (const char byte : character) {
    node = child(node, static_cast<unsigned char>(byte));
    if (node == kNone) return false;
    if ((units_[node] >> 8 & 1) != 0) return true;
  }
  return true;
}

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceModel& model)
    : dummy_prefix_(model.dummy_prefix), remove_extra_whitespaces_(model.remove_extra_whitespaces) {
  if (!model.charsmap.empty()) charsmap_ = Charsmap(model.charsmap);
  for (unsigned byte = 0; byte < 128; ++byte)
    plain_[byte] = byte != ' ' && !charsmap_.concerns_ascii(static_cast<unsigned char>(byte));
  std::vector<std::pair<std::string, std::int32_t>> symbols;
  std::array<bool, 256> begins_symbol{};
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.type != SentencePieceModel::Type::user_defined) continue;
    plain_[static_cast<unsigned char>(piece.text[0])] = false;
    begins_symbol[static_cast<unsigned char>(piece.text[0])] = true;
    symbols.emplace_back(piece.text, 0);
  }
  user_defined_ = ByteTrie(std::move(symbols));
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::string pair{' ', static_cast<char>(byte)};
    space_[byte] = byte != ' ' && !begins_symbol[' '] && !charsmap_.concerns(pair);
  }
  kept_.resize(kThreeBytes + 1);
  for (std::uint32_t code_point = kTwoBytes; code_point <= kThreeBytes; ++code_point) {
    std::string character;
    append_utf8(character, code_point);
    kept_[code_point] = !begins_symbol[static_cast<unsigned char>(character[0])] &&
                        character != kPieceSpace && !charsmap_.concerns(character);
  }
}

// Converts the beginning of the text: a user-defined symbol is kept, else the longest rule applies, else one
// character is kept.
SentencePieceNormalizer::Part SentencePieceNormalizer::first_part(std::string_view text) const {
  if (!user_defined_.empty())
    if (const auto symbol = user_defined_.longest(text); symbol.bytes > 0)
      return {first_bytes(text, symbol.bytes), symbol.bytes};
  if (const Charsmap::Rule rule = charsmap_.longest(text); rule.bytes > 0) return {rule.to, rule.bytes};
  std::size_t size = 0;
  next_code_point(text, size);
  return {first_bytes(text, size), size};
}

void SentencePieceNormalizer::append(std::string_view part, std::string& out) const {
  if (part.size() <= kPieceSpace.size()) {  // most parts are one character
    if (part == kPieceSpace) out += ' ';
    else out.append(part);
    return;
  }
  for (std::size_t at = 0;;) {
    const std::size_t space = part.find(kPieceSpace, at);
    out.append(part.substr(at, space - at));
    if (space == kNone) return;
    out += ' ';
    at = space + kPieceSpace.size();
  }
}

// The length of a beginning of the text that stays as it is. A space in it follows and precedes another
// character.
std::size_t SentencePieceNormalizer::kept_bytes(std::string_view text) const {
  std::size_t at = 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  while (at + 3 < text.size()) {
    if (byte(0) == ' ') {
      if (at == 0 || !space_[byte(1)]) break;
      ++at;
    } else if (byte(0) < 0x80) {
      if (!plain_[byte(0)] || byte(1) >= 0x80) break;
      ++at;
    } else if (byte(0) < 0xe0) {
      if (!kept_[(byte(0) & 0x1fu) << 6 | (byte(1) & 0x3fu)]) break;
      at += 2;
    } else if (byte(0) < 0xf0) {
      if (!kept_[(byte(0) & 0xfu) << 12 | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu)]) break;
      at += 3;
    } else {
      break;
    }
  }
  return at;
}

// As Normalizer::Normalize in normalizer.cc.
void SentencePieceNormalizer::normalize(std::string_view text, std::string& out, DummyPrefix prefix) const {
  out.clear();
  if (remove_extra_whitespaces_) {
    while (!text.empty()) {
      const Part part = first_part(text);
      if (part.to != " ") break;
      text.remove_prefix(part.bytes);
    }
  }
  if (text.empty()) return;
  out.reserve(text.size() + text.size() / 8 + 16);
  if (dummy_prefix_ && prefix == DummyPrefix::as_model) out += ' ';
  bool after_space = remove_extra_whitespaces_;  // if set, further spaces are dropped
  while (!text.empty()) {
    if (const std::size_t kept = kept_bytes(text); kept > 0) {
      out.append(first_bytes(text, kept));
      text.remove_prefix(kept);
      after_space = remove_extra_whitespaces_ && out.ends_with(' ');
    }
    Part part = first_part(text);
    text.remove_prefix(part.bytes);
    while (after_space && part.to.starts_with(' ')) part.to.remove_prefix(1);
    if (part.to.empty()) continue;
    append(part.to, out);
    after_space = remove_extra_whitespaces_ && part.to.ends_with(' ');
  }
  if (remove_extra_whitespaces_)
    while (out.ends_with(' ')) out.pop_back();
}

}  // namespace trainerd::io
