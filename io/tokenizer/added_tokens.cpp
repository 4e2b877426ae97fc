#include "io/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "io/text/utf8.h"

namespace trainerd::io {
namespace {

std::size_t before_white_space(std::string_view text, std::size_t from, std::size_t end) {
  while (end > from) {
    std::size_t begin = end - 1;
    while (begin > from && (static_cast<unsigned char>(text[begin]) & 0xc0u) == 0x80) --begin;
    std::size_t at = begin;
    if (!is_white_space(next_code_point(text, at))) break;
    end = begin;
  }
  return end;
}

std::size_t behind_white_space(std::string_view text, std::size_t at) {
  for (std::size_t next = at; at < text.size(); at = next)
    if (!is_white_space(next_code_point(text, next))) break;
  return at;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    std::size_t node = 0;
    begins_[static_cast<unsigned char>(tokens_[t].content.front())] = true;
    for (const char c : tokens_[t].content) {
      const auto byte = static_cast<unsigned char>(c);
      const auto& next = nodes_[node].next;
      const auto place = std::lower_bound(next.begin(), next.end(), std::pair(byte, std::int32_t{0}));
      if (place != next.end() && place->first == byte) {
        node = static_cast<std::size_t>(place->second);
        continue;
      }
      const auto made = static_cast<std::int32_t>(nodes_.size());
      nodes_[node].next.insert(nodes_[node].next.begin() + (place - next.begin()), {byte, made});
      nodes_.emplace_back();
      node = static_cast<std::size_t>(made);
    }
    nodes_[node].token = static_cast<std::int32_t>(t);
  }
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, std::size_t at) const {
  std::int32_t found = -1;
  for (std::size_t node = 0; at < text.size(); ++at) {
    const auto& next = nodes_[node].next;
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto place = std::lower_bound(next.begin(), next.end(), std::pair(byte, std::int32_t{0}));
    if (place == next.end() || place->first != byte) break;
    node = static_cast<std::size_t>(place->second);
    if (nodes_[node].token >= 0) found = nodes_[node].token;
  }
  return found < 0 ? nullptr : &tokens_[static_cast<std::size_t>(found)];
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::next(std::string_view text, std::size_t from,
                                                              std::size_t taken) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!begins_[static_cast<unsigned char>(text[at])]) continue;
    const AddedToken* token = longest_at(text, at);
    if (token == nullptr) continue;
    const std::size_t behind = at + token->content.size();
    Match match{.begin = at, .end = behind, .behind = behind, .id = token->id};
    if (token->lstrip) match.begin = at > taken ? before_white_space(text, taken, at) : taken;
    if (token->rstrip) match.end = behind_white_space(text, match.end);
    return match;
  }
  return std::nullopt;
}

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens,
                         const std::function<std::string(std::string_view)>& normal) {
  std::vector<AddedToken> as_is, of_normal;
  for (const AddedToken& token : tokens) {
    (token.normalized ? of_normal : as_is).push_back(token);
    if (token.normalized) of_normal.back().content = normal(token.content);
  }
  const auto without_special = [](std::vector<AddedToken> all) {
    std::erase_if(all, [](const AddedToken& token) { return token.special; });
    return all;
  };
  raw_plain = AddedTokenFinder(without_special(as_is));
  normalized_plain = AddedTokenFinder(without_special(of_normal));
  raw = AddedTokenFinder(std::move(as_is));
  normalized = AddedTokenFinder(std::move(of_normal));
}

}  // namespace trainerd::io
