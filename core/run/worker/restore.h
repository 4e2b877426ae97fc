#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/run/wire/messages.h"
#include "core/train/snapshot.h"
#include "core/train/trainer.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// Gives the trainer the state that `start` says: from the snapshots in memory whose descriptors are `held`,
/// from a checkpoint on disk, or what a run begins with: the weights at `start.weights_path`
/// (model.from), or, where that is empty, those drawn from the seed. The weights that adapters are trained
/// beside come from that path in any case. Takes the descriptors. Throws CheckpointError.
void restore_state(const Start& start, std::vector<base::UniqueFd> held, const train::Snapshot& snapshot,
                   train::Trainer& trainer, kernels::Backend& backend);

}  // namespace trainerd::core::run
