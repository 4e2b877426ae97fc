#pragma once

#include <vector>

#include "core/job/model_options.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::model {

/// The angles of rotary positions: pair i of a head turns by frequency_i per position, and cos and sin are
/// multiplied by `factor`.
struct RopeFrequencies {
  std::vector<double> of_pair;  ///< [R/2], R being the rotated elements of a head
  double factor = 1.0;
};

/// theta^(-2i/R), scaled as in transformers' modeling_rope_utils.py:
///   linear  divided by the factor (Chen et al., arXiv 2306.15595)
///   llama3  divided for wavelengths above original / low_freq_factor, unchanged for those below
///           original / high_freq_factor, blended between (Llama 3.1)
///   yarn    divided for pairs with fewer than beta_slow turns over the original length, unchanged for those
///           with more than beta_fast turns, blended between; with a factor for cos and sin (Peng et al.,
///           arXiv 2309.00071)
RopeFrequencies rope_frequencies(const job::ModelOptions& model);
/// The frequencies of sliding layers, if they have their own base.
RopeFrequencies sliding_rope_frequencies(const job::ModelOptions& model);

/// cos and sin of every position, per kind of layer.
struct RopeTables {
  kernels::Tensor full_SR;     ///< undefined without rotary positions
  kernels::Tensor sliding_SR;  ///< equal to `full_SR` if sliding layers have no own base
};
RopeTables take_rope_tables(const job::ModelOptions& model, kernels::Arena& arena);
void fill_rope_tables(const job::ModelOptions& model, const RopeTables& tables, kernels::Backend& backend,
                      kernels::Stream& stream);

}  // namespace trainerd::core::model
