#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "core/job/job.h"
#include "core/run/worker/reference.h"
#include "core/train/batch_loader.h"
#include "core/train/trainer.h"
#include "io/files/data_files.h"
#include "io/records/records.h"
#include "io/tokens/token_blend.h"

namespace trainerd::core::run {

/// What opens the files of the job's data: at s3:// too, where it names such. Throws SpecError: the cache's
/// directory cannot be used; settings of the store that cannot be.
io::DataFiles data_files(const job::JobSpec& job, const io::FindS3& find_s3);
/// What was read of an object store so far; none: the data is local.
std::optional<io::ObjectReads> object_reads(const io::DataFiles& files);

/// What the job's data is read as.
io::SampleShape sample_shape(const job::JobSpec& job);

/// Opens the job's training data.
std::shared_ptr<io::TokenBlend> training_data(const job::JobSpec& job, const io::DataFiles& files);

/// Says that many samples could hold more documents than the job lets them; none where few could.
std::optional<io::NoticeRecord> limited_packing_notice(const job::JobSpec& job, const io::TokenBlend& data);

/// Reads sample `cursor` of `source` as number 0, and those that follow; pairs with the `reference`'s
/// numbers.
train::ReadSample sample_reader(const train::Trainer& trainer, std::shared_ptr<io::TokenBlend> source,
                                std::int64_t cursor,
                                std::shared_ptr<const ReferenceTable> reference = nullptr);

/// A sample of some data.
struct DataPlace {
  std::shared_ptr<io::TokenBlend> data;
  std::int64_t cursor = 0;
};
/// As below, of the samples that `place_of` says, which count from 0 at the first pass. Without reference.
std::unique_ptr<train::BatchLoader> make_loader(const job::JobSpec& job, const train::Trainer& trainer,
                                                parallel::Pass pass, std::int64_t passes,
                                                std::function<DataPlace(std::int64_t sample)> place_of);

/// Makes the microbatches of `passes` passes from `source`, whose sample `cursor` is the first, and reads
/// `data.prefetch` of them ahead; of remote files it asks for samples further ahead than that. The loader
/// shares `source`: its thread may outlive it.
std::unique_ptr<train::BatchLoader> make_loader(const job::JobSpec& job, const train::Trainer& trainer,
                                                std::shared_ptr<io::TokenBlend> source, parallel::Pass pass,
                                                std::int64_t passes, std::int64_t cursor,
                                                std::shared_ptr<const ReferenceTable> reference = nullptr);

}  // namespace trainerd::core::run
