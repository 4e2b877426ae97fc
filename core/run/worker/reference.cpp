#include "core/run/worker/reference.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "core/run/worker/restore.h"
#include "core/run/worker/resume_check.h"
#include "core/train/batch_loader.h"
#include "io/checkpoint/safetensors.h"
#include "io/hash/hash.h"
#include "io/text/text.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {
namespace {

constexpr const char* kTensor = "log_probabilities";

io::SafetensorsLayout layout_of(std::int64_t pairs, const std::string& data, const std::string& checksum) {
  return io::lay_out_safetensors({{.name = kTensor, .dtype = kernels::DType::f64, .shape = {pairs, 2}}},
                                 {{"data", data}, {"xxh3", checksum}});
}

/// Cursors of pairs that the run's steps read and the table does not have, each pair once.
std::vector<std::int64_t> missing_pairs(const ReferenceWork& work, const ReferenceTable& table) {
  std::vector<std::int64_t> cursors;
  ReferenceTable seen = table;
  const std::int64_t end = work.start.cursor + (work.job.steps - work.start.step) * work.job.batch.global;
  std::int64_t left = work.data.samples();
  for (const io::SourceFacts& source : work.data.sources())
    for (std::int64_t i = 0; i < source.samples; ++i)
      left -= table.has({static_cast<std::size_t>(&source - work.data.sources().data()), i}) ? 1 : 0;
  for (std::int64_t cursor = work.start.cursor; cursor < end && left > 0; ++cursor) {
    const io::TokenBlend::Sample pair = work.data.sample_at(cursor);
    if (seen.has(pair)) continue;
    seen.set(pair, {0, 0});
    cursors.push_back(cursor);
    --left;
  }
  return cursors;
}

void compute(const ReferenceWork& work, const std::vector<std::int64_t>& cursors, ReferenceTable& table) {
  const std::int64_t global = work.job.batch.global, count = static_cast<std::int64_t>(cursors.size());
  // The last batch is filled with pairs that are known already.
  const auto cursor_of = [&cursors, count](std::int64_t i) {
    return cursors[static_cast<std::size_t>(i < count ? i : 0)];
  };
  for (std::int64_t first = 0; first < count; first += global) {
    train::SampleBatches batches(work.trainer.batch_shape(), [&](std::int64_t sample, train::HostSample& to) {
      const std::int64_t cursor = cursor_of(first + sample);
      work.data.read(cursor, to.tokens_S1);
      work.data.read_loss_weights(cursor, to.loss_weight_S);
      work.data.read_document_starts(cursor, to.tokens_S1, to.starts);
    });
    const std::vector<double> logps = work.trainer.sample_losses(batches).loss;
    work.batch_done();
    for (std::int64_t i = 0; i < std::min(global, count - first); ++i) {
      const std::array<double, 2> pair{logps[static_cast<std::size_t>(2 * i)],
                                       logps[static_cast<std::size_t>(2 * i + 1)]};
      if (!std::isfinite(pair[0]) || !std::isfinite(pair[1]))
        throw base::diverged_error(
            "the reference gives a pair of the training data a log-probability that is not "
            "finite: the weights that the run begins from are broken");
      table.set(work.data.sample_at(cursor_of(first + i)), pair);
    }
  }
}

}  // namespace

ReferenceTable::ReferenceTable(std::span<const io::SourceFacts> sources) {
  std::int64_t pairs = 0;
  for (const io::SourceFacts& source : sources) {
    first_.push_back(pairs);
    pairs += source.samples;
  }
  values_.assign(static_cast<std::size_t>(2 * pairs), std::numeric_limits<double>::quiet_NaN());
}

std::size_t ReferenceTable::place_of(const io::TokenBlend::Sample& pair) const {
  return static_cast<std::size_t>(2 * (first_.at(pair.source) + pair.number));
}

bool ReferenceTable::has(const io::TokenBlend::Sample& pair) const {
  return !std::isnan(values_.at(place_of(pair)));
}

std::array<double, 2> ReferenceTable::at(const io::TokenBlend::Sample& pair) const {
  const std::size_t place = place_of(pair);
  return {values_.at(place), values_.at(place + 1)};
}

void ReferenceTable::set(const io::TokenBlend::Sample& pair, std::array<double, 2> logps) {
  std::copy(logps.begin(), logps.end(), values_.begin() + static_cast<std::ptrdiff_t>(place_of(pair)));
}

std::string ReferenceTable::checksum() const { return io::xxh3_hex(std::as_bytes(std::span(values_))); }

void ReferenceTable::write(const std::string& path, const std::string& data) const {
  const io::SafetensorsLayout layout =
      layout_of(static_cast<std::int64_t>(values_.size() / 2), data, checksum());
  std::vector<std::byte> bytes(static_cast<std::size_t>(layout.file_bytes));
  std::copy(layout.header.begin(), layout.header.end(), bytes.begin());
  const auto values = std::as_bytes(std::span(values_));
  std::copy(values.begin(), values.end(), bytes.end() - static_cast<std::ptrdiff_t>(values.size()));
  if (const int error = base::write_file_atomically(path, bytes); error != 0)
    throw base::checkpoint_error(path + ": cannot be written: " + base::errno_text(error) +
                                 "; free space there or give the job another `output`");
}

std::string ReferenceTable::read(const std::string& path, const std::string& data,
                                 const std::string& checksum) {
  const io::SafetensorsLayout expected =
      layout_of(static_cast<std::int64_t>(values_.size() / 2), data, checksum);
  const base::UniqueFd fd = base::open_read(path);
  if (!fd) return path + ": cannot be opened: " + base::errno_text(errno);
  std::vector<std::byte> bytes(static_cast<std::size_t>(expected.file_bytes) + 1);
  if (base::read_at(fd.get(), bytes, 0) != expected.file_bytes ||
      !std::equal(expected.header.begin(), expected.header.end(), bytes.begin()))
    return path + " is not what the checkpoint names";
  std::vector<double> values(values_.size());
  const auto into = std::as_writable_bytes(std::span(values));
  std::copy(bytes.end() - 1 - static_cast<std::ptrdiff_t>(into.size()), bytes.end() - 1, into.begin());
  if (io::xxh3_hex(into) != checksum) return path + " is damaged";
  values_ = std::move(values);
  return "";
}

std::shared_ptr<const ReferenceTable> make_reference(const ReferenceWork& work) {
  if (!work.job.loss.dpo.on()) return nullptr;
  auto table = std::make_shared<ReferenceTable>(work.data.sources());
  const std::string path = work.start.reference_path,
                    data = data_text(io::all_files(work.data.sources()), work.start.data_content);
  const bool first = work.start.rank == 0, begins = work.start.held.empty() &&
                                                    work.start.resume_path.empty() &&
                                                    work.start.reference.empty();
  if (!begins) {
    // One rank reads the file, and the others get the sum of its numbers and their zeros.
    if (!first) std::fill(table->values().begin(), table->values().end(), 0.0);
    else if (const std::string problem = table->read(path, data, work.start.reference); !problem.empty())
      work.tell({io::NoticeKind::warning,
                 work.start.step,
                 "the reference's log-probabilities are computed again: " + problem,
                 {}});
    work.trainer.sum_over_ranks(table->values());
  }
  const std::vector<std::int64_t> missing = missing_pairs(work, *table);
  if (missing.empty()) return table;
  const double began = base::monotonic_seconds();
  Start from_the_start = work.start;
  from_the_start.held.clear();
  from_the_start.resume_path.clear();
  restore_state(from_the_start, {}, work.snapshot, work.trainer, work.trainer.backend(), work.find_s3);
  compute(work, missing, *table);
  if (!first) return table;
  table->write(path, data);
  work.tell({io::NoticeKind::change,
             work.start.step,
             "the reference's log-probabilities of " +
                 io::with_commas(static_cast<std::int64_t>(missing.size())) + " pairs were computed in " +
                 io::short_duration(base::monotonic_seconds() - began) + ": " + path,
             {}});
  return table;
}

}  // namespace trainerd::core::run
