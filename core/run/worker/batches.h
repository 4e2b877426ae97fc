#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "core/job/job.h"
#include "core/run/worker/reference.h"
#include "core/train/batch_loader.h"
#include "core/train/trainer.h"
#include "io/files/data_files.h"
#include "io/records/records.h"
#include "io/tokens/token_blend.h"

namespace trainerd::core::run {

/// Opens the files of the job's data, also at s3://. Throws SpecError if the cache directory or the store's
/// settings cannot be used.
io::DataFiles data_files(const job::JobSpec& job, const io::FindS3& find_s3);
/// Counts of reads from an object store so far; none if the data is local.
std::optional<io::ObjectReads> object_reads(const io::DataFiles& files);

/// Length, vocabulary and seed with which the job's samples are read.
io::SampleShape sample_shape(const job::JobSpec& job);

/// Opens the job's training data.
std::shared_ptr<io::TokenBlend> training_data(const job::JobSpec& job, const io::DataFiles& files);

/// A notice if `data.max_documents` limits many samples; none if it limits few.
std::optional<io::NoticeRecord> limited_packing_notice(const job::JobSpec& job, const io::TokenBlend& data);

/// Returns a function that reads `source` from sample `cursor` on, as number 0; for pairs with the numbers of
/// `reference`.
train::ReadSample sample_reader(const train::Trainer& trainer, std::shared_ptr<io::TokenBlend> source,
                                std::int64_t cursor,
                                std::shared_ptr<const ReferenceTable> reference = nullptr);

/// A sample in some data.
struct DataPlace {
  std::shared_ptr<io::TokenBlend> data;
  std::int64_t cursor = 0;
};
/// Like the function below, for evaluation passes over the samples that `place_of` returns for 0, 1, ...
/// Without a reference.
std::unique_ptr<train::BatchLoader> make_loader(const job::JobSpec& job, const train::Trainer& trainer,
                                                std::int64_t passes,
                                                std::function<DataPlace(std::int64_t sample)> place_of);

/// Makes the microbatches of passes over `source` from sample `cursor` on, and reads `data.prefetch`
/// of them ahead. Remote files are requested still further ahead. The loader shares `source`, because its
/// thread may outlive the caller's reference.
std::unique_ptr<train::BatchLoader> make_loader(const job::JobSpec& job, const train::Trainer& trainer,
                                                std::shared_ptr<io::TokenBlend> source, parallel::Pass pass,
                                                std::span<const job::BatchSpan> spans, std::int64_t cursor,
                                                std::shared_ptr<const ReferenceTable> reference = nullptr);

}  // namespace trainerd::core::run
