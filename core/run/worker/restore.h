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

/// Whether ranks that hold the same state may be on several nodes: what one node's snapshots lack, another's
/// have. The same for all ranks of a run: they share what they hold, or none does.
bool replicas_may_be_elsewhere(const Start& start);

/// Gives the trainer the state that `start` says: from the snapshots in memory whose descriptors are `held`,
/// with what other nodes' replicas have in theirs,
/// from a checkpoint on disk, or what a run begins with: the weights at `start.weights_path`
/// (model.from), or, where that is empty, those drawn from the seed. The weights that adapters are trained
/// beside come from that path in any case. `find_s3`: for paths at s3://. Takes the descriptors. Throws
/// CheckpointError.
void restore_state(const Start& start, std::vector<base::UniqueFd> held, const train::Snapshot& snapshot,
                   train::Trainer& trainer, kernels::Backend& backend, const io::FindS3& find_s3 = {});

}  // namespace trainerd::core::run
