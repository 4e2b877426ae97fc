#include "io/tokenizer/byte_level_bpe.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "io/text/json.h"
#include "io/text/utf8.h"
#include "io/tokenizer/byte_map.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

Pattern compile(const std::string& expression) {
  try {
    return Pattern(expression);
  } catch (const std::invalid_argument& error) {
    throw JsonError("its regular expression " + expression + " is not one that this program matches: " +
                    error.what() + "; write token files by the tokenizer's own library");
  }
}

std::string nfc_of(const std::optional<NfcNormalizer>& nfc, const std::string& text) {
  std::string changed;
  return nfc && nfc->normalize(text, changed) ? changed : text;
}

// Returns true for bytes that occur in valid UTF-8.
bool is_utf8_byte(std::size_t byte) { return byte < 0xc0 || (byte > 0xc1 && byte < 0xf5); }

class BpeEncoder final : public Encoder {
 public:
  BpeEncoder(const ByteLevelBpe::Parts& parts, SpecialText specials)
      : parts_(parts),
        raw_(specials == SpecialText::token ? parts.added->raw : parts.added->raw_plain),
        normalized_(specials == SpecialText::token ? parts.added->normalized : parts.added->normalized_plain),
        merger_(parts.byte_ids, parts.merges) {
    for (const ByteLevelBpe::Parts::Split& split : parts.splits) matchers_.emplace_back(split.pattern);
    if (parts.byte_level_split) byte_level_.emplace(*parts.byte_level_split);
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const auto token = [&](const AddedTokenFinder::Match& match) { ids.push_back(match.id); };
    raw_.cut(text, token, [&](std::size_t begin, std::size_t end) {
      const std::string_view between = text.substr(begin, end - begin);
      const bool changed = parts_.nfc && parts_.nfc->normalize(between, normal_);
      const std::string_view normal = changed ? std::string_view(normal_) : between;
      normalized_.cut(normal, token, [&](std::size_t from, std::size_t to) {
        split(0, normal.substr(from, to - from), ids);
      });
    });
  }

  // Token ends follow from the tokens' bytes, which are those of the text unless normalization changes it.
  void encode_placed(std::string_view text, std::vector<std::int32_t>& ids,
                     std::vector<std::size_t>& ends) override {
    const std::size_t first = ids.size();
    encode(text, ids);
    std::size_t end = 0;
    for (std::size_t i = first; i < ids.size(); ++i) {
      end += parts_.bytes_of_id[static_cast<std::size_t>(ids[i])]->size();
      ends.push_back(end);
    }
    if (end != text.size())
      throw EncodeError(
          "its tokens have " + std::to_string(end) + " bytes and the text " + std::to_string(text.size()) +
          ": this tokenizer changes the text (white space that it takes or adds, characters that it "
          "joins where two parts meet), so that it is not known which tokens count");
  }

 private:
  void split(std::size_t step, std::string_view text, std::vector<std::int32_t>& ids) {
    if (step == matchers_.size()) return byte_level(text, ids);
    const bool gaps = parts_.splits[step].kind == SplitStep::Kind::isolated;
    cut(matchers_[step], text, [&](std::string_view piece, bool matched) {
      if (matched || gaps) split(step + 1, piece, ids);
    });
  }

  void byte_level(std::string_view text, std::vector<std::int32_t>& ids) {
    if (parts_.prefix_space && !text.starts_with(' ')) {
      prefixed_ = ' ';
      prefixed_ += text;
      text = prefixed_;
    }
    if (!byte_level_) return encode_piece(text, ids);
    cut(*byte_level_, text, [&](std::string_view piece, bool) { encode_piece(piece, ids); });
  }

  // Visits the whole text in order: the matches and the text between them.
  template <class Take>
  static void cut(PatternMatcher& matcher, std::string_view text, const Take& take) {
    std::size_t done = 0;
    while (done < text.size()) {
      const auto match = matcher.next(text, done);
      if (!match) break;
      if (match->begin > done) take(text.substr(done, match->begin - done), false);
      take(text.substr(match->begin, match->end - match->begin), true);
      done = match->end;
    }
    if (done < text.size()) take(text.substr(done), false);
  }

  void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids) {
    if (piece.size() == 1) {
      ids.push_back(parts_.byte_ids[static_cast<unsigned char>(piece.front())]);
      return;
    }
    if (piece.size() > PieceCache::kLongest) return encode_new(piece, ids);
    const std::uint64_t hash = PieceCache::hash(piece);
    if (cache_.find(piece, hash, ids)) return;
    const std::size_t before = ids.size();
    encode_new(piece, ids);
    cache_.add(piece, hash, ids.data() + before, ids.size() - before);
  }

  void encode_new(std::string_view piece, std::vector<std::int32_t>& ids) {
    if (parts_.ignore_merges) {
      const auto token = parts_.pieces.find(std::string(piece));
      if (token != parts_.pieces.end()) return ids.push_back(token->second);
    }
    merger_.merge(piece, ids);
  }

  const ByteLevelBpe::Parts& parts_;
  const AddedTokenFinder& raw_;
  const AddedTokenFinder& normalized_;
  std::vector<PatternMatcher> matchers_;
  std::optional<PatternMatcher> byte_level_;
  BpeMerger merger_;
  PieceCache cache_;
  std::string normal_, prefixed_;
};

}  // namespace

ByteLevelBpe::ByteLevelBpe(TokenizerInfo info, TokenizerJson json) : Tokenizer(std::move(info)) {
  const ByteMap map;
  parts_.bytes_of_id.resize(static_cast<std::size_t>(vocab_of(json)));
  parts_.ignore_merges = json.ignore_merges;
  for (const auto& [token, id] : json.vocab) {
    auto& bytes = parts_.bytes_of_id[static_cast<std::size_t>(id)];
    if (bytes)
      throw JsonError("two tokens have the id " + std::to_string(id) + "; one of them is \"" + token + "\"");
    bytes = map.bytes_of(token);
    if (bytes && json.ignore_merges) parts_.pieces.emplace(*bytes, id);
    if (!bytes) bytes = token;
    ids_.emplace(token, id);
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, map.character(static_cast<unsigned char>(byte)));
    const auto found = ids_.find(token);
    if (found == ids_.end() && is_utf8_byte(byte))
      throw JsonError("its vocabulary lacks the byte " + std::to_string(byte) + " (\"" + token +
                      "\"), so that some texts would lose characters");
    parts_.byte_ids[byte] = found == ids_.end() ? -1 : found->second;
  }
  parts_.merges = merge_table(json, ids_);
  for (SplitStep& step : json.splits) parts_.splits.push_back({compile(step.expression), step.kind});
  if (json.byte_level_split) parts_.byte_level_split = compile(*json.byte_level_split);
  parts_.prefix_space = json.prefix_space;
  if (json.nfc) parts_.nfc.emplace();

  number_added_tokens(json, ids_, parts_.bytes_of_id);
  for (const AddedToken& token : json.added)
    if (token.special) special_.push_back(token.id);
  parts_.added.emplace(json.added,
                       [&](std::string_view text) { return nfc_of(parts_.nfc, std::string(text)); });
}

std::unique_ptr<Encoder> ByteLevelBpe::encoder(SpecialText specials) const {
  return std::make_unique<BpeEncoder>(parts_, specials);
}

std::string ByteLevelBpe::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || std::cmp_greater_equal(id, parts_.bytes_of_id.size()) ||
        !parts_.bytes_of_id[static_cast<std::size_t>(id)])
      throw base::data_error("the tokenizer has no token " + std::to_string(id));
    text += *parts_.bytes_of_id[static_cast<std::size_t>(id)];
  }
  return text;
}

std::vector<std::int32_t> ByteLevelBpe::text_bytes() const {
  std::vector<std::int32_t> counts;
  counts.reserve(parts_.bytes_of_id.size());
  for (const auto& bytes : parts_.bytes_of_id)
    counts.push_back(bytes ? static_cast<std::int32_t>(bytes->size()) : -1);
  for (const std::int32_t id : special_) counts[static_cast<std::size_t>(id)] = 0;
  return counts;
}

std::string ByteLevelBpe::normal_form(std::string_view text) const {
  return nfc_of(parts_.nfc, std::string(text));
}

std::optional<std::int32_t> ByteLevelBpe::id_of(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace trainerd::io
