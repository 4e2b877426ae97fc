#include "core/run/worker/restore.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "core/hf/weight_source.h"
#include "io/checkpoint/checkpoint.h"
#include "io/s3_storage/s3_storage.h"
#include "kernels/base/error.h"
#include "kernels/base/segment.h"

namespace trainerd::core::run {

bool replicas_may_be_elsewhere(const Start& start) { return start.node_count < start.layout.grid.ranks(); }

void restore_state(const Start& start, std::vector<base::UniqueFd> held, const train::Snapshot& snapshot,
                   train::Trainer& trainer, kernels::Backend& backend, const io::FindS3& find_s3) {
  const bool begins = start.held.empty() && start.resume_path.empty();
  if (begins && start.weights_path.empty()) return trainer.initialise();
  if (begins && snapshot.has_base()) trainer.initialise_adapters();
  else trainer.initialise_tables();
  const auto load = [&](io::CheckpointReader& reader) { snapshot.load(backend, trainer.stream(), reader); };
  if (begins || snapshot.has_base()) {
    const std::unique_ptr<hf::WeightSource> weights = hf::open_weights(start.weights_path);
    snapshot.load_weights(
        backend, trainer.stream(),
        [&](const io::TensorSlice& box, std::span<std::byte> out) { weights->read(box, out); });
  }
  if (begins) {
    trainer.begin_averages();  // nothing is trained yet
  } else if (start.held.empty()) {
    io::CheckpointReader reader(start.resume_path, find_s3 ? io::remote_storages(find_s3) : io::OpenRemote{});
    load(reader);
  } else {
    base::check(held.size() == start.held.size(), "every snapshot to begin from comes with its memory");
    std::vector<base::Segment> memory;
    std::vector<io::ShardContent> shards;
    for (std::size_t i = 0; i < held.size(); ++i) {
      const std::span<std::byte> bytes =
          memory.emplace_back(base::Segment::attach(std::move(held[i]))).bytes();
      base::check(std::cmp_less_equal(start.held[i].bytes, bytes.size()), "a snapshot fits its memory");
      shards.push_back({bytes.first(static_cast<std::size_t>(start.held[i].bytes)), start.held[i].slices});
    }
    io::CheckpointReader reader("the snapshots of step " + std::to_string(start.step), shards);
    if (replicas_may_be_elsewhere(start)) snapshot.load_and_share(backend, trainer.stream(), reader);
    else load(reader);
  }
  trainer.publish();
}

}  // namespace trainerd::core::run
