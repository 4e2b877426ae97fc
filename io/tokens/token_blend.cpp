#include "io/tokens/token_blend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "io/hash/hash.h"
#include "io/text/text.h"
#include "io/tokens/fd_cache.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

std::string name_of_paths(const std::vector<std::string>& paths) {
  std::string name;
  for (const std::string& path : paths) name += (name.empty() ? "" : ", ") + path;
  return name;
}

// Returns the most samples that a run may take from a source.
std::int64_t limit_of(const DataSource& source, std::int64_t samples, std::int64_t seq_len) {
  std::int64_t limit = BlendShare::kUnlimited;
  const auto at_most = [&limit](std::int64_t more) { limit = limit < 0 ? more : std::min(limit, more); };
  if (source.epochs > 0)
    at_most(
        static_cast<std::int64_t>(std::min(std::floor(source.epochs * static_cast<double>(samples) + 1e-6),
                                           static_cast<double>(Blend::kEndless))));
  if (source.tokens > 0) at_most(source.tokens / seq_len);
  if (limit == 0)
    throw base::data_error(
        fmt::format("data.sources: {}: its epochs or tokens allow less than one sample of seq_len {}: give "
                    "it more, or take "
                    "the source off the list",
                    name_of_paths(source.path), seq_len));
  return limit;
}

std::vector<DataSource> training_sources(const DataOptions& options) {
  if (options.format != DataFormat::synthetic && !options.sources.empty()) return options.sources;
  return {{.path = options.train, .weight = 1, .mask = options.mask}};
}

bool is_whole(std::span<const SourceFacts> sources) { return sources.size() == 1 && sources[0].limit < 0; }

std::string hash_of(std::span<const SourceFacts> sources, std::string SourceFacts::*text) {
  Xxh3 hash;
  for (const SourceFacts& source : sources) {
    const std::string entry = fmt::format("{}\n{}\n{}\n", source.*text, source.weight, source.limit);
    hash.update(std::as_bytes(std::span(entry)));
  }
  return hash.hex();
}

}  // namespace

Blend blend_after(const DataOrder& order, std::span<const SourceFacts> sources) {
  std::vector<BlendShare> shares;
  base::check(order.sources.empty() || order.sources.size() == sources.size(),
              "an order of samples is of the sources of the job");
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const SourceStart start =
        order.sources.empty() ? SourceStart{static_cast<std::int64_t>(i), 0} : order.sources[i];
    BlendShare share{.weight = sources[i].weight, .limit = sources[i].limit, .number = start.stream};
    if (share.limit >= 0) share.limit = std::max<std::int64_t>(0, share.limit - start.taken);
    shares.push_back(share);
  }
  return Blend(std::move(shares));
}

std::string all_files(std::span<const SourceFacts> sources) {
  if (is_whole(sources)) return sources[0].files;
  return fmt::format("blend of {} source{}, xxh3 {}", sources.size(), sources.size() == 1 ? "" : "s",
                     hash_of(sources, &SourceFacts::files));
}

std::string all_content(std::span<const SourceFacts> sources) {
  return is_whole(sources) ? sources[0].content : hash_of(sources, &SourceFacts::content);
}

struct TokenBlend::State {
  std::vector<TokenSource> sources;
  std::vector<SourceFacts> facts;
  std::vector<std::int64_t> taken;  ///< at the start of the order
  std::int64_t order_start = 0;
  std::optional<Blend> blend;
};

TokenBlend::TokenBlend(const std::vector<DataSource>& sources, const DataOptions& options,
                       const SampleShape& shape, TokenSource::Reading reading)
    : state_(std::make_unique<State>()) {
  reading.open_files = std::max<std::size_t>(1, FdCache::kOpenFiles / sources.size());
  for (const DataSource& source : sources) {
    reading.masks = source.mask;
    const TokenSource& opened =
        state_->sources.emplace_back(source.path, options, shape.seq_len, shape.vocab, shape.seed, reading);
    state_->facts.push_back({.name = name_of_paths(source.path),
                             .files = opened.fingerprint(),
                             .content = {},
                             .weight = source.weight,
                             .limit = limit_of(source, opened.samples(), shape.seq_len),
                             .samples = opened.samples()});
  }
  start_order({});
}

TokenBlend TokenBlend::training(const DataOptions& options, const SampleShape& shape,
                                const DataFiles& files) {
  const bool split = options.format != DataFormat::synthetic && options.valid_fraction > 0;
  return {training_sources(options),
          options,
          shape,
          {.part = split ? DataPart::training : DataPart::all, .files = files}};
}

std::vector<ValidationSet> validation_sets(const DataOptions& data) {
  std::vector<ValidationSet> sets;
  if (data.format == DataFormat::synthetic || !data.valid.empty() || data.valid_fraction > 0) {
    sets.push_back({.name = {}, .path = data.valid, .mask = data.valid_mask});
    if (!data.valid_sets.empty()) sets[0].name = kUnnamedSet;
  }
  if (data.format != DataFormat::synthetic)
    sets.insert(sets.end(), data.valid_sets.begin(), data.valid_sets.end());
  return sets;
}

TokenBlend TokenBlend::validation(const DataOptions& options, const SampleShape& shape) {
  return validation(options, shape, validation_sets(options).at(0));
}

TokenBlend TokenBlend::validation(const DataOptions& options, const SampleShape& shape,
                                  const ValidationSet& set, const DataFiles& files) {
  TokenSource::Reading reading{.order = SampleOrder::in_order, .stream = kValidStream, .files = files};
  if (options.format == DataFormat::synthetic || !set.path.empty())
    return {{{.path = set.path, .weight = 1, .mask = set.mask}}, options, shape, reading};
  reading.part = DataPart::validation;
  std::vector<DataSource> sources = training_sources(options);
  for (DataSource& source : sources) source.epochs = 1, source.tokens = 0;
  return {sources, options, shape, reading};
}

TokenBlend::~TokenBlend() = default;
TokenBlend::TokenBlend(TokenBlend&&) noexcept = default;
TokenBlend& TokenBlend::operator=(TokenBlend&&) noexcept = default;

std::int64_t TokenBlend::tokens() const {
  std::int64_t tokens = 0;
  for (const TokenSource& source : state_->sources) tokens += source.tokens();
  return tokens;
}

std::int64_t TokenBlend::samples() const {
  std::int64_t samples = 0;
  for (const TokenSource& source : state_->sources) samples += source.samples();
  return samples;
}

std::int64_t TokenBlend::limited_samples() const {
  std::int64_t samples = 0;
  for (const TokenSource& source : state_->sources) samples += source.limited_samples();
  return samples;
}

std::int64_t TokenBlend::places_per_sample() const {
  std::int64_t places = 0;
  for (const TokenSource& source : state_->sources) places = std::max(places, source.places_per_sample());
  return places;
}

const std::vector<SourceFacts>& TokenBlend::sources() const { return state_->facts; }

std::vector<SourceFacts> TokenBlend::check_samples(int threads) const {
  std::vector<SourceFacts> facts = state_->facts;
  for (std::size_t i = 0; i < facts.size(); ++i) {
    facts[i].content = state_->sources[i].check_samples(threads);
    for (std::size_t j = 0; j < i; ++j)
      if (facts[j].files == facts[i].files && facts[j].content == facts[i].content)
        throw base::data_error("data.sources: " + facts[i].name + " is the same data as " + facts[j].name +
                               ": name it once, with the sum of the weights");
  }
  return facts;
}

void TokenBlend::start_order(const DataOrder& order) {
  State& s = *state_;
  s.blend = blend_after(order, s.facts);
  s.order_start = order.start;
  s.taken.assign(s.sources.size(), 0);
  for (std::size_t i = 0; i < s.sources.size(); ++i) {
    s.sources[i].start_order(0,
                             order.sources.empty() ? static_cast<std::int64_t>(i) : order.sources[i].stream);
    if (!order.sources.empty()) s.taken[i] = order.sources[i].taken;
  }
}

struct TokenBlend::Place {
  TokenSource& source;
  std::int64_t cursor = 0;  ///< within the source
};

TokenBlend::Place TokenBlend::place_of(std::int64_t cursor) const {
  State& s = *state_;
  const std::int64_t position = cursor - s.order_start;
  if (position >= s.blend->length())
    throw base::data_error("data.sources: every source has given all that its epochs and tokens allow");
  const Blend::Place place = s.blend->at(position);
  return {s.sources[place.source], s.taken[place.source] + place.sample};
}

TokenBlend::Sample TokenBlend::sample_at(std::int64_t cursor) const {
  const Place place = place_of(cursor);
  return {static_cast<std::size_t>(&place.source - state_->sources.data()),
          place.source.sample_at(place.cursor)};
}

void TokenBlend::announce(std::int64_t cursor) const {
  if (cursor - state_->order_start >= state_->blend->length()) return;
  const Place place = place_of(cursor);
  place.source.announce(place.cursor);
}

std::int64_t TokenBlend::read(std::int64_t cursor, std::span<std::int32_t> tokens_S1) {
  const Place place = place_of(cursor);
  return place.source.read(place.cursor, tokens_S1);
}

void TokenBlend::read_loss_weights(std::int64_t cursor, std::span<float> weights_S) {
  const Place place = place_of(cursor);
  place.source.read_loss_weights(place.cursor, weights_S);
}

void TokenBlend::read_document_starts(std::int64_t cursor, std::span<const std::int32_t> tokens_S1,
                                      std::vector<std::int32_t>& starts) {
  const Place place = place_of(cursor);
  place.source.read_document_starts(place.cursor, tokens_S1, starts);
}

}  // namespace trainerd::io
