#include "core/rank/gemm_algorithms.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <span>

#include "core/rank/record.h"
#include "core/train/rank_schedule.h"

namespace trainerd::core::rank {

using parallel::Axis;

std::vector<kernels::OpClass> gemms_of_all_ranks(const job::JobSpec& job, const parallel::Layout& layout,
                                                 const kernels::Target& target) {
  std::set<kernels::OpClass> gemms;
  for (std::int64_t rank = 0; rank < layout.grid.ranks(); ++rank) {
    const auto place = layout.grid.coordinate(rank);
    const std::int64_t tp_rank = place[static_cast<std::size_t>(Axis::tp)];
    if (place[static_cast<std::size_t>(Axis::dp)] != 0 || place[static_cast<std::size_t>(Axis::cp)] != 0 ||
        (tp_rank != 0 && tp_rank != layout.options.tp - 1))
      continue;
    const RankRecord record =
        record_rank(job, layout, rank, target,
                    train::count_slots(job, layout, place[static_cast<std::size_t>(Axis::pp)]));
    for (const RecordedOp& op : record.ops)
      if (op.what.kind == kernels::OpClass::Kind::gemm && op.what.format == kernels::GemmFormat::plain)
        gemms.insert(op.what);
  }
  return {gemms.begin(), gemms.end()};
}

std::string share_text(const std::string& text, kernels::Backend& backend, parallel::Communicator& world) {
  kernels::Arena none;
  const std::unique_ptr<kernels::Stream> stream = backend.make_stream("share", &none);
  const auto broadcast = [&](std::span<std::byte> bytes) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    const kernels::Buffer memory = backend.allocate(kernels::MemoryKind::device, size);
    const kernels::Tensor x{memory.data(), kernels::DType::u8, {size}};
    backend.write(*stream, bytes, x);
    world.broadcast(*stream, x, 0, {.label = "gemm_algorithms"})->wait(*stream);
    backend.read_back(*stream, x, bytes);
  };
  std::int64_t size = static_cast<std::int64_t>(text.size());
  broadcast(std::as_writable_bytes(std::span(&size, 1)));
  std::string shared = text;
  shared.resize(static_cast<std::size_t>(size));
  if (size > 0) broadcast(std::as_writable_bytes(std::span(shared)));
  return shared;
}

}  // namespace trainerd::core::rank
