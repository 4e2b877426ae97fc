#include "core/run/worker/batches.h"

#include <string>
#include <utility>

namespace trainerd::core::run {

io::SampleShape sample_shape(const job::JobSpec& job) {
  return {.seq_len = job.model.seq_len, .vocab = job.model.vocab, .seed = job.seed};
}

std::optional<io::NoticeRecord> limited_packing_notice(const job::JobSpec& job, const io::TokenBlend& data) {
  constexpr std::int64_t kMany = 100;  // one in so many
  const std::int64_t limited = data.limited_samples(), samples = data.samples();
  if (limited <= samples / kMany) return std::nullopt;
  return io::NoticeRecord{io::NoticeKind::warning,
                          0,
                          "data.max_documents: " + std::to_string(limited) + " of " +
                              std::to_string(samples) + " packed samples hold " +
                              std::to_string(job.data.max_documents) +
                              " documents, the most that it allows, and have room for more: set it larger to "
                              "fill them",
                          {}};
}

train::ReadSample sample_reader(const train::Trainer& trainer, std::shared_ptr<io::TokenBlend> source,
                                std::int64_t cursor) {
  return [source = std::move(source), cursor, documents = trainer.batch_shape().reads_documents()](
             std::int64_t sample, train::HostSample& to) {
    source->read(cursor + sample, to.tokens_S1);
    source->read_loss_weights(cursor + sample, to.loss_weight_S);
    if (documents) source->read_document_starts(cursor + sample, to.tokens_S1, to.starts);
  };
}

std::unique_ptr<train::BatchLoader> make_loader(const job::JobSpec& job, const train::Trainer& trainer,
                                                std::shared_ptr<io::TokenBlend> source, parallel::Pass pass,
                                                std::int64_t passes, std::int64_t cursor) {
  return std::make_unique<train::BatchLoader>(
      train::BatchLoader::Options{.shape = trainer.batch_shape(),
                                  .requests = trainer.batch_requests(pass),
                                  .passes = passes,
                                  .samples_per_pass = job.batch.global,
                                  .ahead = job.data.prefetch},
      sample_reader(trainer, std::move(source), cursor));
}

}  // namespace trainerd::core::run
