// Documents packed into sequences.

#include "io/tokens/packing.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "io/tokens/inspect.h"
#include "io/tokens/token_blend.h"
#include "io/tokens/token_source.h"
#include "kernels/base/error.h"
#include "tests/full.h"
#include "tests/io/temp_dir.h"

using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Contains;
using trainerd::base::DataError;

namespace {

const std::string kPackedFolder = std::string(TRAINERD_SOURCE_DIR) + "/tests/golden/megatron/";

PackedSequences packed_lengths(const std::vector<std::int64_t>& lengths,
                               const PackedSequences::Options& options) {
  return {[&](const PackedSequences::Visit& visit) {
            std::int64_t begin = 0;
            for (const std::int64_t length : lengths) visit(begin, length), begin += length;
          },
          options};
}

std::vector<std::vector<PackedPiece>> sequences_of(const PackedSequences& packed) {
  std::vector<std::vector<PackedPiece>> all(static_cast<std::size_t>(packed.count()));
  for (std::size_t i = 0; i < all.size(); ++i) packed.pieces_of(static_cast<std::int64_t>(i), all[i]);
  return all;
}

std::int64_t filled(const std::vector<PackedPiece>& pieces) {
  std::int64_t tokens = 0;
  for (const PackedPiece& piece : pieces) tokens += piece.tokens;
  return tokens;
}

std::vector<std::int64_t> odd_lengths(std::size_t count, std::int64_t most) {
  std::mt19937 random(7);
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < count; ++i) {
    const auto drawn = static_cast<std::int64_t>(random());
    lengths.push_back(i % 5 == 0 ? drawn % most : drawn % (most / 6 + 1));
  }
  return lengths;
}

/// Best-fit decreasing by its definition: returns the room left in each sequence of `slots` tokens.
std::multiset<std::int64_t> rooms_by_definition(std::vector<std::int64_t> pieces, std::int64_t slots) {
  std::sort(pieces.rbegin(), pieces.rend());
  std::multiset<std::int64_t> rooms;
  for (const std::int64_t piece : pieces) {
    const auto fits = rooms.lower_bound(piece);
    const std::int64_t room = fits == rooms.end() ? slots : *fits;
    if (fits != rooms.end()) rooms.erase(fits);
    rooms.insert(room - piece);
  }
  return rooms;
}

}  // namespace

TEST_CASE("every token of a document but its first is predicted once, and only long documents are cut",
          "[packing]") {
  const std::int64_t seq_len = GENERATE(1, 7, 63, 64, 100, 4096);
  const std::vector<std::int64_t> lengths = odd_lengths(700, 3 * seq_len + 3);
  const PackedSequences packed = packed_lengths(lengths, {.seq_len = seq_len, .key = 3});
  std::map<std::int64_t, int> predicted;  // per position in the stream
  std::vector<std::int64_t> pieces, rooms;
  std::int64_t before = -1;
  for (const auto& sequence : sequences_of(packed)) {
    REQUIRE(filled(sequence) <= seq_len + 1);
    REQUIRE(sequence[0].position > before);  // numbered by their first piece
    before = sequence[0].position;
    rooms.push_back(seq_len + 1 - filled(sequence));
    std::int64_t last = -1;
    for (const PackedPiece& piece : sequence) {
      REQUIRE(piece.position > last);
      last = piece.position;
      pieces.push_back(piece.tokens);
      for (std::int64_t t = 1; t < piece.tokens; ++t) ++predicted[piece.position + t];
    }
  }
  std::int64_t begin = 0, cut = 0, count = 0;
  for (const std::int64_t length : lengths) {
    for (std::int64_t t = 1; t < length; ++t, ++count) REQUIRE(predicted[begin + t] == 1);
    cut += length > seq_len + 1 ? 1 : 0;
    begin += length;
  }
  CHECK(predicted.size() == static_cast<std::size_t>(count));
  CHECK(packed.predicted() == count);
  CHECK(packed.cut_documents() == cut);
  const auto expected = rooms_by_definition(pieces, seq_len + 1);
  CHECK(std::multiset<std::int64_t>(rooms.begin(), rooms.end()) == expected);
}

TEST_CASE("packing depends on lengths, key and limit alone", "[packing]") {
  const std::vector<std::int64_t> lengths = odd_lengths(900, 60);
  const PackedSequences::Options options{.seq_len = 64, .key = 1};
  const auto first = sequences_of(packed_lengths(lengths, options));
  CHECK(sequences_of(packed_lengths(lengths, options)) == first);
  const auto other = sequences_of(packed_lengths(lengths, {.seq_len = 64, .key = 2}));
  CHECK(other != first);
  CHECK(other.size() == first.size());
  const auto few = sequences_of(packed_lengths(lengths, {.seq_len = 64, .most_pieces = 3, .key = 1}));
  CHECK(few.size() > first.size());
  std::int64_t limited = 0;
  for (const auto& sequence : few) {
    CHECK(sequence.size() <= 3);
    limited += sequence.size() == 3 && filled(sequence) <= 65 - 2 ? 1 : 0;
  }
  CHECK(limited > 0);
  CHECK(packed_lengths(lengths, {.seq_len = 64, .most_pieces = 3, .key = 1}).limited() == limited);
  CHECK(packed_lengths(lengths, options).limited() == 0);
  // 8 + 2 and 6 + 4 fill 10; 5 is alone. Sequences are numbered in document order.
  const auto small = sequences_of(packed_lengths({2, 5, 6, 1, 0, 4, 8}, {.seq_len = 9}));
  CHECK(small == std::vector<std::vector<PackedPiece>>{{{0, 2}, {18, 8}}, {{2, 5}}, {{7, 6}, {14, 4}}});
  CHECK(packed_lengths({1, 0, 1}, {.seq_len = 9}).count() == 0);
}

TEST_CASE("a packed sample is its documents, then zeros that do not count", "[packing]") {
  constexpr std::int64_t kSeq = 24;
  const std::vector<std::vector<std::int32_t>> documents =
      nlohmann::json::parse(read_file(kPackedFolder + "documents.json")).at("narrow");
  std::vector<std::int32_t> stream;
  std::set<std::int64_t> begins;
  for (const auto& document : documents) {
    begins.insert(static_cast<std::int64_t>(stream.size()));
    stream.insert(stream.end(), document.begin(), document.end());
  }
  DataOptions options;
  options.format = DataFormat::tokens;
  options.packing = Packing::best_fit;
  options.document_mask = GENERATE(false, true);
  options.max_documents = 4;
  TokenSource source({kPackedFolder + "narrow"}, options, kSeq, 65536, 5, SampleOrder::in_order);
  std::vector<std::int32_t> tokens(kSeq + 1), starts;
  std::vector<float> weights(kSeq);
  std::multiset<std::vector<std::int32_t>> seen, expected;
  std::ptrdiff_t padded = 0;
  for (std::int64_t i = 0; i < source.samples(); ++i) {
    const auto real = tokens.begin() + source.read(i, tokens);
    CHECK(std::all_of(real, tokens.end(), [](std::int32_t id) { return id == 0; }));
    padded += tokens.end() - real;
    source.read_loss_weights(i, weights);
    source.read_document_starts(i, tokens, starts);
    CHECK(1 + starts.size() <= (options.document_mask ? 4u : 100u));
    // A run of counted predictions is a document. Each run starts where the sample or a document starts.
    std::vector<std::int32_t> run{tokens[0]};
    for (std::size_t s = 0; s < weights.size(); ++s) {
      if (weights[s] != 0) {
        run.push_back(tokens[s + 1]);
        continue;
      }
      if (run.size() > 1) seen.insert(run);
      run = {tokens[s + 1]};
      const bool begin =
          std::find(starts.begin(), starts.end(), static_cast<std::int32_t>(s + 1)) != starts.end();
      CHECK((begin || tokens[s + 1] == 0));
    }
    if (run.size() > 1) seen.insert(run);
  }
  for (const auto& document : documents)
    for (std::size_t at = 0; at + 1 < document.size(); at += kSeq)
      expected.insert(
          {document.begin() + static_cast<std::ptrdiff_t>(at),
           document.begin() + static_cast<std::ptrdiff_t>(std::min(document.size(), at + kSeq + 1))});
  CHECK(seen == expected);
  CHECK_THAT(source.fingerprint(), Contains("packed by best fit"));
  CHECK(padded > 0);
}

TEST_CASE("pairs are two documents each, in order, and an incomplete pair is reported", "[packing][pairs]") {
  const auto pairs_of = [](const std::vector<std::int64_t>& lengths, std::int64_t seq_len) {
    return PackedSequences::of_pairs(
        [&](const PackedSequences::Visit& visit) {
          std::int64_t begin = 0;
          for (const std::int64_t length : lengths) visit(begin, length), begin += length;
        },
        seq_len);
  };
  const PackedSequences pairs = pairs_of({5, 2, 3, 3, 2, 6}, 7);
  CHECK(sequences_of(pairs) ==
        std::vector<std::vector<PackedPiece>>{{{0, 5}, {5, 2}}, {{7, 3}, {10, 3}}, {{13, 2}, {15, 6}}});
  CHECK(pairs.predicted() == 4 + 1 + 2 + 2 + 1 + 5);
  CHECK(pairs.limited() == 0);
  CHECK(pairs_of({}, 7).count() == 0);
  CHECK_THROWS_WITH(pairs_of({5, 2, 3}, 7), Contains("it has 3 documents, and pairs are two each"));
  CHECK_THROWS_WITH(pairs_of({5, 2, 3, 1}, 7), Contains("pair 1 has an answer of fewer than two tokens"));
  CHECK_THROWS_WITH(
      pairs_of({5, 2, 5, 4, 9, 4}, 7),
      Contains("2 of 3 pairs have more tokens than a sample of seq_len 7 holds (the first is pair 1, "
               "counted from 0; the longest has 13): set model.seq_len to 12 or more, or prepare the "
               "data with --pair-tokens 8"));
}

TEST_CASE("packing is of files that say where documents begin, and inspect says how full samples are",
          "[packing]") {
  const TempDir dir;
  write_file(dir / "plain.bin", std::string(400, '\1'));
  DataOptions options;
  options.format = DataFormat::tokens;
  options.dtype = TokenType::uint16;
  options.packing = Packing::best_fit;
  CHECK_THROWS_WITH(TokenSource({dir / "plain.bin"}, options, 8, 65536, 5, SampleOrder::in_order),
                    Contains("plain.bin: data.packing: best_fit needs to know where documents begin"));
  const Inspection shown = inspect_data(kPackedFolder + "narrow", {.format = {}, .seq_len = 16});
  CHECK_THAT(shown.text, Contains("best_fit"));
  CHECK_THAT(inspect_data(dir / "plain.bin", {.format = {}, .dtype = TokenType::uint16, .seq_len = 16})
                 .problems.at(0),
             Contains("no file says where its documents begin"));
}

// The time is reported but not checked, because machines differ. Full runs pack ten million documents.
TEST_CASE("many documents leave next to no room in their sequences", "[packing-speed]") {
  std::mt19937 random(1);
  std::vector<std::int64_t> lengths(runs_full() ? 10'000'000 : 100'000);
  std::int64_t predicted = 0;
  for (std::int64_t& length : lengths) {
    length = static_cast<std::int64_t>(std::exp(6 + 1.2 * std::normal_distribution<double>()(random))) + 2;
    predicted += length - 1;
  }
  const auto begin = std::chrono::steady_clock::now();
  const PackedSequences packed = packed_lengths(lengths, {.seq_len = 2048, .key = 1});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  CHECK(packed.predicted() == predicted);
  const double filled = static_cast<double>(predicted) / (2048.0 * static_cast<double>(packed.count()));
  CHECK(filled > 0.99);
  CHECK(filled <= 1);
  if (runs_full())
    WARN(seconds.count() << " s, " << packed.count() << " sequences, " << 100 * filled << "% predict");
}
