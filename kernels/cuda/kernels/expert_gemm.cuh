#pragma once

#include "kernels/cuda/kernels/kernels.h"

namespace trainerd::kernels::cuda {

/// The product of experts' rows with their weights, or with transposed ones. Tensors as in ExpertFprop.
struct ExpertRows {
  Tensor x;  ///< bf16 or fp16 [R, k]; bf16 for FP8
  Tensor weight_NC;
  Tensor first_E;
  Tensor y;  ///< like x
  bool transposed = false;
};

/// The weight gradients of experts, assigned or added.
struct ExpertGradients {
  Tensor dy_RN;
  Tensor x_RC;
  Tensor first_E;
  Tensor dweight_NC;  ///< bf16 or fp32; fp32 for fp16
  bool add = false;
};

/// In FP8 (GemmFormat::fp8).
void expert_fp8_rows(const Launch&, const char* name, const ExpertRows&);
void expert_fp8_gradients(const Launch&, const char* name, const ExpertGradients&);

/// In bf16 or fp16, on Hopper. Rows of all matrices consist of 16-byte chunks.
void expert_group_rows(const Launch&, const char* name, const ExpertRows&);
void expert_group_gradients(const Launch&, const char* name, const ExpertGradients&);

}  // namespace trainerd::kernels::cuda
