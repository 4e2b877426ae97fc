#include "parallel/layout/grid.h"

#include <algorithm>
#include <optional>

#include "kernels/base/error.h"

namespace trainerd::parallel {
namespace {

using std::to_string;

constexpr std::size_t index_of(Axis axis) { return static_cast<std::size_t>(axis); }

std::optional<Axis> axis_named(const std::string& name) {
  for (const Axis axis : kDefaultOrder)
    if (name == to_string(axis)) return axis;
  return std::nullopt;
}

bool names(const std::string& order, Axis axis) { return order.find(to_string(axis)) != std::string::npos; }

/// Ranks of one pipeline stage: tp x cp x dp. 0 if there are more than kMaxRanks with pp.
std::int64_t stage_ranks(const ParallelOptions& o) {
  std::int64_t ranks = 1;
  for (const std::int64_t size : {o.tp, o.cp, o.dp, o.pp})
    if (__builtin_mul_overflow(ranks, size, &ranks) || ranks > kMaxRanks) return 0;
  return ranks / o.pp;
}

}  // namespace

const char* to_string(Axis axis) {
  switch (axis) {
    case Axis::tp: return "tp";
    case Axis::cp: return "cp";
    case Axis::ep: return "ep";
    case Axis::dp: return "dp";
    case Axis::pp: return "pp";
  }
  return "?";
}

std::string to_string(const AxisOrder& order) {
  std::string text;
  for (const Axis axis : order) text.append(text.empty() ? "" : "-").append(to_string(axis));
  return text;
}

bool parse_order(const std::string& text, AxisOrder& order, std::string& problem) {
  std::vector<Axis> axes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t dash = std::min(text.find('-', begin), text.size());
    const std::string name = text.substr(begin, dash - begin);
    const std::optional<Axis> axis = axis_named(name);
    if (!axis) {
      problem = "expected axes joined by '-', fastest first, each of tp, cp, ep, dp and pp at most once";
      return false;
    }
    if (std::find(axes.begin(), axes.end(), *axis) != axes.end()) {
      problem = "names " + name + " twice: keep one";
      return false;
    }
    axes.push_back(*axis);
    begin = dash + 1;
  }
  for (const Axis axis : kDefaultOrder)
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
  std::copy(axes.begin(), axes.end(), order.begin());
  return true;
}

ProcessGrid::ProcessGrid(const Sizes& sizes, const AxisOrder& order) : sizes_(sizes), order_(order) {
  for (const std::int64_t size : sizes_)
    base::check(size >= 1, "every axis of a process grid has at least one rank");
}

std::int64_t ProcessGrid::ranks() const {
  std::int64_t n = 1;
  for (const std::int64_t size : sizes_) n *= size;
  return n;
}

std::int64_t ProcessGrid::stride(Axis axis) const {
  std::int64_t stride = 1;
  for (const Axis faster : order_) {
    if (faster == axis) break;
    stride *= size(faster);
  }
  return stride;
}

ProcessGrid::Coordinate ProcessGrid::coordinate(std::int64_t rank) const {
  base::check(rank >= 0 && rank < ranks(), "a rank outside the grid");
  Coordinate c{};
  for (const Axis axis : order_) {
    c[index_of(axis)] = rank % size(axis);
    rank /= size(axis);
  }
  return c;
}

std::int64_t ProcessGrid::rank(const Coordinate& coordinate) const {
  std::int64_t rank = 0, stride = 1;
  for (const Axis axis : order_) {
    rank += coordinate[index_of(axis)] * stride;
    stride *= size(axis);
  }
  return rank;
}

std::vector<std::int64_t> ProcessGrid::group(std::int64_t rank, Axis axis) const {
  const std::int64_t step = stride(axis);
  std::int64_t member = rank - coordinate(rank)[index_of(axis)] * step;
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(size(axis)));
  for (std::int64_t& r : ranks) {
    r = member;
    member += step;
  }
  return ranks;
}

std::int64_t ProcessGrid::gradient_stride() const {
  const bool both = size(Axis::dp) > 1 && size(Axis::cp) > 1;
  if (both) return std::min(stride(Axis::dp), stride(Axis::cp));
  return stride(size(Axis::cp) > 1 ? Axis::cp : Axis::dp);
}

std::int64_t ProcessGrid::gradient_first(std::int64_t rank) const {
  Coordinate place = coordinate(rank);
  place[index_of(Axis::dp)] = place[index_of(Axis::cp)] = 0;
  return this->rank(place);
}

std::vector<std::int64_t> ProcessGrid::gradient_group(std::int64_t rank) const {
  const std::int64_t first = gradient_first(rank);
  std::vector<std::int64_t> ranks;
  for (std::int64_t i = 0; i < size(Axis::dp) * size(Axis::cp); ++i)
    ranks.push_back(first + i * gradient_stride());
  return ranks;
}

std::vector<std::vector<std::int64_t>> ProcessGrid::groups(Axis axis) const {
  std::vector<std::vector<std::int64_t>> all;
  for (std::int64_t r = 0; r < ranks(); ++r)
    if (coordinate(r)[index_of(axis)] == 0) all.push_back(group(r, axis));
  return all;
}

std::string grid_problem(const ParallelOptions& o) {
  for (const std::int64_t size : {o.tp, o.cp, o.ep, o.dp, o.pp, o.expert_tp()})
    if (size < 1) return "every axis has at least one rank, got " + to_string(size);
  if (o.etp > 1 && o.etp != o.tp) return "etp " + to_string(o.etp) + " is neither 1 nor tp";
  AxisOrder order = kDefaultOrder;
  std::string problem;
  if (!parse_order(o.order, order, problem)) return "the order '" + o.order + "' " + problem;
  const ProcessGrid::Sizes sizes = {o.tp, o.cp, o.ep, o.dp, o.pp};
  for (const Axis axis : kDefaultOrder)
    if (sizes[index_of(axis)] > 1 && !names(o.order, axis))
      return "the order '" + o.order + "' does not name " + to_string(axis) + ", which has " +
             to_string(sizes[index_of(axis)]) + " ranks: add it";
  const std::int64_t stage = stage_ranks(o);
  if (stage == 0)
    return "tp x cp x dp x pp is more than " + to_string(kMaxRanks) + " ranks: make an axis smaller";
  // The ranks that sum gradients are at equal distances.
  if (const ProcessGrid grid({o.tp, o.cp, 1, o.dp, o.pp}, order); o.cp > 1 && o.dp > 1) {
    const auto [near, far] = std::minmax({grid.stride(Axis::cp), grid.stride(Axis::dp)});
    if (far != near * (grid.stride(Axis::cp) == near ? o.cp : o.dp))
      return "with the order '" + o.order +
             "' another axis of several ranks is between cp and dp: put them "
             "beside each other";
  }
  if (!o.experts_apart()) return {};  // no second grid to check
  const std::int64_t tp_e = o.expert_tp();
  std::int64_t unit = 0;
  if (__builtin_mul_overflow(tp_e, o.ep, &unit) || stage % unit != 0) {
    const std::int64_t share = stage / tp_e;
    std::int64_t fits = std::min(o.ep, share);
    while (share % fits != 0) --fits;
    return "ep " + to_string(o.ep) + " does not divide the " + to_string(share) +
           " ranks that share experts (" + (o.whole_experts() ? "tp x " : "") +
           "cp x dp; nearest valid: " + to_string(fits) + ")";
  }
  const ProcessGrid dense({o.tp, o.cp, 1, o.dp, o.pp}, order);
  const ProcessGrid expert({tp_e, 1, o.ep, stage / unit, o.pp}, order);
  // With equal strides (and sizes) the groups contain the same ranks.
  if (o.tp > 1 && tp_e == o.tp && dense.stride(Axis::tp) != expert.stride(Axis::tp))
    return "with the order '" + o.order +
           "' the tensor-parallel ranks of dense and expert layers differ: put tp first";
  if (o.pp > 1 && dense.stride(Axis::pp) != expert.stride(Axis::pp))
    return "with the order '" + o.order + "' dense layers' pipeline neighbours are " +
           to_string(dense.stride(Axis::pp)) + " ranks apart and expert layers' " +
           to_string(expert.stride(Axis::pp)) + ": both need the same pipeline groups, put pp last";
  return {};
}

GridViews make_grids(const ParallelOptions& o) {
  const std::string problem = grid_problem(o);
  if (!problem.empty()) throw base::spec_error("parallel: " + problem);
  AxisOrder order = kDefaultOrder;
  std::string ignored;  // already parsed by grid_problem
  parse_order(o.order, order, ignored);
  const ProcessGrid dense({o.tp, o.cp, 1, o.dp, o.pp}, order);
  if (!o.experts_apart()) return {dense, dense};
  const std::int64_t tp_e = o.expert_tp();
  return {dense, ProcessGrid({tp_e, 1, o.ep, stage_ranks(o) / (tp_e * o.ep), o.pp}, order)};
}

}  // namespace trainerd::parallel
