#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/cpu/tiling/blocks.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {
namespace {

/// Calls `f` with a float, Bf16 or Fp16, of the dtype.
template <class F>
void with_activation(DType dtype, const F& f) {
  if (dtype == DType::bf16) f(Bf16{});
  else if (dtype == DType::f16) f(Fp16{});
  else f(float{});
}

/// The K largest of `values`; of equal ones the first.
void choose(const float* values, std::int64_t experts, std::int64_t copies, std::int32_t* chosen) {
  std::array<bool, kMostExperts> taken{};
  for (std::int64_t k = 0; k < copies; ++k) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < experts; ++e)
      if (!taken[static_cast<std::size_t>(e)] && (best < 0 || values[e] > values[best])) best = e;
    taken[static_cast<std::size_t>(best)] = true;
    chosen[k] = static_cast<std::int32_t>(best);
  }
}

/// Sets the values of the experts of all but the best groups to -infinity.
void leave_best_groups(const RouteForward& a, std::int64_t experts, float* values) {
  const std::int64_t each = experts / a.groups, best = experts_to_rank(a.score);
  std::array<float, kMostExpertGroups> of_group{};
  std::array<std::int32_t, kMostExpertGroups> kept{};
  for (std::int64_t g = 0; g < a.groups; ++g) {
    std::array<std::int32_t, 2> top{};
    choose(values + g * each, each, best, top.data());
    float sum = 0;
    for (std::int64_t i = 0; i < best; ++i) sum += values[g * each + top[static_cast<std::size_t>(i)]];
    of_group[static_cast<std::size_t>(g)] = sum;
  }
  choose(of_group.data(), a.groups, a.top_groups, kept.data());
  for (std::int64_t g = 0; g < a.groups; ++g)
    if (std::find(kept.begin(), kept.begin() + a.top_groups, g) == kept.begin() + a.top_groups)
      std::fill_n(values + g * each, each, -std::numeric_limits<float>::infinity());
}

/// Sum of the scores of a token's experts.
float chosen_sum(const float* probs, const std::int32_t* chosen, std::int64_t copies) {
  float sum = 0;
  for (std::int64_t k = 0; k < copies; ++k) sum += probs[chosen[k]];
  return sum;
}

template <class T>
void score_experts(RouterScore score, const T* logits, std::int64_t experts, float* probs) {
  if (score == RouterScore::sigmoid) {
    for (std::int64_t e = 0; e < experts; ++e) probs[e] = 1 / (1 + std::exp(-to_float(logits[e])));
    return;
  }
  float largest = to_float(logits[0]);
  for (std::int64_t e = 1; e < experts; ++e) largest = std::max(largest, to_float(logits[e]));
  float sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) sum += probs[e] = std::exp(to_float(logits[e]) - largest);
  for (std::int64_t e = 0; e < experts; ++e) probs[e] /= sum;
}

template <class T>
void route_token(const RouteForward& a, std::int64_t t) {
  const std::int64_t experts = a.logits_TE.size(1), copies = a.expert_TK.size(1);
  float* probs = a.probs_TE.as<float>() + t * experts;
  score_experts(a.score, a.logits_TE.as<T>() + t * experts, experts, probs);
  std::int32_t* chosen = a.expert_TK.as<std::int32_t>() + t * copies;
  if (a.real_T.defined() && a.real_T.as<std::int32_t>()[t] == 0) {
    std::fill_n(chosen, copies, -1);
    std::fill_n(a.weight_TK.as<float>() + t * copies, copies, 0.0f);
    return;
  }
  std::array<float, kMostExperts> values{};
  if (a.bias_E.defined())
    std::transform(probs, probs + experts, a.bias_E.as<float>(), values.begin(), std::plus<>{});
  else std::copy_n(probs, experts, values.begin());
  if (a.groups > 1) leave_best_groups(a, experts, values.data());
  choose(values.data(), experts, copies, chosen);
  const float share = a.normalise ? chosen_sum(probs, chosen, copies) : 1.0f;
  for (std::int64_t k = 0; k < copies; ++k)
    a.weight_TK.as<float>()[t * copies + k] = probs[chosen[k]] / share * a.factor;
}

/// Sequence of token t of `own`.
std::int64_t sequence_of(std::int64_t t, std::int64_t own, std::int64_t sequences, const TokenRange& range) {
  return (range.first + t) / (range.tokens(own) / (range.chunks * sequences)) % sequences;
}

template <class T>
void route_back_token(const RouteBackward& a, std::int64_t t) {
  const std::int64_t tokens = a.probs_TE.size(0), experts = a.probs_TE.size(1), copies = a.expert_TK.size(1);
  const float* probs = a.probs_TE.as<float>() + t * experts;
  const std::int32_t* chosen = a.expert_TK.as<std::int32_t>() + t * copies;
  T* dlogits = a.dlogits_TE.as<T>() + t * experts;
  if (a.loss_T.defined()) a.loss_T.as<float>()[t] = 0;
  if (chosen[0] < 0) {  // padding
    std::fill_n(dlogits, experts, rounded_to<T>(0));
    return;
  }
  const float* dweight = a.dweight_TK.as<float>() + t * copies;
  std::array<float, kMostExperts> dprobs{};
  if (a.count_BE.defined()) {
    const float* counts =
        a.count_BE.as<float>() + sequence_of(t, tokens, a.count_BE.size(0), a.range) * experts;
    const float factor =
        a.balance * a.loss_weight_T.as<float>()[t] / std::accumulate(counts, counts + experts, 0.0f);
    // Sigmoids count by their shares: p = prob / sum, so dprob = (dp - sum of dp p) / sum.
    const bool shares = a.score == RouterScore::sigmoid;
    const float sum = shares ? std::accumulate(probs, probs + experts, 0.0f) : 1.0f,
                loss = factor * std::inner_product(probs, probs + experts, counts, 0.0f) / sum;
    for (std::int64_t e = 0; e < experts; ++e)
      dprobs[static_cast<std::size_t>(e)] = (factor * counts[e] - (shares ? loss : 0.0f)) / sum;
    if (a.loss_T.defined()) a.loss_T.as<float>()[t] = loss;
    if (a.loss_scale.defined())
      for (std::int64_t e = 0; e < experts; ++e)
        dprobs[static_cast<std::size_t>(e)] *= *a.loss_scale.as<float>();
  }
  // weight = factor prob / share, so dprob = factor (dweight - sum of dweight prob / share) / share.
  const float share = a.normalise ? chosen_sum(probs, chosen, copies) : 1.0f;
  float mean = 0;
  for (std::int64_t k = 0; a.normalise && k < copies; ++k) mean += dweight[k] * (probs[chosen[k]] / share);
  for (std::int64_t k = 0; k < copies; ++k)
    dprobs[static_cast<std::size_t>(chosen[k])] += a.factor * (dweight[k] - mean) / share;
  if (a.score == RouterScore::sigmoid) {
    for (std::int64_t e = 0; e < experts; ++e)
      dlogits[e] = rounded_to<T>(probs[e] * (1 - probs[e]) * dprobs[static_cast<std::size_t>(e)]);
    return;
  }
  float inner = 0;
  for (std::int64_t e = 0; e < experts; ++e) inner += dprobs[static_cast<std::size_t>(e)] * probs[e];
  for (std::int64_t e = 0; e < experts; ++e)
    dlogits[e] = rounded_to<T>(probs[e] * (dprobs[static_cast<std::size_t>(e)] - inner));
}

/// Rows [first_E[expert], first_E[expert + 1]) of x.
Tensor rows_of(const Tensor& x, const Tensor& first_E, std::int64_t expert) {
  const std::int32_t* first = first_E.as<std::int32_t>() + expert;
  return x.rows(first[0], first[1] - first[0]);
}

/// The expert's part of a stacked weight or gradient.
Tensor matrix_of(const Tensor& weight_NC, const Tensor& first_E, std::int64_t expert) {
  const std::int64_t rows = weight_NC.size(0) / (first_E.numel() - 1);
  return weight_NC.rows(expert * rows, rows);
}

/// Calls `f(row, expert)` for each row in use, of `columns` numbers, by all threads.
template <class F>
void for_each_used_row(base::ThreadPool& pool, const Tensor& first_E, std::int64_t columns, const F& f) {
  const std::int32_t* first = first_E.as<std::int32_t>();
  const std::int64_t experts = first_E.numel() - 1;
  for_each_block(pool, first[experts], rows_per_block(columns), [&](std::int64_t begin, std::int64_t end) {
    auto expert = static_cast<std::int64_t>(std::upper_bound(first, first + experts, begin) - first) - 1;
    for (std::int64_t r = begin; r < end; ++r) {
      while (first[expert + 1] <= r) ++expert;
      f(r, expert);
    }
  });
}

/// Which expert has how many rows is not planned: the scratch of a call is that of one expert with all rows.
void hold_planned(Stream& stream, std::int64_t bytes) {
  const ArenaScope scope(stream.scratch());
  stream.scratch().take_bytes(bytes, MemoryTerm::workspace);
}

}  // namespace

void CpuBackend::route_forward(Stream&, const RouteForward& a) {
  check_args(a);
  with_activation(a.logits_TE.dtype, [&]<class T>(T) {
    for_each_block(pool_, a.logits_TE.size(0), rows_per_block(8 * a.logits_TE.size(1)),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t t = begin; t < end; ++t) route_token<T>(a, t);
                   });
  });
}

void CpuBackend::route_backward(Stream&, const RouteBackward& a) {
  check_args(a);
  with_activation(a.dlogits_TE.dtype, [&]<class T>(T) {
    for_each_block(pool_, a.probs_TE.size(0), rows_per_block(4 * a.probs_TE.size(1)),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t t = begin; t < end; ++t) route_back_token<T>(a, t);
                   });
  });
}

void CpuBackend::count_experts(Stream& stream, const CountExperts& a) {
  check_args(a);
  if (a.mode == WriteMode::assign) fill_zero(stream, a.count_BE);
  const std::int64_t tokens = a.expert_TK.size(0), copies = a.expert_TK.size(1),
                     sequences = a.count_BE.size(0), experts = a.count_BE.size(1);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t k = 0; k < copies; ++k)
      if (const std::int32_t expert = a.expert_TK.as<std::int32_t>()[t * copies + k]; expert >= 0)
        a.count_BE.as<float>()[sequence_of(t, tokens, sequences, a.range) * experts + expert] += 1.0f;
}

void CpuBackend::sort_experts(Stream&, const SortExperts& a) {
  check_args(a);
  const std::int64_t experts = a.first_E.numel() - 1, copies = a.expert_TK.numel();
  const auto rows = static_cast<std::int32_t>(a.source_R.numel());
  // The experts of other ranks, and padding's, count as one behind all others.
  const auto expert_of = [&](std::int64_t i) {
    const std::int64_t expert = a.expert_TK.as<std::int32_t>()[i] - a.first_expert;
    return static_cast<std::size_t>(expert >= 0 && expert < experts ? expert : experts);
  };
  std::array<std::int32_t, kMostExperts + 2> next{};
  for (std::int64_t i = 0; i < copies; ++i) ++next[expert_of(i) + 1];
  for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) next[e + 1] += next[e];
  const std::int32_t chosen = next[static_cast<std::size_t>(experts)], used = std::min(chosen, rows);
  for (std::int64_t e = 0; e <= experts; ++e)
    a.first_E.as<std::int32_t>()[e] = std::min(next[static_cast<std::size_t>(e)], rows);
  if (chosen > rows) *a.flag.as<float>() = a.flag_value;
  for (std::int64_t i = 0; i < copies; ++i) {
    const std::size_t expert = expert_of(i);
    const std::int32_t row = expert < static_cast<std::size_t>(experts) ? next[expert]++ : rows;
    a.row_TK.as<std::int32_t>()[i] = row < rows ? row : -1;
    if (row < rows) a.source_R.as<std::int32_t>()[row] = static_cast<std::int32_t>(i);
  }
  std::fill_n(a.source_R.as<std::int32_t>() + used, rows - used, -1);
}

void CpuBackend::gather_rows(Stream&, const GatherRows& a) {
  check_args(a);
  const std::int64_t rows = a.to_RD.size(0), bytes = a.to_RD.size(1) * size_of(a.to_RD.dtype);
  for_each_block(pool_, rows, rows_per_block(a.to_RD.size(1)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int32_t source = a.source_R.as<std::int32_t>()[r];
      std::byte* const to = a.to_RD.data + r * bytes;
      if (source >= 0) std::copy_n(a.from_TD.data + source / a.copies * bytes, bytes, to);
    }
  });
}

void CpuBackend::place_tokens(Stream&, const PlaceTokens& a) {
  check_args(a);
  const std::int64_t tokens = a.expert_TK.size(0), copies = a.expert_TK.size(1), slots = a.source_NS.size(1);
  const auto* expert = a.expert_TK.as<std::int32_t>();
  auto *slot = a.slot_TK.as<std::int32_t>(), *source = a.source_NS.as<std::int32_t>();
  std::fill_n(slot, tokens * copies, -1);
  std::atomic<bool> crowded = false;
  pool_.run(a.source_NS.size(0), [&](std::int64_t rank, int) {
    std::int64_t used = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::int32_t mine = -1;
      for (std::int64_t i = t * copies; i < (t + 1) * copies; ++i) {
        if (expert[i] < 0 || expert[i] / a.experts_of_rank != rank) continue;
        if (mine >= 0) {
          slot[i] = same_slot(mine);
        } else if (used < slots) {
          slot[i] = mine = static_cast<std::int32_t>(rank * slots + used++);
          source[mine] = static_cast<std::int32_t>(i);
        } else {
          crowded = true;
        }
      }
    }
    std::fill(source + rank * slots + used, source + (rank + 1) * slots, -1);
  });
  if (crowded) *a.flag.as<float>() = a.flag_value;
}

void CpuBackend::slot_choices(Stream&, const SlotChoices& a) {
  check_args(a);
  const std::int64_t copies = a.expert_TK.size(1);
  for (std::int64_t r = 0; r < a.source_NS.numel(); ++r) {
    const std::int32_t source = a.source_NS.as<std::int32_t>()[r];
    for (std::int64_t k = 0; k < copies; ++k) {
      const std::int64_t from = source / copies * copies + k;
      a.expert_RK.as<std::int32_t>()[r * copies + k] = source < 0 ? -1 : a.expert_TK.as<std::int32_t>()[from];
      a.weight_RK.as<float>()[r * copies + k] = source < 0 ? 0.0f : a.weight_TK.as<float>()[from];
    }
  }
}

void CpuBackend::slot_weights(Stream&, const SlotWeights& a) {
  check_args(a);
  const std::int64_t copies = a.slot_TK.size(1);
  for (std::int64_t i = 0; i < a.slot_TK.numel(); ++i) {
    const std::int32_t slot = a.slot_TK.as<std::int32_t>()[i], own = slot < -1 ? same_slot(slot) : slot;
    a.weight_TK.as<float>()[i] = own < 0 ? 0.0f : a.from_RK.as<float>()[own * copies + i % copies];
  }
}

void CpuBackend::combine_rows(Stream&, const CombineRows& a) {
  check_args(a);
  for_each_block(pool_, a.to_TD.size(0), rows_per_block(a.row_TK.size(1) * a.to_TD.size(1)),
                 [&](std::int64_t begin, std::int64_t end) { vector_.combine_rows(a, begin, end); });
}

void CpuBackend::weigh_rows(Stream&, const WeighRows& a) {
  check_args(a);
  for_each_block(pool_, a.act_RF.size(0), rows_per_block(2 * a.act_RF.size(1)),
                 [&](std::int64_t begin, std::int64_t end) { vector_.weigh_rows(a, begin, end); });
}

void CpuBackend::add_expert_bias(Stream&, const AddExpertBias& a) {
  check_args(a);
  const std::int64_t columns = a.y_RN.size(1);
  with_activation(a.y_RN.dtype, [&]<class T>(T) {
    for_each_used_row(pool_, a.first_E, columns, [&](std::int64_t r, std::int64_t expert) {
      const T* bias = a.bias_EN.as<T>() + expert * columns;
      T* y = a.y_RN.as<T>() + r * columns;
      for (std::int64_t i = 0; i < columns; ++i) y[i] = rounded_to<T>(to_float(y[i]) + to_float(bias[i]));
    });
  });
}

void CpuBackend::expert_bias_backward(Stream&, const ExpertBiasBackward& a) {
  check_args(a);
  constexpr std::int64_t kChunk = 256;  // columns that a thread sums at once
  const std::int64_t columns = a.dy_RN.size(1), chunks = (columns + kChunk - 1) / kChunk,
                     experts = a.first_E.numel() - 1;
  const std::int32_t* first = a.first_E.as<std::int32_t>();
  const auto* source = a.weight_TK.defined() ? a.source_R.as<std::int32_t>() : nullptr;
  const bool add = a.mode == WriteMode::accumulate;
  with_activation(a.dy_RN.dtype, [&]<class T>(T) {
    const auto sum_chunk = [&]<class G>(G* dbias, std::int64_t expert, std::int64_t begin) {
      const std::int64_t count = std::min(kChunk, columns - begin);
      std::array<float, kChunk> sums{};
      for (std::int64_t r = first[expert]; r < first[expert + 1]; ++r) {
        const T* dy = a.dy_RN.as<T>() + r * columns + begin;
        const float weight = source == nullptr ? 1.0f : a.weight_TK.as<float>()[source[r]];
        for (std::int64_t i = 0; i < count; ++i)
          sums[static_cast<std::size_t>(i)] += weight * to_float(dy[i]);
      }
      for (std::int64_t i = 0; i < count; ++i)
        dbias[i] = rounded_to<G>((add ? to_float(dbias[i]) : 0.0f) + sums[static_cast<std::size_t>(i)]);
    };
    if (a.dbias_EN.defined())
      with_activation(a.dbias_EN.dtype, [&]<class G>(G) {
        pool_.run(experts * chunks, [&](std::int64_t task, int) {
          const std::int64_t expert = task / chunks, begin = task % chunks * kChunk;
          sum_chunk(a.dbias_EN.as<G>() + expert * columns + begin, expert, begin);
        });
      });
    if (!a.bias_EN.defined()) return;
    for_each_used_row(pool_, a.first_E, columns, [&](std::int64_t r, std::int64_t expert) {
      const T* dy = a.dy_RN.as<T>() + r * columns;
      const T* bias = a.bias_EN.as<T>() + expert * columns;
      float sum = 0;
      for (std::int64_t i = 0; i < columns; ++i) sum += to_float(dy[i]) * to_float(bias[i]);
      a.dweight_TK.as<float>()[source[r]] += sum;
    });
  });
}

void CpuBackend::expert_fprop(Stream& stream, const ExpertFprop& a) {
  check_args(a);
  hold_planned(stream, scratch_bytes(a, target_));
  for (std::int64_t e = 0; e < a.first_E.numel() - 1; ++e)
    linear_fprop(stream, {.x_TC = rows_of(a.x_RC, a.first_E, e),
                          .weight = {matrix_of(a.weight_NC, a.first_E, e), {}, a.format},
                          .bias_N = {},
                          .addend_TN = {},
                          .y_TN = rows_of(a.y_RN, a.first_E, e)});
}

void CpuBackend::expert_dgrad(Stream& stream, const ExpertDgrad& a) {
  check_args(a);
  hold_planned(stream, scratch_bytes(a, target_));
  for (std::int64_t e = 0; e < a.first_E.numel() - 1; ++e)
    linear_dgrad(stream, {.dy_TN = rows_of(a.dy_RN, a.first_E, e),
                          .weight = {matrix_of(a.weight_NC, a.first_E, e), {}, a.format},
                          .dx_TC = rows_of(a.dx_RC, a.first_E, e)});
}

void CpuBackend::expert_wgrad(Stream& stream, const ExpertWgrad& a) {
  check_args(a);
  hold_planned(stream, scratch_bytes(a, target_));
  for (std::int64_t e = 0; e < a.first_E.numel() - 1; ++e)
    linear_wgrad(stream, {.dy_TN = rows_of(a.dy_RN, a.first_E, e),
                          .x_TC = rows_of(a.x_RC, a.first_E, e),
                          .dweight_NC = matrix_of(a.dweight_NC, a.first_E, e),
                          .dbias_N = {},
                          .mode = a.mode,
                          .format = a.format});
}

}  // namespace trainerd::kernels
