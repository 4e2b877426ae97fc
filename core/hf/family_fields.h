#pragma once

#include <initializer_list>
#include <vector>

#include "core/hf/config_fields.h"

// Lists of config.json fields that a family has, or shares with similar ones. Internal to core/hf.

namespace trainerd::core::hf {

std::vector<Field> joined(std::initializer_list<std::vector<Field>> lists);

/// Fields that Llama shares with similar families, without heads and rotary angles.
std::vector<Field> llama_fields(double eps, std::vector<Field> ffn = {
                                                size_field("intermediate_size", &job::ModelOptions::ffn)});
/// Fields common to the families with rotary positions. `kv_heads` and `head_dim` are parameters, because
/// transformers' defaults for them differ.
std::vector<Field> rotary_fields(Field kv_heads, Field head_dim, double eps = 1e-6);
/// Fields of models with experts. Losses of the router are the job's.
std::vector<Field> expert_fields(std::vector<Field> count);
/// Those of Qwen2-MoE and Qwen3-MoE, without head_dim and attention's biases.
std::vector<Field> qwen_moe_fields(const Field& kv_heads);
std::vector<Field> glm_moe_fields(const Field& kv_heads, const Field& head_dim);
std::vector<Field> dots_fields(const Field& kv_heads, const Field& head_dim);
std::vector<Field> minimax_fields(const Field& kv_heads);
std::vector<Field> gpt_oss_fields(const Field& kv_heads);
/// DeepSeek-V2 and V3, whose attention has latents.
std::vector<Field> deepseek_v2_fields();
std::vector<Field> deepseek_v3_fields();
/// Biases of queries, keys and values, and of attention's output.
std::vector<Field> seed_fields(const Field& kv_heads);
std::vector<Field> granite_fields(const Field& kv_heads, const Field& head_dim);
/// The head size is hidden / heads.
std::vector<Field> phi3_fields(const Field& kv_heads);
/// Fields that Gemma 2 and 3 share, without rotary angles and the windows' pattern.
std::vector<Field> gemma_fields(double softcap, double logit_softcap);
std::vector<Field> stablelm_fields();
std::vector<Field> gpt2_fields();

}  // namespace trainerd::core::hf
