#include "core/spec/check_precision.h"

#include <cmath>
#include <string>

#include "core/spec/write.h"

namespace trainerd::core::spec {
namespace {

using kernels::DType;

void check_loss_scale(const job::PrecisionRecipe& r, std::vector<KeyProblem>& problems) {
  const job::LossScaling& scale = r.loss_scale;
  if (!scale.dynamic) {
    const job::LossScaling defaults;
    const auto idle = [&](const char* key, bool changed) {
      if (changed) problems.push_back({key, "has no effect: precision.loss_scale is none; leave it out"});
    };
    idle("precision.initial_loss_scale", scale.initial != defaults.initial);
    idle("precision.min_loss_scale", scale.least != defaults.least);
    idle("precision.loss_scale_window", scale.window != defaults.window);
    return;
  }
  if (r.compute != DType::f16) {
    problems.push_back(
        {"precision.loss_scale", std::string("dynamic is for gradients in fp16, and compute is ") +
                                     kernels::name_of(r.compute) + ": set it to none"});
    return;
  }
  const auto power_of_two = [&](const char* key, double value) {
    int exponent = 0;
    if (std::frexp(value, &exponent) != 0.5)
      problems.push_back({key, number_text(value) + " is no power of two (nearest valid: " +
                                   number_text(std::exp2(std::round(std::log2(value)))) + ")"});
  };
  power_of_two("precision.initial_loss_scale", scale.initial);
  power_of_two("precision.min_loss_scale", scale.least);
  if (scale.initial < scale.least)
    problems.push_back({"precision.initial_loss_scale", number_text(scale.initial) +
                                                            " is less than min_loss_scale (nearest valid: " +
                                                            number_text(scale.least) + ")"});
}

}  // namespace

std::vector<KeyProblem> precision_problems(const job::PrecisionRecipe& r) {
  std::vector<KeyProblem> problems;
  if (r.rounding == kernels::Rounding::stochastic && r.master != DType::bf16 && r.moments != DType::bf16)
    problems.push_back(
        {"precision.rounding",
         "stochastic is for master weights or moments in bf16, and both are fp32: set precision.master or "
         "precision.moments to bf16, or leave it out"});
  if (r.gemm == kernels::GemmFormat::fp8 && r.compute != DType::bf16)
    problems.push_back({"precision.gemm", std::string("fp8 is rounded from bf16, and compute is ") +
                                              kernels::name_of(r.compute) +
                                              ": set precision.compute to bf16"});
  if (r.compute == DType::f16 && r.grads == DType::bf16)
    problems.push_back(
        {"precision.grads", "gradients of fp16 weights are accumulated in fp32: set it to fp32"});
  check_loss_scale(r, problems);
  return problems;
}

}  // namespace trainerd::core::spec
