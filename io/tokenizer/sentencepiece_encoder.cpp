#include "io/tokenizer/sentencepiece_encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <unordered_map>

#include "io/text/utf8.h"
#include "io/tokenizer/space_places.h"

namespace trainerd::io {
namespace {

using Type = SentencePieceModel::Type;
using Entries = std::vector<std::pair<std::string, std::int32_t>>;

bool matches_text(Type type) { return type == Type::normal || type == Type::user_defined; }

// Returns a piece's text with ' ' for U+2581; none if it contains a ' ', which no normalized text does.
std::optional<std::string> text_inside(std::string_view piece) {
  if (piece.find(' ') != std::string_view::npos) return std::nullopt;
  return with_spaces(piece);
}

bool has_inner_space(std::string_view text) {
  const std::size_t word = text.find_first_not_of(' ');
  return word != std::string_view::npos && text.find(' ', word) != std::string_view::npos;
}

std::size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// Computes scores as EncodeOptimized in unigram_model.cc does.
void make_unigram(const SentencePieceModel& model, SentencePieceTables& tables) {
  float lowest = std::numeric_limits<float>::max(), highest = 0.1f;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.type != Type::normal) continue;
    lowest = std::min(lowest, piece.score);
    highest = std::max(highest, piece.score);
  }
  Entries entries;
  tables.scores.resize(model.pieces.size());
  tables.scores[static_cast<std::size_t>(model.unknown_id)] = lowest - 10.0f;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    float& score = tables.scores[id];
    if (piece.type == Type::normal) score = piece.score;
    if (piece.type == Type::user_defined)
      // Large enough that the symbol is always chosen.
      score = static_cast<float>(double{static_cast<float>(piece.text.size()) * highest} - 0.1);
    tables.largest_score = std::max(tables.largest_score, std::abs(score));
    if (!matches_text(piece.type)) continue;
    if (auto text = text_inside(piece.text)) {
      tables.longest_piece = std::max(tables.longest_piece, text->size());
      for (std::size_t at = 0; at < text->size();) {
        const std::size_t character = next_code_point(*text, at);
        if (character >= tables.in_pieces.size()) tables.in_pieces.resize(character + 1);
        tables.in_pieces[character] = true;
      }
      entries.emplace_back(*std::move(text), static_cast<std::int32_t>(id));
    }
  }
  tables.pieces = ByteTrie(std::move(entries));
  // With larger scores the rounding of sums is too coarse to encode words one by one.
  tables.by_words &= tables.largest_score < 1000;
}

// A pair of symbols merges if its joined text is a piece. The highest score merges first.
void make_bpe(const SentencePieceModel& model, SentencePieceTables& tables) {
  std::unordered_map<std::string, std::int32_t> ids;
  std::map<float, std::int32_t, std::greater<>> ranks;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    if (!matches_text(model.pieces[id].type)) continue;
    if (auto text = text_inside(model.pieces[id].text)) {
      ids.emplace(*std::move(text), static_cast<std::int32_t>(id));
      ranks.emplace(model.pieces[id].score, 0);
    }
  }
  std::int32_t next = 0;
  for (auto& [score, rank] : ranks) rank = next++;
  const auto symbol = [&](const std::string& text) -> std::int32_t {
    if (const auto found = ids.find(text); found != ids.end()) return found->second;
    if (character_bytes(text[0]) != text.size()) return -1;
    std::size_t at = 0;
    return SentencePieceTables::kCharacter + static_cast<std::int32_t>(next_code_point(text, at));
  };
  struct Pair {
    std::int32_t left, right;
    MergeTable::Merge merge;
  };
  std::vector<Pair> pairs;
  Entries characters;
  for (const auto& [text, id] : ids) {
    if (character_bytes(text[0]) == text.size()) characters.emplace_back(text, id);
    const MergeTable::Merge merge{ranks.at(model.pieces[static_cast<std::size_t>(id)].score), id};
    for (std::size_t cut = character_bytes(text[0]); cut < text.size(); cut += character_bytes(text[cut])) {
      const std::int32_t left = symbol(text.substr(0, cut)), right = symbol(text.substr(cut));
      if (left >= 0 && right >= 0) pairs.push_back({left, right, merge});
    }
  }
  tables.characters = ByteTrie(std::move(characters));
  tables.merges.emplace(pairs.size());
  for (const Pair& pair : pairs) tables.merges->set(pair.left, pair.right, pair.merge);
}

// When a sum of scores falls below this, the reference resets it to zero and raises the sums of longer texts
// alike.
constexpr float kLowestSum = -100000;
// Upper bounds of the rounding error of a float between kLowestSum and zero, and of one above kNearSum, as
// sums are at the beginning of a text: fewer words depend on it.
constexpr double kRounding = 1.0 / 256;
constexpr float kNearSum = -16384;
constexpr double kNearRounding = 1.0 / 2048;

class PieceEncoder final : public Encoder {
 public:
  explicit PieceEncoder(const SentencePieceTables& tables)
      : tables_(tables), merger_(no_bytes_, tables.merges ? *tables.merges : no_merges_) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    encode_part(text, DummyPrefix::as_model, ids);
  }

  void encode_placed(std::string_view text, std::vector<std::int32_t>& ids,
                     std::vector<std::size_t>& ends) override {
    encode_placed_part(text, DummyPrefix::as_model, ids, ends);
  }

  void encode_part(std::string_view text, DummyPrefix prefix, std::vector<std::int32_t>& ids) {
    tables_.normalizer.normalize(text, normalized_, prefix);
    const std::string_view rest = normalized_;
    begin_ = ids.size();
    sum_ = 0;
    for (std::size_t at = 0; at < rest.size();) {
      std::size_t end = rest.size();
      if (tables_.by_words) end = std::min(rest.find(' ', rest.find_first_not_of(' ', at)), end);
      encode_word({rest.data() + at, end - at}, ids);
      at = end;
    }
  }

  void encode_placed_part(std::string_view text, DummyPrefix prefix, std::vector<std::int32_t>& ids,
                          std::vector<std::size_t>& ends) {
    if (!tables_.keeps_text)
      throw EncodeError(
          "this SentencePiece model changes the text (rules of normalization, white space that it takes off) "
          "or has no tokens of bytes, so that it is not known which tokens count: take a model of Llama 2, "
          "Mistral or Gemma, a tokenizer.json, or bytes");
    const std::size_t first = ids.size();
    encode_part(text, prefix, ids);
    const bool prefixed = tables_.normalizer.dummy_prefix() && prefix == DummyPrefix::as_model;
    SpacePlaces places(text, prefixed ? 1 : 0, " ");
    std::size_t made = 0;
    for (std::size_t i = first; i < ids.size(); ++i)
      ends.push_back(
          places.at(made += static_cast<std::size_t>(tables_.piece_bytes[static_cast<std::size_t>(ids[i])])));
  }

 private:
  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) {
    const std::size_t before = ids.size();
    if (tables_.algorithm == SentencePieceModel::Algorithm::bpe) {
      encode_cached(word, cache_, ids, [&] { encode_bpe(word, word_ids_); });
    } else {
      // Near kLowestSum the reference may reset the sum inside this word.
      const float room = static_cast<float>(PieceCache::kLongest + 1) * tables_.largest_score;
      const bool near = sum_ - room >= kNearSum;
      const double rounding = near ? kNearRounding : kRounding;
      if (sum_ - room < kLowestSum || !encode_cached(word, near ? near_cache_ : cache_, ids,
                                                     [&] { encode_clear_word(word, rounding, word_ids_); })) {
        encode_unclear(word, ids);
      } else {
        for (std::size_t i = before; i < ids.size(); ++i) sum_ += score(ids[i]);
      }
    }
    // Consecutive unknown characters become one token.
    if (before > begin_ && before < ids.size() && ids[before] == tables_.unknown_id &&
        ids[before - 1] == tables_.unknown_id && tables_.byte_ids.empty())
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(before));
  }

  // A character that no piece has is a piece of each way to cut the text: what is before it and behind it can
  // be words that were seen before.
  void encode_unclear(std::string_view word, std::vector<std::int32_t>& ids) {
    std::size_t part = 0;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t begin = at, character = next_code_point(word, at);
      if (character < tables_.in_pieces.size() && tables_.in_pieces[character]) continue;
      if (begin > part) encode_word({word.data() + part, begin - part}, ids);
      if (sum_ < kLowestSum) sum_ = 0;  // as encode_unigram
      sum_ += score(tables_.unknown_id);
      add_unknown({word.data() + begin, at - begin}, begin_, ids);
      part = at;
    }
    if (part == 0) encode_unigram(word, ids);
    else if (part < word.size()) encode_word({word.data() + part, word.size() - part}, ids);
  }

  // `encode` writes to word_ids_. False: it wrote nothing, or the word is too long to be kept and unigram.
  template <typename Encode>
  bool encode_cached(std::string_view word, PieceCache& cache, std::vector<std::int32_t>& ids,
                     const Encode& encode) {
    word_ids_.clear();
    if (word.size() > PieceCache::kLongest) {
      if (tables_.algorithm != SentencePieceModel::Algorithm::bpe) return false;
      encode();
      ids.insert(ids.end(), word_ids_.begin(), word_ids_.end());
      return true;
    }
    const std::uint64_t hash = PieceCache::hash(word);
    const std::size_t before = ids.size();
    if (cache.find(word, hash, ids)) return ids.size() > before;
    encode();
    // At most 144 ids: a word of 48 spaces with three byte tokens each.
    cache.add(word, hash, word_ids_.data(), word_ids_.size());
    ids.insert(ids.end(), word_ids_.begin(), word_ids_.end());
    return !word_ids_.empty();
  }

  void add_unknown(std::string_view character, std::size_t first, std::vector<std::int32_t>& ids) const {
    if (tables_.byte_ids.empty()) {
      if (ids.size() == first || ids.back() != tables_.unknown_id) ids.push_back(tables_.unknown_id);
      return;
    }
    for (const char byte : character == " " ? kPieceSpace : character)
      ids.push_back(tables_.byte_ids[static_cast<unsigned char>(byte)]);
  }

  float score(std::int32_t id) const { return tables_.scores[static_cast<std::size_t>(id)]; }

  // Viterbi: finds the segmentation with the largest sum of scores; among equal sums the one with the longest
  // last piece. As in the reference, sums are rounded to float and continue those of the preceding text,
  // because nearly equal sums depend on it.
  template <typename Offer>
  void offer_pieces(std::string_view text, std::size_t begin, const Offer& offer) const {
    const std::size_t next = begin + character_bytes(text[begin]);
    bool single = false;
    std::int32_t node = ByteTrie::kRoot;
    for (std::size_t end = begin; end < text.size();) {
      node = tables_.pieces.step(node, text[end++]);
      if (node < 0) break;
      const std::int32_t id = tables_.pieces.value(node);
      if (id < 0) continue;
      offer(end, id);
      single |= end == next;
    }
    if (!single) offer(next, tables_.unknown_id);
  }

  void encode_unigram(std::string_view text, std::vector<std::int32_t>& ids) {
    ends_.assign(text.size() + 1, {});
    ends_[0].sum = sum_;
    for (std::size_t begin = 0; begin < text.size(); begin += character_bytes(text[begin])) {
      if (const float base = ends_[begin].sum; base < kLowestSum) {
        const std::size_t last =
            std::min(begin + std::max<std::size_t>(tables_.longest_piece, 4), text.size());
        for (std::size_t end = begin; end <= last; ++end)
          if (end == begin || ends_[end].begin >= 0) ends_[end].sum -= base;
      }
      const float base = ends_[begin].sum;
      offer_pieces(text, begin, [&](std::size_t end, std::int32_t id) {
        const float sum = base + score(id);
        if (ends_[end].begin < 0 || sum > ends_[end].sum)
          ends_[end] = {sum, id, static_cast<std::int64_t>(begin)};
      });
    }
    sum_ = ends_[text.size()].sum;
    add_path(text, ends_, ids);
  }

  // The same for a word of known characters whose segmentation no rounding up to `rounding` can change,
  // whatever text precedes it. Appends nothing for other words.
  void encode_clear_word(std::string_view word, double rounding, std::vector<std::int32_t>& ids) {
    clear_ends_.assign(word.size() + 1, {});
    for (std::size_t begin = 0; begin < word.size(); begin += character_bytes(word[begin])) {
      const double base = clear_ends_[begin].sum;
      bool known = true;
      offer_pieces(word, begin, [&](std::size_t end, std::int32_t id) {
        known &= id != tables_.unknown_id;
        ClearEnd& best = clear_ends_[end];
        const double sum = base + double{score(id)};
        if (best.begin < 0) {
          best = {sum, id, static_cast<std::int64_t>(begin), std::numeric_limits<double>::infinity()};
        } else if (sum > best.sum) {
          best = {sum, id, static_cast<std::int64_t>(begin), sum - best.sum};
        } else {
          best.margin = std::min(best.margin, best.sum - sum);
        }
      });
      if (!known) return;
    }
    for (std::size_t end = word.size(); end > 0; end = static_cast<std::size_t>(clear_ends_[end].begin))
      if (clear_ends_[end].margin <= 2 * rounding * static_cast<double>(end)) return;
    add_path(word, clear_ends_, ids);
  }

  template <typename Ends>
  void add_path(std::string_view text, const Ends& ends, std::vector<std::int32_t>& ids) {
    path_.clear();
    for (std::size_t end = text.size(); end > 0; end = static_cast<std::size_t>(ends[end].begin))
      path_.push_back(end);
    const std::size_t first = ids.size();
    for (std::size_t i = path_.size(); i-- > 0;) {
      const auto begin = static_cast<std::size_t>(ends[path_[i]].begin);
      const std::int32_t id = ends[path_[i]].id;
      if (id == tables_.unknown_id) add_unknown({text.data() + begin, path_[i] - begin}, first, ids);
      else ids.push_back(id);
    }
  }

  void encode_bpe(std::string_view text, std::vector<std::int32_t>& ids) {
    symbols_.clear();
    for (std::size_t at = 0; at < text.size();) {
      if (!tables_.user_defined.empty()) {
        if (const auto symbol = tables_.user_defined.longest(text.substr(at)); symbol.bytes > 0) {
          symbols_.push_back(SentencePieceTables::kFrozen + symbol.value);
          at += symbol.bytes;
          continue;
        }
      }
      const std::size_t begin = at;
      const auto code_point = static_cast<std::int32_t>(next_code_point(text, at));
      const auto known = tables_.characters.longest(text.substr(begin, at - begin));
      symbols_.push_back(known.bytes > 0 ? known.value : SentencePieceTables::kCharacter + code_point);
    }
    merged_.clear();
    merger_.merge_symbols(symbols_, merged_);
    const std::size_t first = ids.size();
    for (const std::int32_t symbol : merged_) {
      if (symbol < SentencePieceTables::kFrozen) {
        ids.push_back(symbol);
      } else if (symbol < SentencePieceTables::kCharacter) {
        ids.push_back(symbol - SentencePieceTables::kFrozen);
      } else {
        character_.clear();
        append_utf8(character_, static_cast<std::uint32_t>(symbol - SentencePieceTables::kCharacter));
        add_unknown(character_, first, ids);
      }
    }
  }

  static constexpr std::array<std::int32_t, 256> no_bytes_{};
  const MergeTable no_merges_{0};
  const SentencePieceTables& tables_;
  BpeMerger merger_;
  PieceCache cache_, near_cache_;  // near: of words that sums above kNearSum precede
  std::size_t begin_ = 0;          // start of the text's ids
  std::string normalized_, character_;
  std::vector<std::int32_t> word_ids_, symbols_, merged_;
  float sum_ = 0;  // sum of the text's scores so far
  struct End {     // best segmentation of the text up to here
    float sum = 0;
    std::int32_t id = -1;  // last piece
    std::int64_t begin = -1;
  };
  std::vector<End> ends_;
  struct ClearEnd {
    double sum = 0;
    std::int32_t id = -1;
    std::int64_t begin = -1;
    double margin = 0;  // distance to the second-best sum
  };
  std::vector<ClearEnd> clear_ends_;
  std::vector<std::size_t> path_;
};

class TemplatePieceEncoder final : public Encoder {
 public:
  explicit TemplatePieceEncoder(const SentencePieceTables& tables) : tables_(tables), pieces_(tables) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    tables_.template_tokens.cut(
        text, [&](const AddedTokenFinder::Match& match) { ids.push_back(match.id); },
        [&](std::size_t begin, std::size_t end) {
          pieces_.encode_part(text.substr(begin, end - begin), prefix_at(begin), ids);
        });
  }

  void encode_placed(std::string_view text, std::vector<std::int32_t>& ids,
                     std::vector<std::size_t>& ends) override {
    if (text.empty()) return pieces_.encode_placed(text, ids, ends);
    tables_.template_tokens.cut(
        text,
        [&](const AddedTokenFinder::Match& match) {
          ids.push_back(match.id);
          ends.push_back(match.end);
        },
        [&](std::size_t begin, std::size_t end) {
          const std::size_t first = ends.size();
          pieces_.encode_placed_part(text.substr(begin, end - begin), prefix_at(begin), ids, ends);
          for (std::size_t i = first; i < ends.size(); ++i) ends[i] += begin;
        });
  }

 private:
  static DummyPrefix prefix_at(std::size_t begin) {
    return begin == 0 ? DummyPrefix::as_model : DummyPrefix::none;
  }

  const SentencePieceTables& tables_;
  PieceEncoder pieces_;
};

}  // namespace

SentencePieceTables::SentencePieceTables(const SentencePieceModel& model)
    : normalizer(model), algorithm(model.algorithm), unknown_id(model.unknown_id) {
  Entries symbols;
  std::vector<AddedToken> found;
  bool has_space = false;
  if (model.byte_fallback) byte_ids.resize(256);
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    if (const auto byte = byte_of_piece(piece.text); byte && piece.type == Type::byte)
      byte_ids[*byte] = static_cast<std::int32_t>(id);
    if (piece.type == Type::control || piece.type == Type::user_defined || piece.type == Type::unknown)
      found.push_back({.id = static_cast<std::int32_t>(id), .content = piece.text, .special = true});
    piece_bytes.push_back(
        piece.type == Type::byte ? 1 : static_cast<std::int32_t>(with_spaces(piece.text).size()));
    has_space |= piece.text == kPieceSpace && matches_text(piece.type);
    const auto text = text_inside(piece.text);
    if (!text || !matches_text(piece.type)) continue;
    by_words &= !has_inner_space(*text);
    if (piece.type == Type::user_defined) symbols.emplace_back(*text, static_cast<std::int32_t>(id));
  }
  user_defined = ByteTrie(std::move(symbols));
  template_tokens = AddedTokenFinder(std::move(found));
  keeps_text = model.charsmap.empty() && !model.remove_extra_whitespaces && !byte_ids.empty() && has_space;
  if (algorithm == SentencePieceModel::Algorithm::unigram) make_unigram(model, *this);
  else make_bpe(model, *this);
}

std::unique_ptr<Encoder> sentencepiece_encoder(const SentencePieceTables& tables) {
  return std::make_unique<PieceEncoder>(tables);
}

std::unique_ptr<Encoder> sentencepiece_template_encoder(const SentencePieceTables& tables) {
  return std::make_unique<TemplatePieceEncoder>(tables);
}

}  // namespace trainerd::io
