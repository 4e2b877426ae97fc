#pragma once

#include <cstdint>
#include <memory>

#include "core/job/job.h"
#include "core/train/batch_loader.h"
#include "core/train/trainer.h"
#include "io/tokens/token_blend.h"

namespace trainerd::core::run {

/// What the job's data is read as.
io::SampleShape sample_shape(const job::JobSpec& job);

/// Reads sample `cursor` of `source` as number 0, and those that follow.
train::ReadSample sample_reader(const train::Trainer& trainer, std::shared_ptr<io::TokenBlend> source,
                                std::int64_t cursor);

/// Makes the microbatches of `passes` passes from `source`, whose sample `cursor` is the first, and reads
/// `data.prefetch` of them ahead. The loader shares `source`: its thread may outlive it.
std::unique_ptr<train::BatchLoader> make_loader(const job::JobSpec& job, const train::Trainer& trainer,
                                                std::shared_ptr<io::TokenBlend> source, parallel::Pass pass,
                                                std::int64_t passes, std::int64_t cursor);

}  // namespace trainerd::core::run
