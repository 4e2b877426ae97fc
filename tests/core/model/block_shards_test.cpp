// Block-wise tensors: a test-only optimizer keeps one value per block, which needs the whole block. No shard
// may end inside a block, and the numbers are the same on every layout.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/train/optimizer.h"
#include "core/train/param_placement.h"
#include "core/train/snapshot.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/meta/meta_backend.h"
#include "kernels/tensor/rng.h"
#include "parallel/group/world.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

using parallel::Granularity;
using parallel::TensorPlacement;

constexpr parallel::BlockShape kBlock{16, 32};

/// Block-wise matrices split by rows, by columns and not at all, with smaller blocks at their ends, between
/// vectors that may be cut at any element.
std::vector<core::model::ParamInfo> block_params() {
  const auto blocks = [](const std::string& name, kernels::Shape shape, TensorPlacement placement, int dim,
                         std::vector<parallel::SplitSegment> segments) {
    return core::model::ParamInfo{.name = name,
                                  .shard = {.logical = shape,
                                            .placement = placement,
                                            .dim = dim,
                                            .segments = std::move(segments),
                                            .granularity = Granularity::block,
                                            .block = kBlock},
                                  .init_stddev = 0.1f,
                                  .unit = 1};
  };
  const auto vector = [](const std::string& name, std::int64_t size, std::size_t unit) {
    core::model::ParamInfo info;
    info.name = name, info.shard.logical = {size}, info.init_stddev = 0.1f, info.unit = unit;
    return info;
  };
  return {vector("first.norm", 37, 0),
          blocks("rows.weight", {192, 64}, TensorPlacement::shard, 0, {{128, 32}, {64, 32}}),
          vector("between.bias", 5, 1),
          blocks("columns.weight", {80, 128}, TensorPlacement::shard, 1, {{128, 1}}),
          blocks("whole.weight", {40, 70}, TensorPlacement::replicate, 0, {}),
          vector("last.bias", 19, 1)};
}

/// Elements by name and logical index, and one value per block by the block's row and column.
struct Blockwise {
  std::map<std::string, std::map<std::int64_t, float>> elements;
  std::map<std::string, std::map<std::pair<std::int64_t, std::int64_t>, float>> scales;
  bool operator==(const Blockwise&) const = default;
};

template <class Map, class Key>
void add_value(Map& values, const Key& key, float value) {
  const auto [at, fresh] = values.emplace(key, value);
  if (!fresh && at->second != value) throw std::logic_error("a value differs between its holders");
}

/// Updates each weight by its gradient divided by the block's largest gradient.
void scale_by_block(const core::model::ParamView& view, Blockwise& result, std::mutex& mutex) {
  for (const core::model::StateRun& run : view.state_runs()) {
    const core::model::ParamInfo& info = view.info(run.id);
    if (info.shard.granularity != Granularity::block) continue;
    const core::model::StatePart& part = view.state_parts()[run.part];
    const kernels::Shape& logical = info.shard.logical;
    const std::int64_t row = run.box.begin[0], column = run.box.begin[1], rows = run.box.shape[0],
                       columns = run.box.shape[1];
    const auto ends = [](std::int64_t at, std::int64_t block, std::int64_t all) {
      return at % block == 0 || at == all;
    };
    if (!ends(row, kBlock.rows, logical[0]) || !ends(row + rows, kBlock.rows, logical[0]) ||
        !ends(column, kBlock.columns, logical[1]) || !ends(column + columns, kBlock.columns, logical[1]))
      throw std::logic_error(info.name + ": a shard ends within a block");
    const auto each = [&](std::int64_t i, std::int64_t j, const auto& act) {
      for (std::int64_t r = i; r < std::min(i + kBlock.rows, rows); ++r)
        for (std::int64_t c = j; c < std::min(j + kBlock.columns, columns); ++c)
          act(run.begin + r * columns + c);
    };
    for (std::int64_t i = 0; i < rows; i += kBlock.rows)
      for (std::int64_t j = 0; j < columns; j += kBlock.columns) {
        float scale = 0;
        each(i, j, [&](std::int64_t at) { scale = std::max(scale, std::abs(part.grads.as<float>()[at])); });
        each(i, j, [&](std::int64_t at) {
          part.master.as<float>()[at] -= 0.01f * part.grads.as<float>()[at] / scale;
          part.states[0].as<float>()[at] = scale;
        });
        const std::scoped_lock lock(mutex);
        add_value(result.scales[info.name], std::pair((row + i) / kBlock.rows, (column + j) / kBlock.columns),
                  scale);
      }
  }
}

struct SavedBlocks {
  std::vector<std::byte> bytes;
  std::vector<io::TensorSlice> slices;
};

core::job::JobSpec block_job(const std::string& parallel) {
  return core::spec::parse_job(
      "name: blocks\nseed: 7\ndevice: cpu\n"
      "model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 96, seq_len: 16}\n"
      "batch: {global: 12, micro: 1}\nprecision: fp32\nsteps: 1\ndata: {format: synthetic}\n"
      "optimizer: {name: adamw, lr: 1.0e-3, schedule: {kind: constant}}\n"
      "parallel: {bucket_bytes: 16384, " +
          parallel + "}\n",
      "blocks.yaml");
}

/// A rank's parameters in one view, built as plans and runs build it.
struct BlockStore {
  BlockStore(const core::job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
             parallel::World& world, kernels::Backend& backend, kernels::Arena& persistent)
      : groups(layout, rank, job.model, world, backend),
        params(block_params(), {{{0, 1, 2, 3, 4, 5}, {"scale"}, Granularity::element, true}}, job.precision,
               core::train::param_placement(layout, groups, 1), backend,
               {persistent, persistent, persistent}) {}
  core::train::RankGroups groups;
  core::model::ParamStore params;
};

/// One step with gradients that are functions of (parameter, logical element), starting from `saved` if
/// given. `out` gets each rank's saved state.
Blockwise block_step(const std::string& parallel, const std::vector<SavedBlocks>* saved = nullptr,
                     std::vector<SavedBlocks>* out = nullptr) {
  const core::job::JobSpec job = block_job(parallel);
  parallel::Topology topology = test::cpu_topology(1);
  topology.devices_per_node = topology.nodes = 64;
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  if (out != nullptr) out->resize(static_cast<std::size_t>(layout.grid.ranks()));
  Blockwise result;
  std::mutex mutex;
  parallel::LocalWorld local(layout.grid.ranks());
  local.run([&](std::int64_t rank) {
    kernels::Arena planned = kernels::Arena::dry("persistent", topology.device.alignment);
    {
      kernels::MetaBackend meta(topology.device);
      parallel::MetaWorld world(rank);
      const BlockStore store(job, layout, rank, world, meta, planned);
    }
    base::ThreadPool pool(1);
    kernels::CpuBackend backend(topology.device, pool);
    const kernels::Buffer memory = backend.allocate(kernels::MemoryKind::device, planned.high_water());
    kernels::Arena persistent("persistent", memory.data(), memory.bytes(), topology.device.alignment);
    kernels::Arena scratch = kernels::Arena::dry("scratch");
    const auto stream = backend.make_stream("compute", &scratch);
    test::FunctionWorld world(
        [&](kernels::Backend& on, const std::string& name, const std::vector<std::int64_t>& members) {
          return local.communicator(rank, on, members, name);
        });
    BlockStore store(job, layout, rank, world, backend, persistent);
    if (persistent.high_water() != planned.high_water())
      throw std::logic_error("the plan's bytes are not the run's");
    core::model::ParamStore& params = store.params;
    const core::model::ParamView& view = params.view(0);
    const core::model::ParamPlacement& place = view.placement();
    params.initialise(*stream, job.seed);
    if (saved != nullptr) {
      std::vector<io::ShardContent> contents;
      for (const SavedBlocks& shard : *saved) contents.push_back({shard.bytes, shard.slices});
      io::CheckpointReader reader("saved", contents);
      core::train::Snapshot(params).load(backend, *stream, reader);
    }
    params.begin_step(*stream, 1);
    for (core::model::ParamId id = 0; id < params.count(); ++id) {
      const core::model::ParamInfo& info = params.info(id);
      const kernels::Tensor grad = params.grad(id);
      params.grad_mode(id);
      std::fill_n(grad.as<float>(), grad.numel(), 0.0f);
      const bool adds =
          place.dp.inner->rank() == 0 && (place.dp.outer == nullptr || place.dp.outer->rank() == 0);
      for (const parallel::LocalRun& run :
           parallel::local_runs(info.shard, place.tp, place.tp_rank, 0, grad.numel()))
        for (std::int64_t i = 0; adds && i < run.count; ++i) {
          const std::int64_t width = run.box.shape.back();
          const std::int64_t row = run.box.shape.size() == 2 ? run.box.begin[0] + i / width : 0;
          const std::int64_t at =
              row * info.shard.logical[info.shard.logical.ndim - 1] + run.box.begin.back() + i % width;
          grad.as<float>()[run.begin + i] =
              kernels::normal_at(kernels::hash_name(info.name, 3), static_cast<std::uint64_t>(at));
        }
    }
    params.reduce_complete_grads();
    params.finish_grads();
    scale_by_block(view, result, mutex);
    params.publish(*stream);
    params.finish_gathers(*stream);
    if (out != nullptr) {
      const core::train::Snapshot snapshot(params);
      SavedBlocks& shard = (*out)[static_cast<std::size_t>(rank)];
      shard = {std::vector<std::byte>(static_cast<std::size_t>(snapshot.bytes())), snapshot.slices()};
      snapshot.fill(backend, *stream, shard.bytes);
    }
    const std::scoped_lock lock(mutex);
    for (const core::model::StateRun& run : view.state_runs())
      for (std::int64_t i = 0; i < run.count; ++i)
        add_value(result.elements[view.info(run.id).name], view.update_range(run).logical_index(i),
                  view.state_parts()[run.part].master.as<float>()[run.begin + i]);
  });
  return result;
}

}  // namespace

TEST_CASE("no shard of a tensor of blocks ends within one, and block-wise scales are the same on any layout",
          "[blocks]") {
  std::vector<SavedBlocks> saved;
  const Blockwise one = block_step("", nullptr, &saved);
  CHECK(one.scales.at("rows.weight").size() == 12 * 2);
  CHECK(one.scales.at("columns.weight").size() == 5 * 4);
  CHECK(one.scales.at("whole.weight").size() == 3 * 3);  // 40 x 70: the last ones have 8 rows, 6 columns
  CHECK(one.elements.at("whole.weight").size() == 40 * 70);
  const Blockwise two = block_step("", &saved);
  CHECK(two.scales == one.scales);
  CHECK(two.elements != one.elements);
  for (const std::string parallel : {"dp: 2, zero: 0", "dp: 2, zero: 1", "dp: 3, zero: 2", "dp: 3, zero: 3",
                                     "tp: 2", "tp: 4", "tp: 2, dp: 3, zero: 3", "tp: 4, dp: 2, zero: 1",
                                     "dp: 4, zero: 2, zero_group: 2", "dp: 12, zero: 1"}) {
    CAPTURE(parallel);
    std::vector<SavedBlocks> here;
    CHECK(block_step(parallel, nullptr, &here) == one);
    // Its checkpoint resumes on one rank, and the checkpoint of one rank resumes on this layout.
    CHECK(block_step("", &here) == two);
    CHECK(block_step(parallel, &saved) == two);
  }
}

TEST_CASE("a cut over tp that ends within a block is refused", "[blocks]") {
  parallel::ShardSpec rows{.logical = {96, 64},
                           .placement = TensorPlacement::shard,
                           .dim = 0,
                           .segments = {{96, 1}},
                           .granularity = Granularity::block,
                           .block = kBlock};
  CHECK(parallel::shard_problem(rows, 1).empty());
  CHECK(parallel::shard_problem(rows, 3).empty());
  CHECK(parallel::shard_problem(rows, 4) ==
        "tp 4 gives each rank 24 rows from 0 on, which are not whole blocks of 16 x 32");
  CHECK_THROWS_WITH(parallel::shard_pieces(rows, 4, 0),
                    Catch::Matchers::Contains("not whole blocks of 16 x 32"));
  rows.granularity = Granularity::element;
  CHECK(parallel::shard_problem(rows, 4).empty());
  parallel::ShardSpec columns = rows;
  columns.granularity = Granularity::block, columns.dim = 1, columns.segments = {{64, 1}};
  CHECK(parallel::shard_problem(columns, 2).empty());
  CHECK(parallel::shard_problem(columns, 4) ==
        "tp 4 gives each rank 16 columns from 0 on, which are not whole blocks of 16 x 32");
  // Padding must be whole blocks: 33 rows of a vocabulary over two ranks are refused.
  parallel::ShardSpec padded = rows;
  padded.granularity = Granularity::block, padded.logical = {33, 64}, padded.segments = {{33, 1}},
  padded.pad_to = 1;
  CHECK_FALSE(parallel::shard_problem(padded, 2).empty());
  padded.pad_to = 16;
  CHECK(parallel::shard_problem(padded, 2).empty());
  CHECK(parallel::part_multiple(padded, 2) == 16 * 64);
}
