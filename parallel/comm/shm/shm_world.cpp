#include "parallel/comm/shm/shm_world.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/memory/memory.h"
#include "parallel/comm/local_communicator.h"
#include "parallel/comm/shm/shared_communicator.h"

namespace trainerd::parallel {
namespace {

// Segment layout: this head, the WorldRegion, the groups in the layout's order.
struct alignas(64) SegmentHead {
  std::uint64_t layout_hash;
  std::int64_t ranks;
};
constexpr std::int64_t kHeadBytes = sizeof(SegmentHead);

GroupShape shape_of(const ShmGroup& group) {
  return GroupRegion::rounded(
      {static_cast<std::int64_t>(group.ranks.size()), group.chunk_bytes, group.ring_bytes});
}

// A group of one rank needs no memory.
std::int64_t bytes_of(const ShmGroup& group) {
  return group.ranks.size() < 2 ? 0 : GroupRegion::bytes(shape_of(group));
}

std::uint64_t hash_of(const ShmLayout& layout) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over everything that determines offsets and groups
  const auto mix = [&](std::uint64_t value) {
    for (int i = 0; i < 8; ++i) hash = (hash ^ ((value >> (8 * i)) & 0xff)) * 0x100000001b3u;
  };
  mix(static_cast<std::uint64_t>(layout.ranks));
  for (const ShmGroup& group : layout.groups) {
    mix(group.name.size());
    for (const char c : group.name) mix(static_cast<unsigned char>(c));
    mix(group.ranks.size());
    for (const std::int64_t rank : group.ranks) mix(static_cast<std::uint64_t>(rank));
    mix(static_cast<std::uint64_t>(group.chunk_bytes));
    mix(static_cast<std::uint64_t>(group.ring_bytes));
  }
  return hash;
}

WorldRegion world_of(const base::Segment& segment) {
  std::byte* base = segment.bytes().data();
  return {base + kHeadBytes, reinterpret_cast<const SegmentHead*>(base)->ranks};
}

}  // namespace

std::int64_t shm_bytes(const ShmLayout& layout) {
  std::int64_t bytes = kHeadBytes + WorldRegion::bytes(layout.ranks);
  for (const ShmGroup& group : layout.groups) bytes += bytes_of(group);
  return bytes;
}

base::Segment make_shm_segment(const ShmLayout& layout) {
  base::Segment segment = base::Segment::create("trainerd-comm", shm_bytes(layout));
  *reinterpret_cast<SegmentHead*>(segment.bytes().data()) = {hash_of(layout), layout.ranks};
  return segment;
}

void abort_shm(const base::Segment& segment, std::string_view why) { world_of(segment).abort(why); }

ShmWorld::ShmWorld(base::Segment segment, ShmLayout layout, std::int64_t rank, const ShmOptions& options)
    : segment_(std::move(segment)), layout_(std::move(layout)), rank_(rank), options_(options) {
  const bool fits = static_cast<std::int64_t>(segment_.bytes().size()) == shm_bytes(layout_);
  if (!fits || reinterpret_cast<const SegmentHead*>(segment_.bytes().data())->layout_hash != hash_of(layout_))
    throw base::comm_error(
        "the shared memory that rank " + std::to_string(rank) +
        " was given was made for another layout; agent and workers must be of one version and one job");
}

std::unique_ptr<Communicator> ShmWorld::communicator(kernels::Backend& backend,
                                                     const std::vector<std::int64_t>& group_ranks,
                                                     const std::string& name,
                                                     FlightRecorder* recorder) const {
  std::int64_t offset = kHeadBytes + WorldRegion::bytes(layout_.ranks);
  for (const ShmGroup& group : layout_.groups) {
    if (group.name != name || group.ranks != group_ranks) {
      offset += bytes_of(group);
      continue;
    }
    const auto place = std::find(group_ranks.begin(), group_ranks.end(), rank_);
    base::check(place != group_ranks.end(), "a rank makes communicators of its own groups");
    if (group_ranks.size() == 1) return make_single_rank(backend);
    const GroupContext context{.world = world_of(segment_),
                               .group = GroupRegion(segment_.bytes().data() + offset, shape_of(group)),
                               .name = name,
                               .ranks = group_ranks,
                               .rank = place - group_ranks.begin(),
                               .deadline_seconds = options_.deadline_seconds,
                               .spin_seconds = options_.spin_seconds};
    return make_shared_communicator(context, backend, recorder);
  }
  base::check(false, "a communicator's group is in the layout of its segment");
  return nullptr;
}

void ShmWorld::abort(std::string_view why) const { world_of(segment_).abort(why); }

std::string ShmWorld::ended() const {
  const WorldRegion world = world_of(segment_);
  return world.aborted() ? world.abort_text() : std::string();
}

}  // namespace trainerd::parallel
