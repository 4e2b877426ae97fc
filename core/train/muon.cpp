#include "core/train/muon.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/train/newton_schulz.h"
#include "kernels/tensor/rng.h"

namespace trainerd::core::train {
namespace {

using namespace kernels;

constexpr std::int64_t kShareAlign = kAlignment / 4;  // elements in a cache line of fp32

/// tp, if it cuts the matrices, then the groups that a sharded state is cut over, in the order of
/// `DataParallelGroups::part`.
std::vector<parallel::Communicator*> levels(const model::ParamPlacement& placement,
                                            parallel::Communicator& tp) {
  std::vector<parallel::Communicator*> groups;
  if (placement.tp > 1) groups.push_back(&tp);
  if (!placement.shards(1)) return groups;
  groups.push_back(placement.dp.inner);
  if (placement.dp.shards_outside()) groups.push_back(placement.dp.outer);
  return groups;
}

/// Calls `act(part, bucket, begin, end)` for the piece of [begin, end) of the flat arrays in each part of
/// each bucket.
template <class Act>
void for_each_share(const parallel::BucketLayout& buckets, std::int64_t begin, std::int64_t end,
                    const Act& act) {
  auto it =
      std::upper_bound(buckets.buckets.begin(), buckets.buckets.end(), begin,
                       [](std::int64_t at, const parallel::Bucket& b) { return at < b.begin + b.size; });
  for (; it != buckets.buckets.end() && it->begin < end; ++it) {
    const std::int64_t size = it->size / buckets.parts, from = std::max(begin, it->begin);
    const auto bucket = static_cast<std::size_t>(it - buckets.buckets.begin());
    for (std::int64_t p = (from - it->begin) / size; p < buckets.parts && it->begin + p * size < end; ++p)
      act(p, bucket, std::max(from, it->begin + p * size), std::min(end, it->begin + (p + 1) * size));
  }
}

}  // namespace

Muon::Muon(const job::JobSpec& job, model::ParamView& view, parallel::Communicator& tp, Backend& backend)
    : options_(job.optimizer),
      rounding_(job.precision.rounding),
      view_(view),
      backend_(backend),
      ranks_(levels(view.placement(), tp)) {
  std::vector<Matrix> all = without_held(matrices(), job);
  // The matrices of a round have about the same cost.
  std::stable_sort(all.begin(), all.end(), [](const Matrix& a, const Matrix& b) {
    return newton_schulz_flops(a.whole.rows, a.whole.columns) >
           newton_schulz_flops(b.whole.rows, b.whole.columns);
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto owner = static_cast<std::int64_t>(i) % ranks_.size();
    if (owner == 0) {
      Round& round = rounds_.emplace_back();
      const std::size_t end = std::min(all.size(), i + static_cast<std::size_t>(ranks_.size()));
      for (std::size_t j = i; j < end; ++j)
        round.share = std::max(round.share, *std::max_element(all[j].shares.begin(), all[j].shares.end()));
      round.share = align_up(round.share, kShareAlign);
    }
    add_pieces(rounds_.back(), all[i], owner, job);
    if (owner == ranks_.rank()) take_ownership(rounds_.back(), all[i]);
  }
}

std::int64_t Muon::parts() const { return view_.placement().shards(1) ? view_.placement().dp.parts() : 1; }

std::vector<Muon::Matrix> Muon::without_held(std::vector<Matrix> all, const job::JobSpec& job) {
  if (parts() == 1 || view_.placement().tp > 1) return all;
  std::vector<Matrix> others;
  for (auto begin = all.begin(); begin != all.end();) {
    const auto end =
        std::find_if(begin, all.end(), [&](const Matrix& matrix) { return matrix.id != begin->id; });
    std::vector<std::int64_t> held(static_cast<std::size_t>(parts()), 0);  // by part
    std::int64_t whole = 0;
    for (auto matrix = begin; matrix != end; ++matrix)
      for (std::size_t part = 0; part < held.size(); ++part)
        if (matrix->shares[part] == matrix->whole.local_count) ++held[part], ++whole;
    const bool alike = std::all_of(held.begin(), held.end(), [&](std::int64_t n) { return n == held[0]; });
    if (whole == end - begin && alike) {
      const auto mine = static_cast<std::size_t>(view_.placement().dp.part());
      for (; begin != end; ++begin)
        if (begin->shares[mine] > 0) add_held(*begin, job);
    } else {
      std::move(begin, end, std::back_inserter(others));
      begin = end;
    }
  }
  return others;
}

void Muon::add_held(const Matrix& matrix, const job::JobSpec& job) {
  Round round;
  round.exchanges = false, round.share = align_up(matrix.whole.local_count, kShareAlign);
  add_pieces(round, matrix, 0, job);
  round.rows = matrix.whole.rows, round.columns = matrix.whole.columns;
  round.boxes = round.all_boxes = {{0, 0, 0, round.rows, round.columns}};
  rounds_.push_back(std::move(round));
}

std::vector<Muon::Matrix> Muon::matrices() const {
  std::vector<Matrix> all;
  for (const model::ParamId id : view_.ids())
    for (const parallel::WholeMatrix& whole :
         parallel::whole_matrices(view_.info(id).shard, view_.placement().tp)) {
      Matrix& matrix = all.emplace_back(Matrix{id, whole, {}});
      matrix.shares.assign(static_cast<std::size_t>(parts()), 0);
      const std::int64_t begin = view_.flat_begin(id) + whole.local_begin;
      if (parts() == 1) matrix.shares[0] = whole.local_count;
      else
        for_each_share(view_.buckets(), begin, begin + whole.local_count,
                       [&](std::int64_t part, std::size_t, std::int64_t from, std::int64_t to) {
                         matrix.shares[static_cast<std::size_t>(part)] += to - from;
                       });
    }
  return all;
}

void Muon::add_pieces(Round& round, const Matrix& matrix, std::int64_t owner, const job::JobSpec& job) const {
  const model::ParamPlacement& p = view_.placement();
  const parallel::ShardSpec& shard = view_.info(matrix.id).shard;
  const std::int64_t offset = view_.flat_begin(matrix.id), begin = offset + matrix.whole.local_begin;
  std::int64_t at = owner * round.share;
  const auto add = [&](std::size_t part, std::int64_t from, std::int64_t to) {
    const std::int64_t part_begin = view_.state_parts()[part].flat_begin;
    const double tall = static_cast<double>(matrix.whole.rows) / static_cast<double>(matrix.whole.columns);
    Piece piece{
        part, from - part_begin, to - from, at, {}, static_cast<float>(std::sqrt(std::max(1.0, tall)))};
    for (parallel::LocalRun& run : parallel::local_runs(shard, p.tp, p.tp_rank, from - offset, to - from)) {
      UpdateRange range =
          view_.update_range({matrix.id, part, offset + run.begin - from, run.count, std::move(run.box)});
      range.weight_decay *= static_cast<float>(options_.weight_decay);
      range.key = mix_keys(range.key, job.seed);
      piece.ranges.push_back(range);
    }
    at += to - from;
    round.pieces.push_back(std::move(piece));
  };
  // A sharded state is in parts by bucket, even if one rank has all of them.
  if (!p.shards(1)) return add(0, begin, begin + matrix.whole.local_count);
  for_each_share(view_.buckets(), begin, begin + matrix.whole.local_count,
                 [&](std::int64_t part, std::size_t bucket, std::int64_t from, std::int64_t to) {
                   if (part == p.dp.part()) add(bucket, from, to);
                 });
}

void Muon::take_ownership(Round& round, const Matrix& matrix) const {
  const model::ParamPlacement& p = view_.placement();
  const parallel::ShardSpec& shard = view_.info(matrix.id).shard;
  const std::int64_t offset = view_.flat_begin(matrix.id), begin = offset + matrix.whole.local_begin;
  round.rows = matrix.whole.rows, round.columns = matrix.whole.columns;
  for (std::int64_t tp_rank = 0; tp_rank < p.tp; ++tp_rank) {
    std::vector<std::int64_t> at(static_cast<std::size_t>(parts()));
    for (std::size_t part = 0; part < at.size(); ++part)
      at[part] = (tp_rank * parts() + static_cast<std::int64_t>(part)) * round.share;
    const auto add = [&](std::int64_t part, std::size_t, std::int64_t from, std::int64_t to) {
      for (const parallel::LocalRun& run :
           parallel::local_runs(shard, p.tp, tp_rank, from - offset, to - from)) {
        std::int64_t& next = at[static_cast<std::size_t>(part)];
        const MatrixBox box{next, run.box.begin[0] - matrix.whole.first_row, run.box.begin[1],
                            run.box.shape[0], run.box.shape[1]};
        next += run.count;
        round.all_boxes.push_back(box);
        if (run.owned) round.boxes.push_back(box);
      }
    };
    if (parts() == 1) add(0, 0, begin, begin + matrix.whole.local_count);
    else for_each_share(view_.buckets(), begin, begin + matrix.whole.local_count, add);
  }
}

void Muon::orthogonalise(Stream& stream, const Round& round, const Tensor& packed,
                         const Tensor& other) const {
  if (round.rows == 0) return;
  const bool transposed = round.rows > round.columns;
  const Shape wide{std::min(round.rows, round.columns), std::max(round.rows, round.columns)};
  const auto matrix_in = [&](const Tensor& x) { return x.rows(0, wide.numel()).reshaped(wide); };
  const Tensor x = matrix_in(other);
  CopyBoxes copy{.to = CopyBoxes::To::matrix,
                 .boxes = round.boxes,
                 .packed = packed,
                 .matrix = x,
                 .transposed = transposed};
  backend_.copy_boxes(stream, copy);
  // The received data has been read, so its buffer takes every other iterate.
  const Tensor result = newton_schulz(backend_, stream, x, matrix_in(packed));
  if (result.data != x.data) backend_.copy(stream, result, x);
  copy.to = CopyBoxes::To::packed;
  copy.boxes = round.all_boxes;
  backend_.copy_boxes(stream, copy);
}

void Muon::update(Stream& stream, const UpdateStep& step) {
  for (const Round& round : rounds_) {
    const ArenaScope scope(stream.scratch());
    const Shape all{(round.exchanges ? ranks_.size() : 1) * round.share};
    Tensor packed = stream.scratch().take(DType::f32, all, MemoryTerm::workspace),
           other = stream.scratch().take(DType::f32, all, MemoryTerm::workspace);
    for (const Piece& piece : round.pieces) {
      const model::StatePart& part = view_.state_parts()[piece.part];
      backend_.momentum_update(stream, {.grads = part.grads.rows(piece.begin, piece.count),
                                        .momentum = part.states[0].rows(piece.begin, piece.count),
                                        .direction = packed.rows(piece.at, piece.count),
                                        .control = step.control,
                                        .mu = static_cast<float>(options_.momentum),
                                        .nesterov = options_.nesterov,
                                        .host_grads = part.host_grads,
                                        .host_momentum = part.host_states});
    }
    const auto send = [&] {
      if (!round.exchanges) return;
      const Tensor got = ranks_.all_to_all(stream, packed, other, {.label = "directions"});
      if (got.data != packed.data) std::swap(packed, other);
    };
    send();
    orthogonalise(stream, round, packed, other);
    send();
    for (const Piece& piece : round.pieces) {
      const model::StatePart& part = view_.state_parts()[piece.part];
      backend_.direction_update(
          stream, {.ranges = piece.ranges,
                   .direction = packed.rows(piece.at, piece.count),
                   .master = part.master.rows(piece.begin, piece.count),
                   .params = part.params.defined() ? part.params.rows(piece.begin, piece.count) : Tensor{},
                   .control = step.control,
                   .lr = static_cast<float>(step.lr),
                   .scale = piece.scale,
                   .step = step.step,
                   .rounding = rounding_,
                   .host_master = part.host_master,
                   .host_params = part.host_params});
    }
  }
}

}  // namespace trainerd::core::train
