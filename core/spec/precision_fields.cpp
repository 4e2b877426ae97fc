#include "core/spec/field_table.h"

// Keys of the data types, and the recipes that name them.

namespace trainerd::core::spec {
namespace {

using kernels::DType;

constexpr double kMostScale = 0x1p32;
constexpr double kMostWindow = 1 << 24;  // kernels::LossScaleState counts to it

}  // namespace

void add_precision(FieldTable& t, job::PrecisionRecipe& r) {
  const bool named = r.name != "custom";
  t.add("precision", RecipeName{&r},
        "a recipe (bf16: bf16 weights, activations and GEMM operands; fp32 accumulation, gradients, "
        "master weights and moments; fp16: the same in fp16, with `loss_scale: dynamic`; fp8: bf16 with "
        "`gemm: fp8`), or a map of the keys below");
  const auto format = [&](const char* key, DType& dtype, const char* meaning) -> Field& {
    Field& field = t.choice(std::string("precision.") + key, dtype,
                            {{"fp32", DType::f32}, {"bf16", DType::bf16}}, meaning);
    return field.idle_if(named, "the recipe is given by name");
  };
  const auto read_format = [&](const char* key, DType& dtype, const char* meaning) -> Field& {
    Field& field = t.choice(std::string("precision.") + key, dtype,
                            {{"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}}, meaning);
    return field.idle_if(named, "the recipe is given by name");
  };
  read_format("compute", r.compute, "activations and GEMM operands").or_else("`fp32`");
  read_format("params", r.params, "weights as the forward pass reads them")
      .only_if(r.params == r.compute, "the value of `compute`", "make it the same as precision.compute")
      .or_else("`compute`");
  format("grads", r.grads, "accumulated parameter gradients").or_else("`fp32`");
  format("reduce", r.reduce,
         "gradients on their way to other data-parallel ranks; fp32: as `grads` holds them; bf16: rounded to "
         "nearest, and summed in fp32 in rank order")
      .or_else("`fp32`");
  format("master", r.master, "weights as the optimizer updates them; bf16: the parameters themselves")
      .only_if(r.master == DType::f32 || r.master == r.params, "`fp32` or the value of `params`",
               "set it to fp32")
      .or_else("`fp32`");
  format("moments", r.moments, "the optimizer's states: moments, momentum").or_else("`fp32`");
  t.choice("precision.rounding", r.rounding,
           {{"nearest", kernels::Rounding::nearest}, {"stochastic", kernels::Rounding::stochastic}},
           "of master weights and second moments in bf16; stochastic: up or down by chance, so that small "
           "updates are not lost")
      .idle_if(named, "the recipe is given by name");
  job::LossScaling& scale = r.loss_scale;
  t.choice("precision.loss_scale", scale.dynamic, {{"none", false}, {"dynamic", true}},
           "factor of the loss's gradient, which updates take out again, so that gradients in fp16 do not "
           "underflow; dynamic: halved after a step whose gradients overflow, which updates nothing")
      .or_else("`dynamic` if `compute` is fp16, else `none`")
      .idle_if(named, "the recipe is given by name");
  const auto scaling = [&](Field& field) {
    field.idle_if(named || !scale.dynamic,
                  named ? "the recipe is given by name" : "precision.loss_scale is none");
  };
  scaling(t.add("precision.initial_loss_scale", &scale.initial,
                "the scale that a run begins with; a power of two")
              .between(1, kMostScale));
  scaling(t.add("precision.min_loss_scale", &scale.least,
                "the least scale, a power of two; gradients that overflow with it end the run")
              .between(1, kMostScale));
  scaling(t.add("precision.loss_scale_window", &scale.window,
                "updates without an overflow after which the scale doubles")
              .between(1, kMostWindow));
  t.choice(
       "precision.gemm", r.gemm, {{"compute", kernels::GemmFormat::plain}, {"fp8", kernels::GemmFormat::fp8}},
       "operands of the GEMMs of layers (attention projections, MLPs and experts, not router and output "
       "head); compute: in "
       "`compute`; fp8: rounded to E4M3 in blocks of 128 (weights 128 x 128), each with a power of two as "
       "its scale")
      .idle_if(named, "the recipe is given by name");
}

std::vector<std::string> recipe_names() { return {"fp32", "bf16", "fp16", "fp8"}; }

bool recipe_by_name(const std::string& name, job::PrecisionRecipe& recipe) {
  const bool fp8 = name == "fp8", bf16 = fp8 || name == "bf16", fp16 = name == "fp16";
  if (!bf16 && !fp16 && name != "fp32") return false;
  recipe = job::PrecisionRecipe{};
  recipe.name = name;
  recipe.compute = recipe.params = bf16 ? DType::bf16 : fp16 ? DType::f16 : DType::f32;
  recipe.gemm = fp8 ? kernels::GemmFormat::fp8 : kernels::GemmFormat::plain;
  recipe.loss_scale.dynamic = fp16;
  return true;
}

}  // namespace trainerd::core::spec
