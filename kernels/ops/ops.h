#pragma once

// The arguments of every operator: one plain struct each, with named tensors. An optional tensor may be
// undefined (`Tensor::defined()` false). "Activation dtype" is fp32, bf16 or fp16, the same for all
// activations of one call. Letters: T tokens, D hidden, H query heads, K key/value heads, E head size, F ffn,
// V vocabulary rows held here, N and C output and input features of a linear layer. Statistics (mean, rstd,
// lse, max, sum) are f32. Gradients of parameters are f32 or bf16 and are written by `WriteMode`; gradients
// of activations are assigned unless stated otherwise.

#include "kernels/ops/attention.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/latent_heads.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/mlp.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/orthogonal.h"
#include "kernels/ops/reduce.h"
#include "kernels/ops/update.h"
