#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/files.h"
#include "io/hash/hash.h"
#include "io/storage/memory_file.h"
#include "io/storage/storage.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

using Index = std::vector<std::int64_t>;

/// A box [begin, end) per dimension, in global coordinates.
struct Box {
  Index begin, end;
  bool operator==(const Box&) const = default;
};

Box box_of(const TensorSlice& slice) {
  Box box{slice.begin, slice.begin};
  for (std::size_t d = 0; d < box.end.size(); ++d) box.end[d] += slice.shape[d];
  return box;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box both = a;
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    both.begin[d] = std::max(a.begin[d], b.begin[d]);
    both.end[d] = std::min(a.end[d], b.end[d]);
    if (both.begin[d] >= both.end[d]) return std::nullopt;
  }
  return both;
}

// Appends `whole` without `part`, which lies inside it, to `rest`, as boxes that do not overlap.
void subtract(Box whole, const Box& part, std::vector<Box>& rest) {
  for (std::size_t d = 0; d < whole.begin.size(); ++d) {
    if (whole.begin[d] < part.begin[d]) {
      rest.push_back(whole);
      rest.back().end[d] = part.begin[d];
    }
    if (part.end[d] < whole.end[d]) {
      rest.push_back(whole);
      rest.back().begin[d] = part.end[d];
    }
    whole.begin[d] = part.begin[d];
    whole.end[d] = part.end[d];
  }
}

// Returns the row-major index of `at` in `box`, in elements.
std::int64_t position_in(const Box& box, const Index& at) {
  std::int64_t position = 0;
  for (std::size_t d = 0; d < at.size(); ++d)
    position = position * (box.end[d] - box.begin[d]) + (at[d] - box.begin[d]);
  return position;
}

// Copies `part` from a file to `out`, by the longest runs that are contiguous in both. `stored` lies
// row-major in the file from `offset` on; `out` holds `wanted` row-major. Runs are copied in file order. If
// `part` is all of `stored`, `hash` (unless null) gets all its bytes.
void copy_part(const StoredFile& file, std::int64_t offset, const Box& stored, const Box& wanted,
               const Box& part, std::int64_t element_bytes, std::span<std::byte> out, Xxh3Of64* hash) {
  std::size_t outer = part.begin.size();  // dimensions from here on form one run
  std::int64_t run = 1;
  while (outer > 0) {
    const std::size_t d = outer - 1;
    const std::int64_t size = part.end[d] - part.begin[d];
    run *= size;
    outer = d;
    if (size != stored.end[d] - stored.begin[d] || size != wanted.end[d] - wanted.begin[d]) break;
  }
  Index at = part.begin;
  for (;;) {
    const auto to = static_cast<std::size_t>(position_in(wanted, at) * element_bytes);
    const std::span<std::byte> bytes = out.subspan(to, static_cast<std::size_t>(run * element_bytes));
    file.read(offset + position_in(stored, at) * element_bytes, bytes);
    if (hash != nullptr) hash->update(bytes);
    std::size_t d = outer;
    while (d > 0 && ++at[d - 1] == part.end[d - 1]) {
      at[d - 1] = part.begin[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

}  // namespace

bool covers(std::span<const TensorSlice> held, const TensorSlice& box) {
  std::vector<Box> missing;
  if (std::find(box.shape.begin(), box.shape.end(), 0) == box.shape.end()) missing.push_back(box_of(box));
  for (const TensorSlice& slice : held) {
    if (missing.empty()) break;
    if (slice.name != box.name || slice.dtype != box.dtype || slice.logical_shape != box.logical_shape)
      continue;
    const Box has = box_of(slice);
    std::vector<Box> rest;
    for (Box& piece : missing)
      if (const std::optional<Box> part = intersect(piece, has)) subtract(std::move(piece), *part, rest);
      else rest.push_back(std::move(piece));
    missing = std::move(rest);
  }
  return missing.empty();
}

bool overlap(const TensorSlice& a, const TensorSlice& b) {
  return a.name == b.name && a.begin.size() == b.begin.size() && intersect(box_of(a), box_of(b));
}

struct CheckpointReader::State {
  struct Shard {
    std::unique_ptr<StoredFile> file;
    std::map<std::string, StoredTensor> tensors;
    std::int64_t data_offset = 0;
  };
  std::string name;                                // for messages
  std::unique_ptr<Storage> storage;                // null if the shards are in memory
  std::vector<std::span<const std::byte>> memory;  // per shard
  Manifest manifest;
  std::vector<Shard> shards;  // opened at the first read
  std::map<std::string, std::vector<std::size_t>>
      slices;  // per tensor, as indices into the manifest's slices

  void index_slices() {
    shards.resize(manifest.shards.size());
    for (std::size_t i = 0; i < manifest.slices.size(); ++i)
      slices[manifest.slices[i].second.name].push_back(i);
  }

  std::string path_of(int shard) const {
    const std::string& file = manifest.shards[static_cast<std::size_t>(shard)].file;
    return storage ? storage->path_of(file) : name + ": " + file;
  }

  std::unique_ptr<StoredFile> open(int shard) const {
    if (storage) return storage->open(manifest.shards[static_cast<std::size_t>(shard)].file);
    return std::make_unique<MemoryFile>(memory[static_cast<std::size_t>(shard)]);
  }

  const Shard& shard(int index) {
    Shard& shard = shards[static_cast<std::size_t>(index)];
    if (!shard.file) {
      std::unique_ptr<StoredFile> file = open(index);
      SafetensorsHeader header = read_header(*file, path_of(index));
      for (StoredTensor& tensor : header.tensors) shard.tensors.emplace(tensor.name, std::move(tensor));
      shard.data_offset = header.data_offset;
      shard.file = std::move(file);
    }
    return shard;
  }

  void read_overlap(std::size_t index, const Box& wanted, const Box& part, std::span<std::byte> out) {
    const auto& [number, slice] = manifest.slices[index];
    const Shard& from = shard(number);
    const auto found = from.tensors.find(slice.stored_name());
    if (found == from.tensors.end() || found->second.dtype != slice.dtype ||
        found->second.shape != slice.shape)
      throw base::checkpoint_error(path_of(number) + ": does not hold " + slice.name +
                                   " as the manifest says");
    const Box stored = box_of(slice);
    const bool whole = slice.xxh3 && part == stored;
    Xxh3Of64 hash;
    copy_part(*from.file, from.data_offset + found->second.begin, stored, wanted, part,
              kernels::size_of(slice.dtype), out, whole ? &hash : nullptr);
    if (whole && hash.value() != *slice.xxh3)
      throw base::checkpoint_error(
          fmt::format("{}: is damaged: the checksum of {} is {:016x}, the manifest says {:016x}",
                      path_of(number), slice.name, hash.value(), *slice.xxh3));
  }
};

CheckpointReader::CheckpointReader(const std::string& path, const OpenRemote& remote)
    : state_(std::make_unique<State>()) {
  state_->storage = open_storage(path, remote);
  state_->name = state_->storage->path_of("");
  state_->manifest = read_manifest(*state_->storage);
  state_->index_slices();
}

CheckpointReader::CheckpointReader(std::string name, std::span<const ShardContent> shards)
    : state_(std::make_unique<State>()) {
  state_->name = std::move(name);
  for (const ShardContent& shard : shards) {
    const int index = static_cast<int>(state_->memory.size());
    state_->memory.push_back(shard.bytes);
    state_->manifest.shards.push_back(
        {fmt::format("shard {}", index), static_cast<std::int64_t>(shard.bytes.size()), ""});
    for (const TensorSlice& slice : shard.slices) state_->manifest.slices.emplace_back(index, slice);
  }
  state_->index_slices();
}

CheckpointReader::~CheckpointReader() = default;

const Manifest& CheckpointReader::manifest() const { return state_->manifest; }

bool CheckpointReader::holds(const std::string& tensor) const { return state_->slices.contains(tensor); }

void CheckpointReader::read(const TensorSlice& box, std::span<std::byte> out) {
  const std::string& where = state_->name;
  const auto found = state_->slices.find(box.name);
  if (found == state_->slices.end()) throw base::checkpoint_error(where + ": holds no tensor " + box.name);
  const TensorSlice& known = state_->manifest.slices[found->second.front()].second;
  if (known.dtype != box.dtype || known.logical_shape != box.logical_shape)
    throw base::checkpoint_error(
        fmt::format("{}: {} is {} {} there, {} {} here: the job's model differs from the one that was saved",
                    where, box.name, kernels::name_of(known.dtype), known.logical_shape,
                    kernels::name_of(box.dtype), box.logical_shape));
  base::check(box.begin.size() == box.logical_shape.size() && box.shape.size() == box.logical_shape.size() &&
                  std::cmp_equal(out.size(), tensor_bytes(box.dtype, box.shape)),
              "a box to read has the dimensions of its tensor and a destination of its size");
  const Box wanted = box_of(box);
  std::vector<Box> missing;
  if (!out.empty()) missing.push_back(wanted);
  for (const std::size_t index : found->second) {
    const Box held = box_of(state_->manifest.slices[index].second);
    std::vector<Box> rest;
    for (const Box& piece : missing) {
      const std::optional<Box> part = intersect(piece, held);
      if (part) state_->read_overlap(index, wanted, *part, out);
      if (part) subtract(piece, *part, rest);
      else rest.push_back(piece);
    }
    missing = std::move(rest);
    if (missing.empty()) return;
  }
  if (!missing.empty())
    throw base::checkpoint_error(fmt::format("{}: no shard holds {} from {} to {}", where, box.name,
                                             missing.front().begin, missing.front().end));
}

}  // namespace trainerd::io
