#include <algorithm>

#include "io/text/json.h"
#include "io/tokenizer/tokenizer_json.h"

namespace trainerd::io {
namespace {

// Larger ids are refused: the tables have an entry per id.
constexpr std::int64_t kMaxVocab = 1 << 22;

}  // namespace

std::int64_t vocab_of(const TokenizerJson& json) {
  std::int64_t vocab = 0;
  for (const auto& [token, id] : json.vocab) vocab = std::max(vocab, std::int64_t{id} + 1);
  for (const AddedToken& token : json.added) vocab = std::max(vocab, std::int64_t{token.id} + 1);
  if (vocab > kMaxVocab)
    throw JsonError("its largest id is " + std::to_string(vocab - 1) + ", beyond " +
                    std::to_string(kMaxVocab - 1));
  return vocab;
}

MergeTable merge_table(const TokenizerJson& json, const std::unordered_map<std::string, std::int32_t>& ids) {
  MergeTable merges(json.merges.size());
  for (std::size_t rank = 0; rank < json.merges.size(); ++rank) {
    const auto& [left, right] = json.merges[rank];
    const auto a = ids.find(left), b = ids.find(right), merged = ids.find(left + right);
    if (a == ids.end() || b == ids.end() || merged == ids.end())
      throw JsonError("merge " + std::to_string(rank) + " (\"" + left + "\" and \"" + right +
                      "\") names a token that is not in its vocabulary");
    merges.set(a->second, b->second, {static_cast<std::int32_t>(rank), merged->second});
  }
  return merges;
}

void number_added_tokens(const TokenizerJson& json, std::unordered_map<std::string, std::int32_t>& ids,
                         std::vector<std::optional<std::string>>& texts) {
  auto next = static_cast<std::int32_t>(json.vocab.size());
  for (const AddedToken& token : json.added) {
    auto& text = texts[static_cast<std::size_t>(token.id)];
    const auto [known, is_new] = ids.emplace(token.content, token.id);
    if (known->second != token.id || (is_new && (text || token.id != next++)))
      throw JsonError("its added token \"" + token.content + "\" has the id " + std::to_string(token.id) +
                      ", which is not the one that follows, or has another id already");
    text = token.content;
  }
}

}  // namespace trainerd::io
