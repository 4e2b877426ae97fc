#include "io/tokens/token_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "io/hash/hash.h"
#include "io/tokens/dataset_info.h"
#include "io/tokens/samples.h"
#include "io/tokens/source_files.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "kernels/tensor/rng.h"

namespace trainerd::io {
namespace {

constexpr std::int64_t kSyntheticTokens = std::int64_t{1} << 31;

// Widens `out.size()` little-endian tokens; returns the largest, so that the range check costs no second
// pass.
template <class T>
std::uint32_t widen(const std::byte* in, std::span<std::int32_t> out) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, in + i * sizeof(T), sizeof(T));
    // Negative or beyond 31 bits: larger than any vocabulary.
    if constexpr (sizeof(T) == 8)
      if (!std::in_range<std::int32_t>(token)) token = -1;
    largest = std::max(largest, static_cast<std::uint32_t>(token));
    out[i] = static_cast<std::int32_t>(token);
  }
  return largest;
}

// Its hash; empty where the files do not say it. The model needs a place for every id, also for those that no
// document has.
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
  FdCache descriptors{0};
  std::vector<std::byte> staging;
  DataFormat format = DataFormat::text;
  std::int64_t seq_len = 0, vocab = 0, tokens = 0, samples = 0;
  std::uint64_t order_key = 0, synthetic_key = 0;
  std::int64_t order_start = 0;
  std::uint64_t order_stream = 0;
  SampleOrder order = SampleOrder::shuffled;
  std::string tokenizer;  // its hash, where the files say it
  DataPart part = DataPart::all;
  double valid_fraction = 0;

  void read_files(std::int64_t position, std::span<std::int32_t> out);
  void read_part(std::size_t file, std::int64_t position, std::span<std::int32_t> out);
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
    s.files = open_source_files(paths, options, vocab);
    s.stretches = stretches_of(s.files, s.part, s.valid_fraction);
    if (!s.stretches.empty()) s.tokens = s.stretches.back().first + s.stretches.back().tokens;
    if (s.format == DataFormat::tokens) s.tokenizer = tokenizer_of(s.files, vocab);
    s.descriptors = FdCache(s.files.size(), reading.open_files);
    s.staging.resize(static_cast<std::size_t>(seq_len + 1) * sizeof(std::int64_t));
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

std::string TokenSource::fingerprint() const {
  const State& s = *state_;
  if (s.format == DataFormat::synthetic)
    return fmt::format("synthetic, vocab {}, seq_len {}", s.vocab, s.seq_len);
  Xxh3 hash;  // of names and sizes, not of folders: data may move between a stop and a resume
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
  if (s.part != DataPart::all)
    text += fmt::format(", {} of valid_fraction {}", s.part == DataPart::training ? "training" : "validation",
                        s.valid_fraction);
  return text;
}

std::string TokenSource::check_samples(int threads) const {
  const State& s = *state_;
  return s.format == DataFormat::synthetic ? "" : check_and_hash(s.files, s.vocab, threads);
}

void TokenSource::start_order(std::int64_t cursor, std::int64_t stream) {
  base::check(cursor >= 0 && stream >= 0,
              "an order of samples starts at a cursor >= 0 and has a number >= 0");
  state_->order_start = cursor;
  state_->order_stream = static_cast<std::uint64_t>(stream);
}

void TokenSource::read(std::int64_t cursor, std::span<std::int32_t> tokens_S1) {
  State& s = *state_;
  base::check(cursor >= s.order_start && std::cmp_equal(tokens_S1.size(), s.seq_len + 1),
              "a sample is seq_len + 1 tokens at a cursor that is not before its order's start");
  const auto n = static_cast<std::uint64_t>(s.samples),
             consumed = static_cast<std::uint64_t>(cursor - s.order_start);
  const std::uint64_t epoch = consumed / n, place = consumed % n;
  std::uint64_t sample = place;
  if (s.order == SampleOrder::shuffled) {
    const auto bits = kernels::philox(s.order_key, epoch, s.order_stream);
    sample = permute_index(place, n, (std::uint64_t{bits[0]} << 32) | bits[1]);
  }
  const std::int64_t position = static_cast<std::int64_t>(sample) * s.seq_len;
  if (s.format == DataFormat::synthetic) s.make_synthetic(position, tokens_S1);
  else s.read_files(position, tokens_S1);
}

// Every token is a function of its position alone, so that neighbouring samples agree on the token they
// share.
void TokenSource::State::make_synthetic(std::int64_t position, std::span<std::int32_t> out) const {
  std::array<std::uint32_t, 4> bits{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto at = static_cast<std::uint64_t>(position) + i;
    if (i == 0 || at % 4 == 0) bits = kernels::philox(synthetic_key, at / 4, 0);
    out[i] =
        static_cast<std::int32_t>((std::uint64_t{bits[at % 4]} * static_cast<std::uint64_t>(vocab)) >> 32);
  }
}

void TokenSource::State::read_files(std::int64_t position, std::span<std::int32_t> out) {
  auto stretch = std::prev(
      std::upper_bound(stretches.begin(), stretches.end(), position,
                       [](std::int64_t p, const Stretch& candidate) { return p < candidate.first; }));
  for (; !out.empty(); ++stretch) {
    const std::int64_t skipped = position - stretch->first;
    const auto here =
        static_cast<std::size_t>(std::min(stretch->tokens - skipped, static_cast<std::int64_t>(out.size())));
    read_part(stretch->file, stretch->begin + skipped, out.first(here));
    out = out.subspan(here);
    position += static_cast<std::int64_t>(here);
  }
}

void TokenSource::State::read_part(std::size_t index, std::int64_t position, std::span<std::int32_t> out) {
  const SourceFile& file = files[index];
  const std::int64_t width = file.layout.token_bytes, offset = file.layout.data_offset + position * width;
  const std::span<std::byte> bytes(staging.data(), out.size() * static_cast<std::size_t>(width));
  const std::int64_t got = base::read_at(descriptors.get(index, file.path, file.bytes), bytes, offset);
  if (got < 0) throw base::data_error(file.path + ": cannot be read: " + base::errno_text(errno));
  if (std::cmp_less(got, bytes.size()))
    throw base::data_error(
        fmt::format("{}: truncated in mid-run: {} bytes at {} were there at the start, {} are left; restore "
                    "the file and resume",
                    file.path, bytes.size(), offset, got));
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

}  // namespace trainerd::io
