#pragma once

#include "kernels/cuda/kernels/kernels.h"

namespace trainerd::kernels::cuda {

/// The product of experts' rows with their weights, or with transposed ones, in FP8 (GemmFormat::fp8).
struct ExpertFp8Rows {
  Tensor x;          ///< bf16 [R, k]
  Tensor weight_NC;  ///< bf16
  Tensor first_E;
  Tensor y;  ///< bf16
  bool transposed = false;
};
void expert_fp8_rows(const Launch&, const char* name, const ExpertFp8Rows&);
void expert_fp8_wgrad(const Launch&, const ExpertWgrad&);

}  // namespace trainerd::kernels::cuda
