// Tensor-parallel operators in chunks of rows, with collectives that overlap GEMMs: the same bits, the same
// scratch.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/meta/meta_backend.h"
#include "parallel/comm/local/local_world.h"
#include "parallel/comm/meta/meta_communicator.h"
#include "parallel/comm/observed_communicator.h"
#include "parallel/tensor/linear.h"
#include "tests/parallel/comm_support.h"

using namespace trainerd;
using namespace trainerd::kernels;
using parallel::TensorParallel;

namespace {

struct Case {
  std::int64_t ranks = 2;
  DType dtype = DType::f32;
  bool sequence_parallel = true;
  bool prepared = false;
  std::int64_t chunks = 1;
  enum class Backward : std::uint8_t {
    none,
    apart,
    together,
    behind,
    delayed
  } backward = Backward::none;  ///< if set: the backward operators only
};

struct Outcome {
  std::vector<std::byte> bits;       ///< bits of all results of rank 0, then rank 1, ...
  std::vector<test::Values> values;  ///< the same as numbers, one entry per result
  std::int64_t issued = 0;           ///< number of collectives of rank 0
  std::int64_t scratch = 0;          ///< peak bytes, rank 0
};

constexpr std::int64_t kFlowRows = 88;           // per rank: five and a half blocks of 16
constexpr std::int64_t kHidden = 80, kFfn = 96;  // kFfn: per rank

/// One rank's operators on tensors whose values depend on (tensor, rank) alone.
class Rank {
 public:
  Rank(const Case& c, const TensorParallel& tp, Stream& stream)
      : c_(c),
        tp_(tp),
        stream_(stream),
        tokens_(c.sequence_parallel ? kFlowRows * c.ranks : kFlowRows),
        flow_rows_(tp.flow_rows(tokens_)) {}

  void run() {
    const Tensor x = input(1, {flow_rows_, kHidden}), y = input(2, {flow_rows_, kHidden});
    const Tensor inner = input(3, {tokens_, kFfn}), inner2 = input(4, {tokens_, 2 * kFfn});
    const Tensor w_in = input(5, {kFfn, kHidden}), w_in2 = input(6, {2 * kFfn, kHidden}),
                 w_out = input(7, {kHidden, kFfn});
    const Tensor bias_in = input(8, {kFfn}), bias_out = input(9, {kHidden}),
                 addend = input(10, {tokens_, kHidden});
    parallel::column_linear(tp_, stream_,
                            {.x_TC = x,
                             .weight = weight(w_in, GemmRole::fprop),
                             .bias_N = bias_in,
                             .addend_TN = {},
                             .y_TN = output({tokens_, kFfn})});
    parallel::column_linear_swiglu(tp_, stream_,
                                   {.x_TC = x,
                                    .weight = weight(w_in2, GemmRole::fprop),
                                    .gate_up_T2F = output({tokens_, 2 * kFfn}),
                                    .act_TF = output({tokens_, kFfn})});
    parallel::row_linear(tp_, stream_,
                         {.x_TC = inner,
                          .weight = weight(w_out, GemmRole::fprop),
                          .bias_N = bias_out,
                          .addend_TN = addend,
                          .y_TN = output({flow_rows_, kHidden})});
    parallel::row_linear_dgrad(
        tp_, stream_,
        {.dy_TN = y, .weight = weight(w_out, GemmRole::dgrad), .dx_TC = output({tokens_, kFfn})});
    // The result overwrites gate and up, as in the model.
    const Tensor gate_up = output({tokens_, 2 * kFfn});
    tp_.backend.copy(stream_, inner2, gate_up);
    parallel::row_linear_dgrad_swiglu(tp_, stream_,
                                      {.dy_TD = y,
                                       .weight = weight(w_out, GemmRole::dgrad),
                                       .gate_up_T2F = gate_up,
                                       .dgate_up_T2F = gate_up,
                                       .act_TF = output({tokens_, kFfn})});
    parallel::column_linear_dgrad(
        tp_, stream_,
        {.dy_TN = inner2, .weight = weight(w_in2, GemmRole::dgrad), .dx_TC = output({flow_rows_, kHidden})});
    // A gather by the caller, ordered after the background collectives.
    parallel::column_linear_wgrad(tp_, stream_,
                                  {.dy_TN = inner,
                                   .x_TC = x,
                                   .dweight_NC = output({kFfn, kHidden}),
                                   .dbias_N = {},
                                   .mode = WriteMode::assign});
  }
  /// Backward of a row-parallel linear with either kind of input gradient, and of a column-parallel one.
  void backward() {
    const Tensor x = flow_x_ = input(1, {flow_rows_, kHidden}), dy = input(2, {flow_rows_, kHidden});
    const Tensor inner = input(3, {tokens_, kFfn}), dinner = input(4, {tokens_, kFfn}),
                 inner2 = input(5, {tokens_, 2 * kFfn});
    const Tensor w_in = input(6, {kFfn, kHidden}), w_out = input(7, {kHidden, kFfn});
    const auto wgrad = [&](const Tensor& dy_TN, const Tensor& x_TC, std::int64_t rows, std::int64_t columns) {
      return LinearWgrad{.dy_TN = dy_TN,
                         .x_TC = x_TC,
                         .dweight_NC = output({rows, columns}),
                         .dbias_N = output({rows}),
                         .mode = WriteMode::assign};
    };
    const LinearDgrad row{
        .dy_TN = dy, .weight = weight(w_out, GemmRole::dgrad), .dx_TC = output({tokens_, kFfn})};
    const LinearDgradSwiglu swiglu{.dy_TD = dy,
                                   .weight = weight(w_out, GemmRole::dgrad),
                                   .gate_up_T2F = inner2,
                                   .dgate_up_T2F = output({tokens_, 2 * kFfn}),
                                   .act_TF = output({tokens_, kFfn})};
    const LinearDgrad column{
        .dy_TN = dinner, .weight = weight(w_in, GemmRole::dgrad), .dx_TC = output({flow_rows_, kHidden})};
    const LinearWgrad row_w = wgrad(dy, inner, kHidden, kFfn),
                      swiglu_w = wgrad(dy, swiglu.act_TF, kHidden, kFfn),
                      column_w = wgrad(dinner, x, kFfn, kHidden);
    if (c_.backward == Case::Backward::delayed)
      return delayed_backward(row, row_w, swiglu, swiglu_w, column, column_w);
    if (c_.backward != Case::Backward::apart) {
      parallel::row_linear_dgrad(tp_, stream_, row, row_w);
      parallel::row_linear_dgrad_swiglu(tp_, stream_, swiglu, swiglu_w);
      parallel::column_linear_backward(tp_, stream_, column, column_w);
      return;
    }
    parallel::row_linear_dgrad(tp_, stream_, row);
    parallel::row_linear_wgrad(tp_, stream_, row_w);
    parallel::row_linear_dgrad_swiglu(tp_, stream_, swiglu);
    parallel::row_linear_wgrad(tp_, stream_, swiglu_w);
    parallel::column_linear_dgrad(tp_, stream_, column);
    parallel::column_linear_wgrad(tp_, stream_, column_w);
  }
  /// The same as two segments of a walk.
  void delayed_backward(const LinearDgrad& row, LinearWgrad row_w, const LinearDgradSwiglu& swiglu,
                        LinearWgrad swiglu_w, const LinearDgrad& column, LinearWgrad column_w) {
    const ArenaScope scope(stream_.scratch());
    const auto whole = [&] {
      return stream_.scratch().take(c_.dtype, {tokens_, kHidden}, MemoryTerm::activations);
    };
    const Tensor dy_TD = whole(), x_TD = whole();
    parallel::DelayedWgrads delayed(dy_TD, x_TD);
    const auto make = [this](const LinearWgrad& a) {
      return [this, a] { tp_.backend.linear_wgrad(stream_, a); };
    };
    row_w.dy_TN = swiglu_w.dy_TN = dy_TD, column_w.x_TC = x_TD;
    parallel::row_linear_dgrad(tp_, stream_, row, delayed);
    delayed.delay_row(make(row_w));
    parallel::column_linear_dgrad(tp_, stream_, column, flow_x_, delayed);
    delayed.delay_column(make(column_w));
    parallel::row_linear_dgrad_swiglu(tp_, stream_, swiglu, delayed);
    delayed.delay_row(make(swiglu_w));
    delayed.run_row(), delayed.run_column();
  }
  std::vector<std::byte> bits() const {
    std::vector<std::byte> all;
    for (const Tensor& t : outputs_) all.insert(all.end(), t.data, t.data + t.bytes());
    return all;
  }
  std::vector<test::Values> values() const {
    std::vector<test::Values> all;
    for (const Tensor& t : outputs_) {
      test::Values& of = all.emplace_back();
      for (std::int64_t i = 0; i < t.numel(); ++i) of.push_back(test::get(t, i));
    }
    return all;
  }

 private:
  Tensor take(const Shape& shape) {
    const Tensor flat = *memory_.emplace_back(c_.dtype, shape.numel());
    return {flat.data, flat.dtype, shape};
  }
  Tensor input(std::uint64_t seed, const Shape& shape) {
    const Tensor t = take(shape);
    for (std::int64_t i = 0; i < t.numel(); ++i)
      test::put(t, i, 0.1 * test::value_of(c_.dtype, seed, tp_.group.rank(), i));
    return t;
  }
  Tensor output(const Shape& shape) { return outputs_.emplace_back(take(shape)); }
  Weight weight(const Tensor& plain, GemmRole role) {
    PrepareWeight prepare{.plain_NC = plain, .role = role, .tokens = tokens_, .out = {}};
    const std::int64_t bytes = c_.prepared ? tp_.backend.prepared_bytes(prepare) : 0;
    if (bytes == 0) return {plain, {}};
    prepare.out = *memory_.emplace_back(DType::u8, bytes);
    tp_.backend.prepare_weight(stream_, prepare);
    return {plain, prepare.out};
  }

  const Case& c_;
  const TensorParallel& tp_;
  Stream& stream_;
  std::int64_t tokens_, flow_rows_;
  Tensor flow_x_;
  std::vector<test::HostTensor> memory_;
  std::vector<Tensor> outputs_;
};

Outcome run(const Case& c) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(c.ranks));
  parallel::LocalWorld world(c.ranks);
  world.run([&](std::int64_t rank) {
    Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    test::RankMachine machine;
    const Buffer memory = machine.backend.allocate(MemoryKind::device, std::int64_t{64} << 20);
    Arena scratch("scratch", memory.data(), memory.bytes());
    const auto stream = machine.backend.make_stream("compute", &scratch);
    const auto inner = world.communicator(rank, machine.backend, test::all_ranks(c.ranks), "tp");
    const auto group =
        parallel::make_observed(*inner, [&](Stream&, parallel::CommMoment moment, const parallel::CommCall&) {
          outcome.issued += moment == parallel::CommMoment::issue;
        });
    const TensorParallel tp{machine.backend, *group, c.sequence_parallel, c.chunks,
                            c.backward == Case::Backward::behind};
    Rank operators(c, tp, *stream);
    if (c.backward == Case::Backward::none) operators.run();
    else operators.backward();
    outcome.bits = operators.bits();
    outcome.values = operators.values();
    outcome.scratch = scratch.high_water();
    if (scratch.top() != 0) throw std::logic_error("scratch is empty after an operator");
  });
  for (std::size_t rank = 1; rank < outcomes.size(); ++rank) {
    outcomes[0].bits.insert(outcomes[0].bits.end(), outcomes[rank].bits.begin(), outcomes[rank].bits.end());
    outcomes[0].values.insert(outcomes[0].values.end(), outcomes[rank].values.begin(),
                              outcomes[rank].values.end());
  }
  return outcomes[0];
}

/// The largest |a - b| / |b| of all results, where |x| is the Euclidean norm of a whole result.
double distance(const Outcome& a, const Outcome& b) {
  double largest = 0;
  for (std::size_t t = 0; t < b.values.size(); ++t) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < b.values[t].size(); ++i) {
      difference += std::pow(a.values[t][i] - b.values[t][i], 2);
      norm += std::pow(b.values[t][i], 2);
    }
    largest = std::max(largest, std::sqrt(difference / norm));
  }
  return largest;
}

}  // namespace

TEST_CASE("chunked tensor-parallel operators give the bits of unchunked ones", "[overlap]") {
  Case c;
  c.ranks = GENERATE(2, 3);
  c.dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  c.sequence_parallel = GENERATE(true, false);
  c.prepared = GENERATE(false, true);
  CAPTURE(c.ranks, name_of(c.dtype), c.sequence_parallel, c.prepared);
  const Outcome whole = run(c);
  // Seven operators: with sequence parallelism one collective each, without it only the two sums.
  const std::int64_t chunked = c.sequence_parallel ? 6 : 2, other = c.sequence_parallel ? 1 : 0;
  CHECK(whole.issued == chunked + other);
  for (const auto& [wanted, made] :
       {std::pair<std::int64_t, std::int64_t>{2, 2}, {3, 3}, {4, 3}, {6, 6}, {64, 6}}) {
    CAPTURE(wanted);
    c.chunks = wanted;
    const Outcome cut = run(c);
    CHECK(cut.issued == chunked * made + other);
    // Without AVX-512 oneDNN's order of sums depends on the number of rows. In brackets, so that a failure
    // does not print all bytes.
    if (kernels::detect_cpu(1).isa >= kernels::Isa::avx512) CHECK((cut.bits == whole.bits));
    else CHECK(distance(cut, whole) < (c.dtype == DType::f32 ? 1e-6 : 1e-3));
    CHECK(cut.scratch <= whole.scratch + made * kAlignment);
  }
}

TEST_CASE(
    "a linear's gradients together, their collectives behind them or not, give the bits of one after the "
    "other",
    "[overlap]") {
  Case c;
  c.ranks = GENERATE(1, 2, 3);
  c.dtype = GENERATE(DType::f32, DType::bf16);
  c.sequence_parallel = GENERATE(true, false);
  c.chunks = GENERATE(1, 3);
  CAPTURE(c.ranks, name_of(c.dtype), c.sequence_parallel, c.chunks);
  c.backward = Case::Backward::apart;
  const Outcome apart = run(c);
  for (const auto backward : {Case::Backward::together, Case::Backward::behind}) {
    c.backward = backward;
    const Outcome made = run(c);
    CHECK((made.bits == apart.bits));
    // With sequence parallelism dy is gathered once instead of twice, in chunks or not.
    const bool shared = c.sequence_parallel && c.ranks > 1;
    CHECK(made.issued == apart.issued - (shared ? 2 : 0));
  }
}

TEST_CASE("gradients that are delayed until a collective runs have the same bits", "[overlap]") {
  Case c;
  c.ranks = GENERATE(2, 3);
  c.dtype = GENERATE(DType::f32, DType::bf16);
  CAPTURE(c.ranks, name_of(c.dtype));
  c.backward = Case::Backward::apart;
  const Outcome apart = run(c);
  c.backward = Case::Backward::delayed;
  const Outcome delayed = run(c);
  CHECK((delayed.bits == apart.bits));
  CHECK(delayed.issued == apart.issued - 2);  // dy is gathered once
}

TEST_CASE("the meta world shows the work that overlaps a chunked gather and sum", "[overlap]") {
  std::vector<std::string> calls;
  const auto observe = [&](const parallel::MetaCollective& m) {
    calls.push_back(std::string(m.moment == parallel::CommMoment::issue ? "issue " : "wait ") +
                    to_string(m.kind) + " " + std::to_string(m.sequence) +
                    (m.progress == parallel::Progress::background ? " behind" : ""));
  };
  const auto group = parallel::make_meta_communicator(0, 2, observe);
  MetaBackend backend(detect_cpu(1), [&](const MetaCall& call) { calls.emplace_back(name_of(call.op)); });
  Arena scratch = Arena::dry("scratch"), tensors = Arena::dry("tensors");
  const auto stream = backend.make_stream("compute", &scratch);
  const auto take = [&](std::int64_t rows, std::int64_t columns) {
    return tensors.take(DType::f32, {rows, columns}, MemoryTerm::activations);
  };
  const Tensor flow = take(64, 32), whole = take(128, 16);
  const LinearFprop in{
      .x_TC = flow, .weight = {take(16, 32), {}}, .bias_N = {}, .addend_TN = {}, .y_TN = whole};
  const LinearFprop out{
      .x_TC = whole, .weight = {take(32, 16), {}}, .bias_N = {}, .addend_TN = {}, .y_TN = flow};

  using Calls = std::vector<std::string>;
  const TensorParallel plain{backend, *group, true, 1}, chunked{backend, *group, true, 2};
  parallel::column_linear(plain, *stream, in);
  CHECK(calls == Calls{"issue all_gather 1", "wait all_gather 1", "linear_fprop"});
  calls.clear();
  parallel::column_linear(chunked, *stream, in);
  CHECK(calls == Calls{"issue all_gather 2 behind", "issue all_gather 3 behind", "linear_fprop",
                       "wait all_gather 2 behind", "linear_fprop", "wait all_gather 3 behind",
                       "linear_fprop"});
  calls.clear();
  parallel::row_linear(chunked, *stream, out);
  CHECK(calls == Calls{"linear_fprop", "linear_fprop", "issue reduce_scatter 4 behind", "linear_fprop",
                       "linear_fprop", "issue reduce_scatter 5 behind", "wait reduce_scatter 4 behind",
                       "wait reduce_scatter 5 behind"});
  calls.clear();
  const LinearDgrad dgrad{.dy_TN = whole, .weight = {take(16, 32), {}}, .dx_TC = flow};
  const LinearWgrad wgrad{.dy_TN = whole,
                          .x_TC = take(64, 32),
                          .dweight_NC = take(16, 32),
                          .dbias_N = {},
                          .mode = WriteMode::assign};
  const TensorParallel behind{backend, *group, true, 1, true};
  parallel::column_linear_backward(behind, *stream, dgrad, wgrad);
  CHECK(calls == Calls{"issue all_gather 6 behind", "linear_dgrad", "issue reduce_scatter 7 behind",
                       "wait all_gather 6 behind", "linear_wgrad", "wait reduce_scatter 7 behind"});
  calls.clear();
  // Two segments of a walk: the second one's gather hides the weight gradient of the first one's
  // column-parallel linear.
  parallel::DelayedWgrads delayed(take(128, 32), take(128, 32));
  const LinearDgrad row{.dy_TN = flow, .weight = {take(32, 16), {}}, .dx_TC = whole};
  for (int segment = 0; segment < 2; ++segment) {
    parallel::row_linear_dgrad(behind, *stream, row, delayed);
    delayed.delay_row([&] { calls.emplace_back("gradient of row"); });
    parallel::column_linear_dgrad(behind, *stream, dgrad, flow, delayed);
    delayed.delay_column([&] { calls.emplace_back("gradient of column"); });
  }
  delayed.run_column();
  CHECK(calls == Calls{"issue all_gather 8 behind",
                       "wait all_gather 8 behind",
                       "linear_dgrad",
                       "issue all_gather 9 behind",
                       "linear_dgrad",
                       "issue reduce_scatter 10 behind",
                       "wait all_gather 9 behind",
                       "gradient of row",
                       "wait reduce_scatter 10 behind",
                       "issue all_gather 11 behind",
                       "gradient of column",
                       "wait all_gather 11 behind",
                       "linear_dgrad",
                       "issue all_gather 12 behind",
                       "linear_dgrad",
                       "issue reduce_scatter 13 behind",
                       "wait all_gather 12 behind",
                       "gradient of row",
                       "wait reduce_scatter 13 behind",
                       "gradient of column"});
}
