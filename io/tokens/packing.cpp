#include "io/tokens/packing.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "io/tokens/token_source.h"
#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"

namespace trainerd::io {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

/// A set of small numbers, stored as a tree of 64-bit words, with fast lookup of the next larger element.
class OrderedSet {
 public:
  explicit OrderedSet(std::size_t numbers) {
    do levels_.emplace_back(numbers = (numbers + 63) / 64);
    while (numbers > 1);
  }
  void insert(std::size_t number) {
    for (std::vector<std::uint64_t>& level : levels_) {
      level[number / 64] |= std::uint64_t{1} << (number % 64);
      number /= 64;
    }
  }
  void erase(std::size_t number) {
    for (std::vector<std::uint64_t>& level : levels_) {
      std::uint64_t& word = level[number / 64];
      word &= ~(std::uint64_t{1} << (number % 64));
      if (word != 0) return;
      number /= 64;
    }
  }
  /// Returns the smallest element that is at least `number`; kNone if there is none.
  std::size_t at_least(std::size_t number) const {
    for (std::size_t l = 0; l < levels_.size(); ++l, number = number / 64 + 1) {
      if (number / 64 >= levels_[l].size()) return kNone;
      const std::uint64_t above = levels_[l][number / 64] & (~std::uint64_t{0} << (number % 64));
      if (above == 0) continue;
      number = number / 64 * 64 + static_cast<std::size_t>(std::countr_zero(above));
      for (; l > 0; --l)
        number = number * 64 + static_cast<std::size_t>(std::countr_zero(levels_[l - 1][number]));
      return number;
    }
    return kNone;
  }

 private:
  std::vector<std::vector<std::uint64_t>> levels_;
};

/// Sequences with free room, grouped by room. Within a group the last one added is taken first.
class OpenBins {
 public:
  explicit OpenBins(std::size_t most_room) : rooms_(most_room + 1), last_(most_room + 1, kNone) {}
  std::uint32_t make() {
    next_.push_back(kNone);
    return static_cast<std::uint32_t>(next_.size() - 1);
  }
  void put(std::uint32_t bin, std::size_t room) {
    next_[bin] = std::exchange(last_[room], bin);
    rooms_.insert(room);
  }
  /// Removes a sequence with the least room that is enough; returns it and its room. kNone if there is none.
  std::pair<std::uint32_t, std::size_t> take(std::size_t enough) {
    const std::size_t room = rooms_.at_least(enough);
    if (room == kNone) return {kNone, 0};
    const std::uint32_t bin = std::exchange(last_[room], next_[last_[room]]);
    if (last_[room] == kNone) rooms_.erase(room);
    return {bin, room};
  }

 private:
  OrderedSet rooms_;
  std::vector<std::uint32_t> last_, next_;  ///< per room, per sequence
};

}  // namespace

PackedSequences::PackedSequences(const std::function<void(const Visit&)>& each_document,
                                 const Options& options) {
  base::check(options.seq_len > 0, "sequences have a length");
  each_document(
      [&](std::int64_t position, std::int64_t tokens) { add_document(position, tokens, options.seq_len); });
  position_.shrink_to_fit();
  tokens_.shrink_to_fit();
  number_sequences(pack(options));
}

PackedSequences PackedSequences::of_pairs(const std::function<void(const Visit&)>& each_document,
                                          std::int64_t seq_len) {
  PackedSequences pairs;
  std::int64_t longest = 0, too_long = 0, first_long = 0, documents = 0, before = 0;
  each_document([&](std::int64_t position, std::int64_t tokens) {
    if (tokens < 2)
      throw base::data_error(
          "pair " + std::to_string(documents / 2) +
          " has an answer of fewer than two tokens, prompt included: prepare the data again");
    if (pairs.position_.size() == kNone - 1)
      throw base::data_error("the data has more pairs than " + std::to_string(kNone / 2) +
                             ": split it into several sources");
    pairs.position_.push_back(position);
    pairs.tokens_.push_back(static_cast<std::uint32_t>(std::min<std::int64_t>(tokens, seq_len + 1)));
    pairs.predicted_ += tokens - 1;
    if (documents++ % 2 == 0) {
      before = tokens;
      return;
    }
    if (before + tokens <= seq_len + 1) return;
    if (too_long++ == 0) first_long = documents / 2 - 1;
    longest = std::max(longest, before + tokens);
  });
  if (documents % 2 != 0)
    throw base::data_error("it has " + std::to_string(documents) +
                           " documents, and pairs are two each: prepare the data again by `trainerd data "
                           "prepare --pairs`");
  if (too_long > 0)
    throw base::data_error(std::to_string(too_long) + " of " + std::to_string(documents / 2) +
                           " pairs have more tokens than a sample of seq_len " + std::to_string(seq_len) +
                           " holds (the first is pair " + std::to_string(first_long) +
                           ", counted from 0; the longest has " + std::to_string(longest) +
                           "): set model.seq_len to " + std::to_string(longest - 1) +
                           " or more, or prepare the data with --pair-tokens " + std::to_string(seq_len + 1) +
                           ", which leaves longer ones out");
  for (std::uint32_t piece = 0; piece < pairs.position_.size(); ++piece) {
    if (piece % 2 == 0) pairs.first_.push_back(piece);
    pairs.pieces_.push_back(piece);
  }
  pairs.first_.push_back(documents);
  return pairs;
}

void PackedSequences::add_document(std::int64_t position, std::int64_t tokens, std::int64_t seq_len) {
  const std::int64_t predicted = tokens - 1;
  if (predicted < 1) return;
  predicted_ += predicted;
  if (predicted > seq_len) ++cut_documents_;
  for (std::int64_t done = 0; done < predicted; done += seq_len) {
    if (position_.size() == kNone)
      throw base::data_error("data.packing: best_fit: the data has more than " + std::to_string(kNone) +
                             " documents: split it into several sources");
    position_.push_back(position + done);
    tokens_.push_back(static_cast<std::uint32_t>(std::min(seq_len, predicted - done) + 1));
  }
}

/// Returns the pieces by descending length. Pieces of equal length are shuffled by the key.
std::vector<std::uint32_t> PackedSequences::longest_first(const Options& options) const {
  const auto longest = static_cast<std::size_t>(options.seq_len) + 1;
  std::vector<std::uint32_t> end(longest + 2, 0);  // per length, its end in `order`
  for (const std::uint32_t tokens : tokens_) ++end[tokens];
  for (std::size_t length = longest; length-- > 0;) end[length] += end[length + 1];
  std::vector<std::uint32_t> order(tokens_.size()), seen(longest + 1, 0);
  for (std::size_t piece = 0; piece < tokens_.size(); ++piece) {
    const std::size_t length = tokens_[piece];
    const std::uint32_t begin = end[length + 1], count = end[length] - begin;
    const std::uint64_t place = permute_index(seen[length]++, count, kernels::mix_keys(options.key, length));
    order[begin + place] = static_cast<std::uint32_t>(piece);
  }
  return order;
}

/// Returns the number of the sequence that holds each piece.
std::vector<std::uint32_t> PackedSequences::pack(const Options& options) {
  const auto most_room = static_cast<std::size_t>(options.seq_len) + 1;
  OpenBins open(most_room);
  std::vector<std::uint32_t> bin_of(tokens_.size());
  std::vector<std::uint32_t> pieces_in;  // per sequence, if their number is limited
  for (const std::uint32_t piece : longest_first(options)) {
    const std::size_t tokens = tokens_[piece];
    auto [bin, room] = open.take(tokens);
    if (bin == kNone) {
      bin = open.make();
      room = most_room;
      if (options.most_pieces > 0) pieces_in.push_back(0);
    }
    bin_of[piece] = bin;
    room -= tokens;
    const bool closed = options.most_pieces > 0 && ++pieces_in[bin] == options.most_pieces;
    // Every piece has at least two tokens, so less room is useless.
    if (room < 2) continue;
    if (closed) ++limited_;
    else open.put(bin, room);
  }
  return bin_of;
}

void PackedSequences::number_sequences(std::vector<std::uint32_t> bin_of) {
  std::vector<std::uint32_t> number;  // per bin, in the order of first pieces
  for (std::uint32_t& bin : bin_of) {
    if (bin >= number.size()) number.resize(std::size_t{bin} + 1, kNone);
    if (number[bin] == kNone) {
      number[bin] = static_cast<std::uint32_t>(first_.size());
      first_.push_back(0);
    }
    bin = number[bin];
    ++first_[bin];
  }
  std::int64_t before = 0;
  for (std::int64_t& first : first_) before += std::exchange(first, before);
  first_.push_back(before);
  pieces_.resize(bin_of.size());
  std::vector<std::uint32_t>& filled = number;
  filled.assign(first_.size(), 0);
  for (std::size_t piece = 0; piece < bin_of.size(); ++piece) {
    const std::uint32_t sequence = bin_of[piece];
    pieces_[static_cast<std::size_t>(first_[sequence]) + filled[sequence]++] =
        static_cast<std::uint32_t>(piece);
  }
}

void PackedSequences::pieces_of(std::int64_t number, std::vector<PackedPiece>& pieces) const {
  const auto sequence = static_cast<std::size_t>(number);
  base::check(number >= 0 && number < count(), "a packed sequence has a number less than their count");
  pieces.clear();
  for (std::int64_t i = first_[sequence]; i < first_[sequence + 1]; ++i) {
    const std::uint32_t piece = pieces_[static_cast<std::size_t>(i)];
    pieces.push_back({position_[piece], tokens_[piece]});
  }
}

}  // namespace trainerd::io
