#include "io/tokenizer/piece_bpe.h"

#include <algorithm>
#include <utility>

#include "io/text/json.h"
#include "io/text/utf8.h"
#include "io/tokenizer/sentencepiece_model.h"
#include "io/tokenizer/space_places.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

using Prefix = SpaceRule::Prefix;

std::size_t bytes_of_character(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// Appends the text to `out` with U+2581 for each space.
void append_pieces(std::string_view text, std::string& out) {
  for (std::size_t at = 0;;) {
    const std::size_t space = text.find(' ', at);
    out.append(text.substr(at, space - at));
    if (space == std::string_view::npos) return;
    out += kPieceSpace;
    at = space + 1;
  }
}

// Returns true if U+2581 occurs after another character.
bool has_space_inside(std::string_view text) {
  while (text.starts_with(kPieceSpace)) text.remove_prefix(kPieceSpace.size());
  return text.find(kPieceSpace) != std::string_view::npos;
}

class PieceBpeEncoder final : public Encoder {
 public:
  PieceBpeEncoder(const PieceBpe::Parts& parts, SpecialText specials)
      : parts_(parts),
        raw_(specials == SpecialText::token ? parts.added->raw : parts.added->raw_plain),
        normalized_(specials == SpecialText::token ? parts.added->normalized : parts.added->normalized_plain),
        merger_(no_bytes_, parts.merges) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override { run(text, ids, nullptr); }

  void encode_placed(std::string_view text, std::vector<std::int32_t>& ids,
                     std::vector<std::size_t>& ends) override {
    run(text, ids, &ends);
  }

 private:
  void run(std::string_view text, std::vector<std::int32_t>& ids, std::vector<std::size_t>* ends) {
    const auto token = [&](const AddedTokenFinder::Match& match) {
      ids.push_back(match.id);
      if (ends != nullptr) ends->push_back(match.end);
    };
    raw_.cut(text, token, [&](std::size_t begin, std::size_t end) {
      const std::string_view between = text.substr(begin, end - begin);
      if (parts_.spaces.normalizer) encode_normalized(between, begin, ids, ends);
      else encode_as_is(between, begin, ids, ends);
    });
  }

  // Replaces spaces first, then searches added tokens.
  void encode_normalized(std::string_view text, std::size_t place, std::vector<std::int32_t>& ids,
                         std::vector<std::size_t>* ends) {
    normal_.clear();
    const std::size_t prefix = parts_.spaces.prefix == Prefix::always ? kPieceSpace.size() : 0;
    if (prefix > 0) normal_ = kPieceSpace;
    append_pieces(text, normal_);
    SpacePlaces places(text, prefix, kPieceSpace);
    normalized_.cut(
        normal_,
        [&](const AddedTokenFinder::Match& match) {
          ids.push_back(match.id);
          if (ends != nullptr) ends->push_back(place + places.at(match.end));
        },
        [&](std::size_t begin, std::size_t end) {
          const std::size_t first = ids.size();
          encode_words(std::string_view(normal_).substr(begin, end - begin), ids);
          if (ends != nullptr) add_ends(ids, first, begin, place, places, *ends);
        });
  }

  // Searches added tokens in the original text.
  void encode_as_is(std::string_view text, std::size_t place, std::vector<std::int32_t>& ids,
                    std::vector<std::size_t>* ends) {
    normalized_.cut(
        text,
        [&](const AddedTokenFinder::Match& match) {
          ids.push_back(match.id);
          if (ends != nullptr) ends->push_back(place + match.end);
        },
        [&](std::size_t begin, std::size_t end) {
          const std::string_view piece = text.substr(begin, end - begin);
          const bool asked = parts_.spaces.prefix == Prefix::missing ||
                             (parts_.spaces.prefix == Prefix::first && place + begin == 0);
          const bool prefix = asked && !piece.starts_with(' ') && !piece.starts_with(kPieceSpace);
          normal_.clear();
          if (prefix) normal_ = kPieceSpace;
          append_pieces(piece, normal_);
          const std::size_t first = ids.size();
          encode_words(normal_, ids);
          if (ends == nullptr) return;
          SpacePlaces places(piece, prefix ? kPieceSpace.size() : 0, kPieceSpace);
          add_ends(ids, first, 0, place + begin, places, *ends);
        });
  }

  // Appends the ends of the ids from `first` on. Their text begins at byte `made` of the converted text.
  void add_ends(const std::vector<std::int32_t>& ids, std::size_t first, std::size_t made, std::size_t place,
                SpacePlaces& places, std::vector<std::size_t>& ends) const {
    for (std::size_t i = first; i < ids.size(); ++i) {
      const auto id = static_cast<std::size_t>(ids[i]);
      made += parts_.is_byte[id] ? 1 : parts_.texts[id]->size();
      ends.push_back(place + places.at(made));
    }
  }

  void encode_words(std::string_view text, std::vector<std::int32_t>& ids) {
    if (parts_.ignore_merges) {
      const auto token = parts_.ids.find(std::string(text));
      if (token != parts_.ids.end()) return ids.push_back(token->second);
    }
    if (!parts_.by_words) return encode_new(text, ids);
    while (!text.empty()) {
      std::size_t word = 0;
      while (text.substr(word).starts_with(kPieceSpace)) word += kPieceSpace.size();
      const std::size_t end = std::min(text.find(kPieceSpace, word), text.size());
      encode_word(text.substr(0, end), ids);
      text.remove_prefix(end);
    }
  }

  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) {
    if (word.size() > PieceCache::kLongest) return encode_new(word, ids);
    const std::uint64_t hash = PieceCache::hash(word);
    if (cache_.find(word, hash, ids)) return;
    const std::size_t before = ids.size();
    encode_new(word, ids);
    cache_.add(word, hash, ids.data() + before, ids.size() - before);
  }

  void encode_new(std::string_view text, std::vector<std::int32_t>& ids) {
    symbols_.clear();
    while (!text.empty()) {
      const std::string_view character = text.substr(0, bytes_of_character(text[0]));
      const ByteTrie::Match known = parts_.characters.longest(character);
      if (known.bytes > 0) {
        symbols_.push_back(known.value);
      } else {
        for (const char byte : character)
          symbols_.push_back(parts_.byte_ids[static_cast<unsigned char>(byte)]);
      }
      text.remove_prefix(character.size());
    }
    merger_.merge_symbols(symbols_, ids);
  }

  static constexpr std::array<std::int32_t, 256> no_bytes_{};
  const PieceBpe::Parts& parts_;
  const AddedTokenFinder& raw_;
  const AddedTokenFinder& normalized_;
  BpeMerger merger_;
  PieceCache cache_;
  std::string normal_;
  std::vector<std::int32_t> symbols_;
};

}  // namespace

PieceBpe::PieceBpe(TokenizerInfo info, TokenizerJson json) : Tokenizer(std::move(info)) {
  const auto vocab = static_cast<std::size_t>(vocab_of(json));
  parts_.spaces = *json.spaces;
  parts_.ignore_merges = json.ignore_merges;
  parts_.texts.resize(vocab);
  parts_.is_byte.resize(vocab);
  special_.resize(vocab);
  added_.resize(vocab);
  std::vector<std::pair<std::string, std::int32_t>> characters;
  for (const auto& [token, id] : json.vocab) {
    auto& text = parts_.texts[static_cast<std::size_t>(id)];
    if (text)
      throw JsonError("two tokens have the id " + std::to_string(id) + "; one of them is \"" + token + "\"");
    text = token;
    parts_.ids.emplace(token, id);
    if (!token.empty() && bytes_of_character(token[0]) == token.size()) characters.emplace_back(token, id);
  }
  parts_.characters = ByteTrie(std::move(characters));
  for (std::size_t byte = 0; byte < 256; ++byte) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    const std::string token = std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">";
    const auto found = parts_.ids.find(token);
    if (found == parts_.ids.end())
      throw JsonError("it falls back to bytes (byte_fallback), and its vocabulary lacks " + token +
                      ", so that some texts would lose characters");
    parts_.byte_ids[byte] = found->second;
    parts_.is_byte[static_cast<std::size_t>(found->second)] = true;
  }
  parts_.merges = merge_table(json, parts_.ids);
  parts_.by_words = std::none_of(json.merges.begin(), json.merges.end(), [](const auto& merge) {
    return has_space_inside(merge.first + merge.second);
  });
  number_added_tokens(json, parts_.ids, parts_.texts);
  for (const AddedToken& token : json.added) {
    added_[static_cast<std::size_t>(token.id)] = true;
    if (token.special) special_[static_cast<std::size_t>(token.id)] = true;
  }
  parts_.added.emplace(json.added, [&](std::string_view text) {
    std::string normal;
    if (!parts_.spaces.normalizer) return std::string(text);
    if (parts_.spaces.prefix == Prefix::always) normal = kPieceSpace;
    append_pieces(text, normal);
    return normal;
  });
}

std::unique_ptr<Encoder> PieceBpe::encoder(SpecialText specials) const {
  return std::make_unique<PieceBpeEncoder>(parts_, specials);
}

std::string PieceBpe::bytes_of(std::int32_t id) const {
  const auto at = static_cast<std::size_t>(id);
  const std::string& text = *parts_.texts[at];
  if (parts_.is_byte[at]) return std::string(1, static_cast<char>(*byte_of_piece(text)));
  return added_[at] ? text : with_spaces(text);
}

std::string PieceBpe::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || std::cmp_greater_equal(id, parts_.texts.size()) ||
        !parts_.texts[static_cast<std::size_t>(id)])
      throw base::data_error("the tokenizer has no token " + std::to_string(id));
    text += bytes_of(id);
  }
  if (parts_.spaces.strips_first_space && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::vector<std::int32_t> PieceBpe::text_bytes() const {
  std::vector<std::int32_t> counts;
  counts.reserve(parts_.texts.size());
  for (std::size_t id = 0; id < parts_.texts.size(); ++id) {
    if (!parts_.texts[id]) counts.push_back(-1);
    else if (special_[id]) counts.push_back(0);
    else counts.push_back(static_cast<std::int32_t>(bytes_of(static_cast<std::int32_t>(id)).size()));
  }
  return counts;
}

std::optional<std::int32_t> PieceBpe::id_of(std::string_view token) const {
  const auto found = parts_.ids.find(std::string(token));
  return found == parts_.ids.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace trainerd::io
