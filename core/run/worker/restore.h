#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/run/wire/messages.h"
#include "core/train/snapshot.h"
#include "core/train/trainer.h"
#include "io/s3/settings.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// True if ranks on several nodes may hold the same state, so that a snapshot on one node completes
/// another's. The result is the same for all ranks of a run: either all share their state, or none does.
bool replicas_may_be_elsewhere(const Start& start);

/// Sets the trainer's state according to `start`: from the snapshots in memory with the descriptors `held`,
/// completed by replicas on other nodes; from a checkpoint; or the initial state. The latter is the weights
/// at `start.weights_path` (model.from) or, without a path, drawn from the seed. Base weights of adapters
/// always come from that path. `find_s3`: for s3:// paths. Takes the descriptors. Throws CheckpointError.
void restore_state(const Start& start, std::vector<base::UniqueFd> held, const train::Snapshot& snapshot,
                   train::Trainer& trainer, kernels::Backend& backend, const io::FindS3& find_s3 = {});

}  // namespace trainerd::core::run
