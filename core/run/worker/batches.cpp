#include "core/run/worker/batches.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "io/tokens/source_files.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

// Number of microbatches to announce: as many as are under way at once, but at most half of the reader's
// memory, because blocks evicted before use are fetched twice. At least one if the memory holds it, else
// none.
std::int64_t microbatches_announced(const job::JobSpec& job, const io::TokenBlend& data) {
  constexpr std::int64_t kSamples = 64, kWidestToken = 8;
  const std::int64_t sample_bytes =
      kWidestToken * job.model.seq_len +
      data.places_per_sample() * io::ObjectReader::kBlockBytes;  // approximate size of its blocks
  const std::int64_t samples = std::min(io::ObjectReader::kMemoryBytes / 2 / sample_bytes, kSamples);
  if (samples >= job.batch.micro) return samples / job.batch.micro;
  return job.batch.micro * sample_bytes <= io::ObjectReader::kMemoryBytes ? 1 : 0;
}

train::BatchLoader::Options loader_options(const job::JobSpec& job, const train::Trainer& trainer,
                                           parallel::Pass pass, std::span<const job::BatchSpan> spans) {
  train::BatchLoader::Options options{
      .shape = trainer.batch_shape(), .passes = {}, .ahead = job.data.prefetch};
  for (const job::BatchSpan& span : spans)
    options.passes.push_back({trainer.batch_requests(pass, span.global), span.steps, span.global});
  return options;
}

}  // namespace

io::DataFiles data_files(const job::JobSpec& job, const io::FindS3& find_s3) {
  if (!io::reads_objects(job.data)) return {};
  if (!find_s3) throw base::spec_error("files at s3:// cannot be read here: name local ones");
  return io::DataFiles(std::make_shared<io::ObjectReader>(io::ObjectReader::Options{
      .store = find_s3(), .cache_directory = job.data.cache_directory, .cache_bytes = job.data.cache_bytes}));
}

std::optional<io::ObjectReads> object_reads(const io::DataFiles& files) {
  if (files.reader() == nullptr) return std::nullopt;
  const io::ReaderCounters counters = files.reader()->counters();
  return io::ObjectReads{.requests = counters.store.requests,
                         .retries = counters.store.retries,
                         .bytes = counters.store.bytes_read,
                         .cached_bytes = counters.cached_bytes,
                         .cache_failures = counters.cache_failures,
                         .renewals = counters.store.renewals};
}

io::SampleShape sample_shape(const job::JobSpec& job) {
  return {.seq_len = job.model.seq_len, .vocab = job.model.vocab, .seed = job.seed};
}

std::optional<io::NoticeRecord> limited_packing_notice(const job::JobSpec& job, const io::TokenBlend& data) {
  constexpr std::int64_t kMany = 100;  // one in 100
  const std::int64_t limited = data.limited_samples(), samples = data.samples();
  if (limited <= samples / kMany) return std::nullopt;
  return io::NoticeRecord{
      io::NoticeKind::warning,
      0,
      "data.max_documents: " + std::to_string(limited) + " of " + std::to_string(samples) +
          " packed samples hold " + std::to_string(job.data.max_documents) +
          " documents, the most that it allows, and have room for more: a new run can set it "
          "larger to fill them",
      {}};
}

train::ReadSample sample_reader(const train::Trainer& trainer, std::shared_ptr<io::TokenBlend> source,
                                std::int64_t cursor, std::shared_ptr<const ReferenceTable> reference) {
  return [source = std::move(source), cursor, reference = std::move(reference),
          documents = trainer.batch_shape().reads_documents()](std::int64_t sample, train::HostSample& to) {
    to.real = source->read(cursor + sample, to.tokens_S1);
    source->read_loss_weights(cursor + sample, to.loss_weight_S);
    if (documents) source->read_document_starts(cursor + sample, to.tokens_S1, to.starts);
    if (reference)
      to.reference = reference->at(ReferenceTable::kTraining, source->sample_at(cursor + sample));
  };
}

std::shared_ptr<io::TokenBlend> training_data(const job::JobSpec& job, const io::DataFiles& files) {
  return std::make_shared<io::TokenBlend>(io::TokenBlend::training(job.data, sample_shape(job), files));
}

std::unique_ptr<train::BatchLoader> make_loader(const job::JobSpec& job, const train::Trainer& trainer,
                                                std::int64_t passes,
                                                std::function<DataPlace(std::int64_t sample)> place_of) {
  train::BatchLoader::Options options = loader_options(job, trainer, parallel::Pass::evaluate,
                                                       std::array{job::BatchSpan{job.batch.global, passes}});
  const std::int64_t announced =
      io::reads_objects(job.data) ? microbatches_announced(job, *place_of(0).data) : 0;
  if (announced > 0) {
    options.announce = [place_of](std::int64_t sample) {
      const DataPlace place = place_of(sample);
      place.data->announce(place.cursor);
    };
    options.announced = announced;
  }
  const bool documents = trainer.batch_shape().reads_documents();
  return std::make_unique<train::BatchLoader>(
      std::move(options),
      [place_of = std::move(place_of), documents](std::int64_t sample, train::HostSample& to) {
        const DataPlace place = place_of(sample);
        to.real = place.data->read(place.cursor, to.tokens_S1);
        place.data->read_loss_weights(place.cursor, to.loss_weight_S);
        if (documents) place.data->read_document_starts(place.cursor, to.tokens_S1, to.starts);
      });
}

std::unique_ptr<train::BatchLoader> make_loader(const job::JobSpec& job, const train::Trainer& trainer,
                                                std::shared_ptr<io::TokenBlend> source, parallel::Pass pass,
                                                std::span<const job::BatchSpan> spans, std::int64_t cursor,
                                                std::shared_ptr<const ReferenceTable> reference) {
  train::BatchLoader::Options options = loader_options(job, trainer, pass, spans);
  const std::int64_t announced = io::reads_objects(job.data) ? microbatches_announced(job, *source) : 0;
  if (announced > 0) {
    options.announce = [source, cursor](std::int64_t sample) { source->announce(cursor + sample); };
    options.announced = announced;
  }
  return std::make_unique<train::BatchLoader>(
      std::move(options), sample_reader(trainer, std::move(source), cursor, std::move(reference)));
}

}  // namespace trainerd::core::run
