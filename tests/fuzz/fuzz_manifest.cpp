#include <cstdint>
#include <cstdlib>
#include <string>

#include "io/checkpoint/checkpoint.h"
#include "kernels/base/error.h"

// A manifest of any bytes: only a CheckpointError may be thrown. An accepted manifest survives a round trip,
// and every slice lies inside its tensor and in an existing shard.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainerd;
  try {
    const io::Manifest manifest = io::parse_manifest(std::string(reinterpret_cast<const char*>(data), size));
    for (const auto& [shard, slice] : manifest.slices) {
      if (shard < 0 || static_cast<std::size_t>(shard) >= manifest.shards.size()) std::abort();
      for (std::size_t d = 0; d < slice.logical_shape.size(); ++d)
        if (slice.begin[d] < 0 || slice.shape[d] < 0 ||
            slice.begin[d] + slice.shape[d] > slice.logical_shape[d])
          std::abort();
    }
    const std::string text = io::to_json(manifest);
    if (io::to_json(io::parse_manifest(text)) != text) std::abort();
  } catch (const base::CheckpointError&) {}
  return 0;
}
