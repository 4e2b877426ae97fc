#include "io/tokens/token_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "io/hash/hash.h"
#include "io/tokens/dataset_info.h"
#include "io/tokens/document_boundaries.h"
#include "io/tokens/mask_files.h"
#include "io/tokens/packing.h"
#include "io/tokens/samples.h"
#include "io/tokens/source_files.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "kernels/tensor/rng.h"

namespace trainerd::io {
namespace {

constexpr std::int64_t kSyntheticTokens = std::int64_t{1} << 31;

// Widens `out.size()` little-endian tokens. Returns the largest, so the range check needs no second pass.
template <class T>
std::uint32_t widen(const std::byte* in, std::span<std::int32_t> out) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, in + i * sizeof(T), sizeof(T));
    // A negative id, or one beyond 31 bits, becomes larger than any vocabulary.
    if constexpr (sizeof(T) == 8)
      if (!std::in_range<std::int32_t>(token)) token = -1;
    largest = std::max(largest, static_cast<std::uint32_t>(token));
    out[i] = static_cast<std::int32_t>(token);
  }
  return largest;
}

/// Local files may be many, so their descriptors are cached and reopened. Remote files stay open.
struct OpenFiles {
  FdCache descriptors{0};
  std::vector<DataFile> remote;  ///< per file; empty for a local file
};

void read_bytes(OpenFiles& files, std::size_t file, const std::string& path, std::int64_t file_bytes,
                std::int64_t offset, std::span<std::byte> bytes) {
  if (files.remote[file]) {
    files.remote[file].read(offset, bytes);
    return;
  }
  const std::int64_t got = base::read_at(files.descriptors.get(file, path, file_bytes), bytes, offset);
  if (got < 0) throw base::data_error(path + ": cannot be read: " + base::errno_text(errno));
  if (std::cmp_less(got, bytes.size()))
    throw base::data_error(
        fmt::format("{}: truncated in mid-run: {} bytes at {} were there at the start, {} are left; restore "
                    "the file and resume",
                    path, bytes.size(), offset, got));
}

// Returns the tokenizer's hash; empty if no dataset.json records it. Throws if the model's vocabulary is
// smaller than the tokenizer's, even if no document has the larger ids.
std::string tokenizer_of(const std::vector<SourceFile>& files, std::int64_t vocab) {
  const auto tokenizer = dataset_tokenizer(files);
  if (!tokenizer) return "";
  if (vocab < tokenizer->vocab)
    throw base::data_error(
        fmt::format("{}: its tokenizer has a vocabulary of {}, but model.vocab is {}: set it to "
                    "{} or more",
                    tokenizer->path, tokenizer->vocab, vocab, tokenizer->vocab));
  return tokenizer->hash;
}

}  // namespace

struct TokenSource::State {
  std::vector<SourceFile> files;
  std::vector<Stretch> stretches;
  OpenFiles opened, opened_masks;
  std::optional<DocumentBoundaries> boundaries;  // set if document starts are needed
  std::optional<PackedSequences> packed;         // if set, its pieces are the documents
  bool pairs = false;                            // each sequence is a pair of documents
  std::int64_t most_pieces = 0;
  std::vector<PackedPiece> pieces;  // pieces of the sample being read
  std::int64_t max_documents = 0;
  std::vector<std::byte> staging;
  DataFormat format = DataFormat::text;
  std::int64_t seq_len = 0, vocab = 0, tokens = 0, samples = 0;
  std::uint64_t order_key = 0, synthetic_key = 0;
  std::int64_t order_start = 0;
  std::uint64_t order_stream = 0;
  SampleOrder order = SampleOrder::shuffled;
  std::string tokenizer;  // hash from dataset.json, or empty
  DataPart part = DataPart::all;
  double valid_fraction = 0;

  void pack(std::uint64_t seed);
  std::int64_t sample_at(std::int64_t cursor) const;
  std::int64_t position_of(std::int64_t cursor) const { return sample_at(cursor) * seq_len; }
  template <class Visit>
  void each_part(std::int64_t position, std::size_t count, const Visit& visit) const;
  void read_part(std::size_t file, std::int64_t position, std::span<std::int32_t> out);
  void read_mask(std::size_t file, std::int64_t position, std::span<float> out);
  void make_synthetic(std::int64_t position, std::span<std::int32_t> out) const;
};

TokenSource::TokenSource(const std::vector<std::string>& paths, const DataOptions& options,
                         std::int64_t seq_len, std::int64_t vocab, std::uint64_t seed, const Reading& reading)
    : state_(std::make_unique<State>()) {
  base::check(seq_len > 0 && vocab > 0, "a token source needs a sequence length and a vocabulary");
  State& s = *state_;
  s.format = options.format;
  s.seq_len = seq_len;
  s.vocab = vocab;
  s.order = reading.order;
  s.part = reading.part;
  s.valid_fraction = options.valid_fraction;
  s.order_key = kernels::hash_name("sample order", seed);
  s.synthetic_key = kernels::hash_name("synthetic " + reading.stream + " tokens", seed);
  if (s.format == DataFormat::synthetic) {
    s.tokens = kSyntheticTokens;
  } else {
    if (s.format == DataFormat::text && options.tokenizer != "bytes")
      throw base::spec_error("data.tokenizer: " + options.tokenizer +
                             " does not exist; for text there is: bytes");
    s.files = open_source_files(paths, options, vocab, reading.files);
    attach_masks(s.files, reading.masks, s.format);
    s.stretches = stretches_of(s.files, s.part, s.valid_fraction);
    if (!s.stretches.empty()) s.tokens = s.stretches.back().first + s.stretches.back().tokens;
    if (s.format == DataFormat::tokens) s.tokenizer = tokenizer_of(s.files, vocab);
    if (s.format == DataFormat::tokens) check_pairs(s.files, options.packing);
    s.pairs = options.packing == Packing::pairs;
    const bool packs = options.packing != Packing::concatenate;
    if (!packs && (options.document_mask || options.reset_positions))
      s.boundaries.emplace(s.files, options.end_token);
    s.max_documents =
        options.document_mask ? options.max_documents : std::numeric_limits<std::int64_t>::max();
    s.most_pieces = options.document_mask ? options.max_documents : 0;
    try {
      if (packs) s.pack(seed);
    } catch (const base::DataError& error) {
      if (!s.pairs) throw;
      throw base::data_error(paths.front() + ": " + error.what());
    }
    const std::size_t kinds = has_masks(s.files) ? 2 : 1,
                      open_files = std::max<std::size_t>(1, reading.open_files / kinds);
    s.opened.descriptors = FdCache(s.files.size(), open_files);
    if (kinds == 2) s.opened_masks.descriptors = FdCache(s.files.size(), open_files);
    for (const SourceFile& file : s.files) {
      s.opened.remote.push_back(is_s3(file.path) ? reading.files.open(file.path) : DataFile());
      s.opened_masks.remote.push_back(is_s3(file.mask) ? reading.files.open(file.mask) : DataFile());
    }
    s.staging.resize(static_cast<std::size_t>(seq_len + 1) * sizeof(std::int64_t));
  }
  if (s.packed) {
    s.samples = s.packed->count();
    if (s.samples > 0) return;
    throw base::data_error((paths.empty() ? "data" : paths.front()) +
                           ": none of its documents has two tokens or more");
  }
  if (s.tokens < seq_len + 1)
    throw base::data_error(
        fmt::format("{}{}: {} tokens in all{}, but one sample of seq_len {} needs {}: give more data or a "
                    "smaller seq_len",
                    paths.empty() ? "data" : paths.front(), paths.size() > 1 ? ", ..." : "", s.tokens,
                    s.part == DataPart::validation ? " of the documents that data.valid_fraction chooses"
                    : s.part == DataPart::training ? " of the documents that data.valid_fraction leaves"
                                                   : "",
                    seq_len, seq_len + 1));
  s.samples = (s.tokens - 1) / seq_len;
}

TokenSource::~TokenSource() = default;
TokenSource::TokenSource(TokenSource&&) noexcept = default;
TokenSource& TokenSource::operator=(TokenSource&&) noexcept = default;

std::int64_t TokenSource::tokens() const { return state_->tokens; }
std::int64_t TokenSource::samples() const { return state_->samples; }
std::int64_t TokenSource::limited_samples() const { return state_->packed ? state_->packed->limited() : 0; }

std::int64_t TokenSource::places_per_sample() const {
  const State& s = *state_;
  const std::int64_t pieces = s.packed ? (s.packed->pieces() + s.samples - 1) / s.samples : 1;
  return has_masks(s.files) ? 2 * pieces : pieces;
}

std::string TokenSource::fingerprint() const {
  const State& s = *state_;
  if (s.format == DataFormat::synthetic)
    return fmt::format("synthetic, vocab {}, seq_len {}", s.vocab, s.seq_len);
  Xxh3 hash;  // of names and sizes without folders: data may move between a stop and a resume
  for (const SourceFile& file : s.files) {
    const std::string entry =
        fmt::format("{}\n{}\n{}\n", std::filesystem::path(file.path).filename().string(), file.bytes,
                    file.layout.token_bytes);
    hash.update(std::as_bytes(std::span(entry)));
  }
  std::string text = fmt::format("{}, seq_len {}, {} files, {} tokens, xxh3 {}",
                                 s.format == DataFormat::text ? "text bytes" : "tokens", s.seq_len,
                                 s.files.size(), s.tokens, hash.hex());
  if (!s.tokenizer.empty()) text += ", tokenizer " + s.tokenizer;
  if (const auto masked = std::count_if(s.files.begin(), s.files.end(),
                                        [](const SourceFile& file) { return !file.mask.empty(); });
      masked > 0)
    text += fmt::format(", loss masks of {}", masked);
  if (s.pairs) text += ", pairs";
  else if (s.packed) {
    text += ", packed by best fit";
    if (s.most_pieces > 0) text += fmt::format(", {} documents at most", s.most_pieces);
  }
  if (s.part != DataPart::all)
    text += fmt::format(", {} of valid_fraction {}", s.part == DataPart::training ? "training" : "validation",
                        s.valid_fraction);
  return text;
}

std::string TokenSource::check_samples(int threads) const {
  const State& s = *state_;
  if (s.format == DataFormat::synthetic) return "";
  const std::string tokens = check_and_hash(s.files, s.vocab, threads);
  if (!has_masks(s.files)) return tokens;
  const std::string both = tokens + check_and_hash_masks(s.files, threads);
  return xxh3_hex(std::as_bytes(std::span(both)));
}

void TokenSource::start_order(std::int64_t cursor, std::int64_t stream) {
  base::check(cursor >= 0 && stream >= 0,
              "an order of samples starts at a cursor >= 0 and has a number >= 0");
  state_->order_start = cursor;
  state_->order_stream = static_cast<std::uint64_t>(stream);
}

void TokenSource::State::pack(std::uint64_t seed) {
  if (pairs) {
    packed.emplace(PackedSequences::of_pairs(
        [this](const PackedSequences::Visit& visit) {
          each_document_of(files, part, valid_fraction, "data.packing: pairs", visit);
        },
        seq_len));
    return;
  }
  packed.emplace(
      [this](const PackedSequences::Visit& visit) {
        each_document_of(files, part, valid_fraction, "data.packing: best_fit", visit);
      },
      PackedSequences::Options{.seq_len = seq_len,
                               .most_pieces = most_pieces,
                               .key = kernels::hash_name("best-fit packing", seed)});
}

std::int64_t TokenSource::sample_at(std::int64_t cursor) const { return state_->sample_at(cursor); }

/// Returns the number of the sample at `cursor`, in stream order.
std::int64_t TokenSource::State::sample_at(std::int64_t cursor) const {
  base::check(cursor >= order_start, "a cursor is not before its order's start");
  const auto n = static_cast<std::uint64_t>(samples),
             consumed = static_cast<std::uint64_t>(cursor - order_start);
  const std::uint64_t epoch = consumed / n, place = consumed % n;
  std::uint64_t sample = place;
  if (order == SampleOrder::shuffled) {
    const auto bits = kernels::philox(order_key, epoch, order_stream);
    sample = permute_index(place, n, (std::uint64_t{bits[0]} << 32) | bits[1]);
  }
  return static_cast<std::int64_t>(sample);
}

void TokenSource::announce(std::int64_t cursor) const {
  const State& s = *state_;
  if (s.format == DataFormat::synthetic) return;
  const auto announce_run = [&s](std::int64_t position, std::int64_t tokens) {
    s.each_part(position, static_cast<std::size_t>(tokens),
                [&s](std::size_t file, std::int64_t at, std::size_t, std::size_t count) {
                  const TokenLayout& layout = s.files[file].layout;
                  const auto here = static_cast<std::int64_t>(count);
                  if (s.opened.remote[file])
                    s.opened.remote[file].announce(layout.data_offset + at * layout.token_bytes,
                                                   here * layout.token_bytes);
                  if (s.opened_masks.remote[file]) s.opened_masks.remote[file].announce(at, here);
                });
  };
  if (!s.packed) return announce_run(s.position_of(cursor), s.seq_len + 1);
  std::vector<PackedPiece> pieces;
  s.packed->pieces_of(s.sample_at(cursor), pieces);
  for (const PackedPiece& piece : pieces) announce_run(piece.position, piece.tokens);
}

std::int64_t TokenSource::read(std::int64_t cursor, std::span<std::int32_t> tokens_S1) {
  State& s = *state_;
  base::check(std::cmp_equal(tokens_S1.size(), s.seq_len + 1), "a sample is seq_len + 1 tokens");
  const auto whole = static_cast<std::int64_t>(tokens_S1.size());
  if (s.format == DataFormat::synthetic) {
    s.make_synthetic(s.position_of(cursor), tokens_S1);
    return whole;
  }
  const auto read_run = [&s](std::int64_t position, std::span<std::int32_t> to) {
    s.each_part(position, to.size(),
                [&](std::size_t file, std::int64_t at, std::size_t first, std::size_t count) {
                  s.read_part(file, at, to.subspan(first, count));
                });
  };
  if (!s.packed) {
    read_run(s.position_of(cursor), tokens_S1);
    return whole;
  }
  s.packed->pieces_of(s.sample_at(cursor), s.pieces);
  std::size_t done = 0;
  for (const PackedPiece& piece : s.pieces) {
    read_run(piece.position, tokens_S1.subspan(done, static_cast<std::size_t>(piece.tokens)));
    done += static_cast<std::size_t>(piece.tokens);
  }
  std::fill(tokens_S1.begin() + static_cast<std::ptrdiff_t>(done), tokens_S1.end(), 0);
  return static_cast<std::int64_t>(done);
}

void TokenSource::read_loss_weights(std::int64_t cursor, std::span<float> weights_S) {
  State& s = *state_;
  base::check(std::cmp_equal(weights_S.size(), s.seq_len), "a sample has seq_len loss weights");
  const auto read_run = [&s, masked = has_masks(s.files)](std::int64_t position, std::span<float> to) {
    if (!masked) return std::fill(to.begin(), to.end(), 1.0f);
    s.each_part(position, to.size(),
                [&](std::size_t file, std::int64_t at, std::size_t first, std::size_t count) {
                  s.read_mask(file, at, to.subspan(first, count));
                });
  };
  if (!s.packed) return read_run(s.position_of(cursor) + 1, weights_S);
  // The first token of a piece starts a document, or was already predicted in the sequence before.
  std::fill(weights_S.begin(), weights_S.end(), 0.0f);
  s.packed->pieces_of(s.sample_at(cursor), s.pieces);
  std::size_t first = 0;
  for (const PackedPiece& piece : s.pieces) {
    read_run(piece.position + 1, weights_S.subspan(first, static_cast<std::size_t>(piece.tokens - 1)));
    first += static_cast<std::size_t>(piece.tokens);
  }
}

void TokenSource::read_document_starts(std::int64_t cursor, std::span<const std::int32_t> tokens_S1,
                                       std::vector<std::int32_t>& starts) {
  State& s = *state_;
  starts.clear();
  if (s.format == DataFormat::synthetic) return;
  if (s.packed) {
    s.packed->pieces_of(s.sample_at(cursor), s.pieces);
    std::int64_t end = 0;
    for (const PackedPiece& piece : s.pieces) {
      end += piece.tokens;
      // Padding is a document too, if the limit allows one more.
      const bool more = &piece != &s.pieces.back() || std::cmp_less(s.pieces.size(), s.max_documents);
      if (more && end < s.seq_len) starts.push_back(static_cast<std::int32_t>(end));
    }
    return;
  }
  const std::int64_t position = s.position_of(cursor);
  s.each_part(position, tokens_S1.size(),
              [&](std::size_t file, std::int64_t at, std::size_t first, std::size_t count) {
                s.boundaries->starts_in(file, at, tokens_S1.subspan(first, count),
                                        static_cast<std::int32_t>(first), starts);
              });
  // A start at the sample's first token separates nothing; nor does one behind the sample.
  std::erase_if(starts, [&](std::int32_t start) { return start == 0 || start > s.seq_len; });
  const auto documents =
      1 + std::count_if(starts.begin(), starts.end(), [&](std::int32_t start) { return start < s.seq_len; });
  if (documents <= s.max_documents) return;
  s.each_part(position, 1, [&](std::size_t file, std::int64_t at, std::size_t, std::size_t) {
    throw base::data_error(fmt::format(
        "{}: the sample from position {} on has {} documents, and data.max_documents allows {}: set it to {} "
        "or more, or seq_len smaller",
        s.files[file].path, at, documents, s.max_documents, documents));
  });
}

// Every token depends only on its position, so neighbouring samples agree on the token they share.
void TokenSource::State::make_synthetic(std::int64_t position, std::span<std::int32_t> out) const {
  std::array<std::uint32_t, 4> bits{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto at = static_cast<std::uint64_t>(position) + i;
    if (i == 0 || at % 4 == 0) bits = kernels::philox(synthetic_key, at / 4, 0);
    out[i] =
        static_cast<std::int32_t>((std::uint64_t{bits[at % 4]} * static_cast<std::uint64_t>(vocab)) >> 32);
  }
}

/// Splits `count` tokens of the stream from `position` on by file. Calls `visit(file, position in the file,
/// number of its first token within the range, count)` for each part.
template <class Visit>
void TokenSource::State::each_part(std::int64_t position, std::size_t count, const Visit& visit) const {
  auto stretch = std::prev(
      std::upper_bound(stretches.begin(), stretches.end(), position,
                       [](std::int64_t p, const Stretch& candidate) { return p < candidate.first; }));
  for (std::size_t done = 0; done < count; ++stretch) {
    const std::int64_t skipped = position - stretch->first;
    const std::size_t here = std::min(static_cast<std::size_t>(stretch->tokens - skipped), count - done);
    visit(stretch->file, stretch->begin + skipped, done, here);
    done += here;
    position += static_cast<std::int64_t>(here);
  }
}

void TokenSource::State::read_part(std::size_t index, std::int64_t position, std::span<std::int32_t> out) {
  const SourceFile& file = files[index];
  const std::int64_t width = file.layout.token_bytes;
  const std::span<std::byte> bytes(staging.data(), out.size() * static_cast<std::size_t>(width));
  read_bytes(opened, index, file.path, file.bytes, file.layout.data_offset + position * width, bytes);
  std::uint32_t largest = 0;
  switch (file.layout.type) {
    case TokenType::uint8: largest = widen<std::uint8_t>(bytes.data(), out); break;
    case TokenType::int8: largest = widen<std::int8_t>(bytes.data(), out); break;
    case TokenType::uint16: largest = widen<std::uint16_t>(bytes.data(), out); break;
    case TokenType::int16: largest = widen<std::int16_t>(bytes.data(), out); break;
    case TokenType::int64: largest = widen<std::int64_t>(bytes.data(), out); break;
    default: largest = widen<std::uint32_t>(bytes.data(), out);
  }
  if (std::cmp_less(largest, vocab)) return;
  const auto bad = std::find_if(out.begin(), out.end(), [this](std::int32_t token) {
    return std::cmp_greater_equal(static_cast<std::uint32_t>(token), vocab);
  });
  throw base::data_error(
      outside_text(file, static_cast<std::uint32_t>(*bad), position + (bad - out.begin()), vocab));
}

void TokenSource::State::read_mask(std::size_t index, std::int64_t position, std::span<float> out) {
  const SourceFile& file = files[index];
  if (file.mask.empty()) return std::fill(out.begin(), out.end(), 1.0f);
  const std::span<std::byte> bytes(staging.data(), out.size());
  read_bytes(opened_masks, index, file.mask, file.layout.tokens, position, bytes);
  if (const std::string problem = mask_problem(file.mask, scan_mask(position, bytes)); !problem.empty())
    throw base::data_error(problem);
  std::transform(bytes.begin(), bytes.end(), out.begin(),
                 [](std::byte byte) { return static_cast<float>(byte); });
}

}  // namespace trainerd::io
