#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/job/job.h"
#include "core/train/batch_loader.h"
#include "core/train/trainer.h"
#include "io/records/records.h"
#include "io/tokens/token_blend.h"

namespace trainerd::core::run {

/// What the job's data is read as.
io::SampleShape sample_shape(const job::JobSpec& job);

/// Says that many samples could hold more documents than the job lets them; none where few could.
std::optional<io::NoticeRecord> limited_packing_notice(const job::JobSpec& job, const io::TokenBlend& data);

/// Reads sample `cursor` of `source` as number 0, and those that follow.
train::ReadSample sample_reader(const train::Trainer& trainer, std::shared_ptr<io::TokenBlend> source,
                                std::int64_t cursor);

/// Makes the microbatches of `passes` passes from `source`, whose sample `cursor` is the first, and reads
/// `data.prefetch` of them ahead. The loader shares `source`: its thread may outlive it.
std::unique_ptr<train::BatchLoader> make_loader(const job::JobSpec& job, const train::Trainer& trainer,
                                                std::shared_ptr<io::TokenBlend> source, parallel::Pass pass,
                                                std::int64_t passes, std::int64_t cursor);

}  // namespace trainerd::core::run
