#include "core/run/worker/reference.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "core/run/worker/batches.h"
#include "core/run/worker/restore.h"
#include "core/run/worker/resume_check.h"
#include "core/train/batch_loader.h"
#include "io/checkpoint/safetensors.h"
#include "io/hash/hash.h"
#include "io/text/text.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"

namespace trainerd::core::run {
namespace {

constexpr const char* kTensor = "log_probabilities";
constexpr const char *kDataEntry = "data", *kWeightsEntry = "weights", *kChecksumEntry = "xxh3";

// Interval of progress reports.
constexpr double kReportSeconds = 10;
// Minimum interval between writes of the values, and maximum fraction of the time for them.
constexpr double kKeptSeconds = 1, kKeptShare = 0.05;

/// A pair that the table lacks.
struct Missing {
  ReferenceTable::Part part = 0;
  std::int64_t cursor = 0;
};

/// The pairs that the run reads and the table lacks, each once.
std::vector<Missing> missing_pairs(const ReferenceWork& work, const ReferenceTable& table) {
  std::vector<Missing> missing;
  for (ReferenceTable::Part part = 0; part < work.parts.size(); ++part) {
    const io::TokenBlend& data = *work.parts[part].data;
    std::vector<std::vector<bool>> seen;
    std::int64_t left = 0;
    for (const io::SourceFacts& source : data.sources()) {
      const std::size_t number = seen.size();
      seen.emplace_back(static_cast<std::size_t>(source.samples));
      for (std::int64_t i = 0; i < source.samples; ++i) {
        const bool there = table.has(part, {number, i});
        seen.back()[static_cast<std::size_t>(i)] = there;
        left += there ? 0 : 1;
      }
    }
    const std::int64_t first = work.parts[part].first, end = first + work.parts[part].count;
    for (std::int64_t cursor = first; cursor < end && left > 0; ++cursor) {
      const io::TokenBlend::Sample pair = data.sample_at(cursor);
      auto known = seen[pair.source][static_cast<std::size_t>(pair.number)];
      if (known) continue;
      known = true;
      missing.push_back({part, cursor});
      --left;
    }
  }
  return missing;
}

ReferenceTable::Identity identity_of(const ReferenceWork& work) {
  const job::PrecisionRecipe& precision = work.job.precision;
  std::string weights = work.start.weights_content;
  if (!weights.empty())
    weights += std::string(" in ") + kernels::name_of(precision.compute) +
               (precision.gemm == kernels::GemmFormat::fp8 ? " with fp8 products" : "") +
               ", of parameters in " + kernels::name_of(precision.params) + ", over " +
               std::to_string(work.job.model.seq_len) + " tokens";
  return {data_text(io::all_files(work.parts[ReferenceTable::kTraining].data->sources()),
                    work.start.data_content),
          std::move(weights)};
}

void compute(const ReferenceWork& work, const std::shared_ptr<const std::vector<Missing>>& missing,
             ReferenceTable& table) {
  const std::int64_t global = work.job.batch.global, count = static_cast<std::int64_t>(missing->size());
  // The last batch is filled up with the first missing pair.
  const auto missing_at = [missing, count](std::int64_t i) {
    return (*missing)[static_cast<std::size_t>(i < count ? i : 0)];
  };
  const auto batches = make_loader(work.job, work.trainer, (count + global - 1) / global,
                                   [missing_at, parts = work.parts](std::int64_t i) -> DataPlace {
                                     const Missing one = missing_at(i);
                                     return {parts[one.part].data, one.cursor};
                                   });
  const ReferenceTable::Identity identity = identity_of(work);
  const double begin = base::monotonic_seconds();
  double reported = begin, kept = begin, pause = kKeptSeconds;
  // A file that a checkpoint names must stay complete until the new one is. Values of unknown weights could
  // not be reused, so they are not kept either.
  const bool keeps = work.start.reference.empty() && work.start.resume_path.empty() &&
                     work.start.held.empty() && !identity.weights.empty();
  for (std::int64_t first = 0; first < count; first += global) {
    const std::vector<double> logps = work.trainer.sample_losses(*batches).loss;
    work.batch_done();
    for (std::int64_t i = 0; i < std::min(global, count - first); ++i) {
      const std::array<double, 2> pair{logps[static_cast<std::size_t>(2 * i)],
                                       logps[static_cast<std::size_t>(2 * i + 1)]};
      if (!std::isfinite(pair[0]) || !std::isfinite(pair[1]))
        throw base::diverged_error(
            "the reference gives a pair of the data a log-probability that is not finite: the weights that "
            "the run begins from are broken");
      const Missing one = missing_at(first + i);
      table.set(one.part, work.parts[one.part].data->sample_at(one.cursor), pair);
    }
    if (work.start.rank != 0) continue;
    const double now = base::monotonic_seconds();
    if (now - reported >= kReportSeconds) {
      reported = now;
      work.report(ReferenceProgress{std::min(first + global, count), count, now - begin});
    }
    if (!keeps || now - kept < pause) continue;
    table.write(work.start.reference_path, identity);
    kept = base::monotonic_seconds();
    pause = std::max(kKeptSeconds, (kept - now) / kKeptShare);
  }
}

/// Reads the values that an earlier attempt kept, and gives them to all ranks.
void take_kept(const ReferenceWork& work, ReferenceTable& table) {
  const bool begins =
      work.start.held.empty() && work.start.resume_path.empty() && work.start.reference.empty();
  if (work.start.rank != 0) {
    // Only rank 0 reads the file; the sum over ranks of its values and the others' zeros distributes them.
    std::fill(table.values().begin(), table.values().end(), 0.0);
  } else {
    ReferenceTable::Identity identity = identity_of(work);
    const bool looks = !begins || !identity.weights.empty();
    // The checkpoint's checksum identifies the values, so the weights are not compared.
    if (!begins) identity.weights.clear();
    const std::string problem =
        looks ? table.read(work.start.reference_path, identity, work.start.reference) : "not to be known";
    if (!problem.empty() && !begins)
      work.report(io::NoticeRecord{io::NoticeKind::warning,
                                   work.start.step,
                                   "the reference's log-probabilities are computed again: " + problem,
                                   {}});
    if (problem.empty() && begins)
      work.report(io::NoticeRecord{io::NoticeKind::change,
                                   work.start.step,
                                   "the reference's log-probabilities of " + io::with_commas(table.known()) +
                                       " pairs are those of an earlier attempt",
                                   {}});
  }
  work.trainer.sum_over_ranks(table.values());
}

}  // namespace

ReferenceTable::ReferenceTable(const std::vector<std::vector<io::SourceFacts>>& parts) {
  std::int64_t pairs = 0;
  for (const std::vector<io::SourceFacts>& sources : parts) {
    std::vector<std::int64_t>& first = first_.emplace_back();
    for (const io::SourceFacts& source : sources) {
      first.push_back(pairs);
      pairs += source.samples;
    }
  }
  values_.assign(static_cast<std::size_t>(2 * pairs), std::numeric_limits<double>::quiet_NaN());
}

std::size_t ReferenceTable::place_of(Part part, const io::TokenBlend::Sample& pair) const {
  return static_cast<std::size_t>(2 * (first_.at(part).at(pair.source) + pair.number));
}

bool ReferenceTable::has(Part part, const io::TokenBlend::Sample& pair) const {
  return !std::isnan(values_.at(place_of(part, pair)));
}

std::array<double, 2> ReferenceTable::at(Part part, const io::TokenBlend::Sample& pair) const {
  const std::size_t place = place_of(part, pair);
  return {values_.at(place), values_.at(place + 1)};
}

void ReferenceTable::set(Part part, const io::TokenBlend::Sample& pair, std::array<double, 2> logps) {
  std::copy(logps.begin(), logps.end(), values_.begin() + static_cast<std::ptrdiff_t>(place_of(part, pair)));
}

std::int64_t ReferenceTable::known() const {
  return std::ranges::count_if(values_, [](double value) { return !std::isnan(value); }) / 2;
}

std::string ReferenceTable::checksum() const { return io::xxh3_hex(std::as_bytes(std::span(values_))); }

void ReferenceTable::write(const std::string& path, const Identity& identity) const {
  std::map<std::string, std::string> metadata{{kDataEntry, identity.data}, {kChecksumEntry, checksum()}};
  if (!identity.weights.empty()) metadata[kWeightsEntry] = identity.weights;
  const io::SafetensorsLayout layout =
      io::lay_out_safetensors({{.name = kTensor,
                                .dtype = kernels::DType::f64,
                                .shape = {static_cast<std::int64_t>(values_.size() / 2), 2}}},
                              metadata);
  std::vector<std::byte> bytes(static_cast<std::size_t>(layout.file_bytes));
  std::copy(layout.header.begin(), layout.header.end(), bytes.begin());
  const auto values = std::as_bytes(std::span(values_));
  std::copy(values.begin(), values.end(), bytes.end() - static_cast<std::ptrdiff_t>(values.size()));
  if (const int error = base::write_file_atomically(path, bytes); error != 0)
    throw base::checkpoint_error(path + ": cannot be written: " + base::errno_text(error) +
                                 "; free space there or give the job another `output`");
}

std::string ReferenceTable::read(const std::string& path, const Identity& identity,
                                 const std::string& checksum) {
  const base::UniqueFd fd = base::open_regular(path);
  if (!fd) return path + ": cannot be opened: " + base::errno_text(errno);
  // Rejects a file whose size does not fit the values and at most this much metadata.
  constexpr std::int64_t kMaxMetadata = 1 << 20;
  const std::int64_t size = base::file_bytes(fd.get()),
                     values_bytes = static_cast<std::int64_t>(values_.size() * sizeof(double));
  if (size < values_bytes || size > values_bytes + kMaxMetadata)
    return path + " is not what the checkpoint names";
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  if (base::read_at(fd.get(), bytes, 0) != size) return path + ": cannot be read";
  io::SafetensorsHeader header;
  try {
    header = io::parse_safetensors(bytes, size);
  } catch (const base::Error& error) {
    return path + " is damaged: " + error.what();
  }
  const auto entry = [&header](const char* name) {
    const auto found = header.metadata.find(name);
    return found == header.metadata.end() ? std::string() : found->second;
  };
  const io::StoredTensor* tensor = header.find(kTensor);
  if (tensor == nullptr || tensor->dtype != kernels::DType::f64 ||
      tensor->shape != std::vector<std::int64_t>{static_cast<std::int64_t>(values_.size() / 2), 2} ||
      entry(kDataEntry) != identity.data ||
      (!identity.weights.empty() && entry(kWeightsEntry) != identity.weights) ||
      (!checksum.empty() && entry(kChecksumEntry) != checksum))
    return path + " is not what the checkpoint names";
  std::vector<double> values(values_.size());
  const auto into = std::as_writable_bytes(std::span(values));
  const auto begin = bytes.begin() + header.data_offset + tensor->begin;
  std::copy(begin, begin + values_bytes, into.begin());
  if (io::xxh3_hex(into) != entry(kChecksumEntry)) return path + " is damaged";
  values_ = std::move(values);
  return "";
}

std::shared_ptr<const ReferenceTable> make_reference(const ReferenceWork& work) {
  if (!work.job.loss.dpo.on()) return nullptr;
  std::vector<std::vector<io::SourceFacts>> sources;
  for (const ReferencePairs& part : work.parts) sources.push_back(part.data->sources());
  auto table = std::make_shared<ReferenceTable>(sources);
  take_kept(work, *table);
  const auto missing = std::make_shared<const std::vector<Missing>>(missing_pairs(work, *table));
  if (missing->empty()) return table;
  const double began = base::monotonic_seconds();
  Start from_the_start = work.start;
  from_the_start.held.clear();
  from_the_start.resume_path.clear();
  restore_state(from_the_start, {}, work.snapshot, work.trainer, work.trainer.backend(), work.find_s3);
  compute(work, missing, *table);
  if (work.start.rank != 0) return table;
  table->write(work.start.reference_path, identity_of(work));
  work.report(io::NoticeRecord{
      io::NoticeKind::change,
      work.start.step,
      "the reference's log-probabilities of " + io::with_commas(static_cast<std::int64_t>(missing->size())) +
          " pairs were computed in " + io::short_duration(base::monotonic_seconds() - began) + ": " +
          work.start.reference_path,
      {}});
  return table;
}

}  // namespace trainerd::core::run
