#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>

#include "core/rank/device_rank.h"
#include "core/rank/param_record.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/train/snapshot.h"
#include "io/checkpoint/compare.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/tensor_file.h"
#include "io/storage/storage.h"

// TRAINERD_STATE_JOB=job.yaml TRAINERD_STATE_OUT=DIR ./test_core "[.make-state]" writes the checkpoint of the
// job after step 10, with generated values: for tests with states too large to train.

namespace trainerd::core {
namespace {

/// A tensor's value at `index`, from 0 to 0.02: valid as a trainable weight and as a second moment.
float value_of(std::uint64_t tensor, std::uint64_t index) {
  std::uint64_t x = tensor + index * 0x9e3779b97f4a7c15;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return static_cast<float>(x ^ (x >> 31)) * 0.02F * 0x1p-64F;
}

TEST_CASE("make a checkpoint of generated state", "[.make-state]") {
  const char *job_path = std::getenv("TRAINERD_STATE_JOB"), *out = std::getenv("TRAINERD_STATE_OUT");
  REQUIRE((job_path != nullptr && out != nullptr));
  std::ostringstream yaml;
  yaml << std::ifstream(job_path).rdbuf();
  const job::JobSpec job = spec::parse_job(yaml.str(), job_path);
  const parallel::Topology topology = spec::job_topology(job, spec::Absent::assumed);
  const parallel::Layout layout = rank::layout_of(job, topology);
  REQUIRE(layout.grid.ranks() == 1);
  std::vector<io::TensorSlice> slices = rank::saved_slices(job, layout, 0, topology.device);
  std::vector<io::StoredTensor> stored;
  for (const io::TensorSlice& slice : slices)
    stored.push_back({.name = slice.stored_name(), .dtype = slice.dtype, .shape = slice.shape});
  const std::unique_ptr<io::Storage> storage = io::open_storage(out);
  storage->make_folder("");
  io::TensorFileWriter writer(
      std::string(out) + "/shard-00000.safetensors",
      io::lay_out_safetensors(std::move(stored), {{"format", "trainerd"}}, io::Gaps::none));
  std::vector<float> values;
  for (io::TensorSlice& slice : slices) {
    REQUIRE(slice.dtype == kernels::DType::f32);
    const std::uint64_t tensor = std::hash<std::string>()(slice.name);
    std::uint64_t at = 0;
    io::Xxh3Of64 hash;
    io::for_each_piece(slice, io::kTensorPieceBytes, [&](const io::TensorSlice& piece) {
      values.resize(static_cast<std::size_t>(io::tensor_bytes(piece.dtype, piece.shape)) / sizeof(float));
      for (float& value : values) value = value_of(tensor, at++);
      writer.append(std::as_bytes(std::span(values)));
      hash.update(std::as_bytes(std::span(values)));
    });
    slice.xxh3 = hash.value();
  }
  const io::WrittenShard shard{writer.finish(), slices};
  io::TrainingState state;
  state.step = 10;
  state.cursor = 10 * job.batch.global;
  state.seed = job.seed;
  state.identity = train::checkpoint_identity(job);
  state.job = spec::to_yaml(job);
  const std::string manifest = io::to_json(state, std::span(&shard, 1));
  storage->write(io::kManifestFile, io::bytes_of(manifest));
  storage->write(io::kMarkerFile, io::bytes_of(io::xxh3_hex(io::bytes_of(manifest)) + "\n"));
}

}  // namespace
}  // namespace trainerd::core
