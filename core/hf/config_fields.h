#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/job/model_options.h"

// Kinds of config.json fields, from which families.cpp builds its tables. Internal to core/hf.

namespace trainerd::core::hf {

/// State while reading a config.json.
struct Reading {
  const nlohmann::json& json;
  job::ModelOptions model;
  std::vector<std::string> problems, notes;
  std::int64_t further_layers = 0;  ///< SourceConfig::further_layers

  void problem(const std::string& field, const std::string& what) { problems.push_back(field + ": " + what); }
};
/// State while writing a config.json.
struct Writing {
  const job::ModelOptions& model;
  const nlohmann::json& source;  ///< the config.json that training began from; an empty object: none
  nlohmann::ordered_json& out;
};

struct Field {
  std::string name;
  /// `value` is null if the file does not have the field; a JSON null is a value.
  std::function<void(Reading&, const nlohmann::json* value)> read;
  std::function<void(Writing&)> write;
};

using SizeOption = std::int64_t job::ModelOptions::*;
using RealOption = double job::ModelOptions::*;
using FlagOption = bool job::ModelOptions::*;
using SoftcapOption = double& (*)(job::ModelOptions&);

/// A required positive integer.
Field size_field(const std::string& name, SizeOption option);
/// The same, but optional: if absent, the option stays 0 and `complete` fills it in.
Field optional_size_field(const std::string& name, SizeOption option);
/// Of experts: a required size; and whether a token's weights sum to 1.
Field expert_size_field(const std::string& name, std::int64_t job::ExpertOptions::*option);
/// The same under another name, which newer versions of transformers write in place of `name`: the file has
/// one of them.
std::vector<Field> renamed_expert_size_field(const std::string& name, const std::string& newer,
                                             std::int64_t job::ExpertOptions::*option);
Field normalise_field(const std::string& name, bool fallback);
/// The width of dense layers, which may be absent if there are none, and that of each expert.
std::vector<Field> expert_width_fields(const std::string& dense, const std::string& expert);
/// The width of the shared MLP, as a number of experts; absent: one.
Field shared_experts_field(const std::string& name, const std::string& expert_width,
                           std::int64_t fallback = 1);
/// For Qwen: every so many layers one with experts, and a list of dense layers.
std::vector<Field> sparse_layer_fields();
/// The head size. If absent it is hidden / heads; that value is not written, because some versions do not
/// know the field.
Field head_dim_field(const std::string& name);
/// The model's number of positions: `seq_len`. Rotary models keep the source's number if it is larger.
Field positions_field(const std::string& name);
Field real_field(const std::string& name, RealOption option, double fallback);
/// Number of expert groups, and of groups per token (n_group, topk_group). `count` and `top` are the
/// defaults.
std::vector<Field> group_fields(std::int64_t count, std::int64_t top);
/// Number of layers behind the model's that predict further tokens (multi-token prediction); transformers'
/// default is 1.
std::vector<Field> predictors_fields(const std::string& name, const std::string& newer);
/// Reason in the message about fields of a router with biases.
inline constexpr const char* kBiasedRouting =
    "the router's scores are sigmoids, and biases choose among them";
/// `fallback`: if the field is absent.
Field expert_scale_field(const std::string& name, double fallback = 1);
/// How many of the first layers are dense.
Field dense_layers_field(const std::string& name, std::int64_t fallback);
Field flag_field(const std::string& name, FlagOption option, bool fallback);
/// A field with one of `values`, which are equivalent and the only supported ones; absent or null counts as
/// the first.
Field fixed_field(const std::string& name, std::vector<nlohmann::json> values, const std::string& why);
/// A field that does not change training; copied from the source.
Field kept_field(const std::string& name);
/// Name of a program in the directory (Phi-3, DeepSeek). It is not run: the model is of transformers' own
/// class with the file's architecture name, as in transformers without trust_remote_code.
Field own_program_field(const std::string& name);
/// A field whose value follows from other fields: neither read nor written.
Field ignored_field(const std::string& name);
/// A token id, copied from the source; without a source written as null. If the field were absent,
/// transformers would use its default, an id of another vocabulary.
Field token_field(const std::string& name);
/// A dropout rate. Training takes rates from the job only, so a rate other than 0 gives a note and is kept.
/// `key`: the job key of this rate; empty: there is none.
Field dropout_field(const std::string& name, const std::string& key = {});

/// The rotary base (at the top or in `rope_parameters`), the scaling of angles, and the rotated fraction of a
/// head. `rotary_fraction` is the default of the fraction; without it the whole head is always rotated.
std::vector<Field> rope_fields(std::optional<double> rotary_fraction = {});
/// Of Phi-3: the same, scaled by longrope alone, with the original length at the top. Behind
/// `max_position_embeddings`.
std::vector<Field> longrope_fields(std::optional<double> rotary_fraction);
/// Of Gemma 3: the same for full layers, and a base of their own for sliding ones.
std::vector<Field> two_rope_fields(double theta, double sliding_theta);
/// Of OLMo 3: one base, and a scaling for full layers alone.
std::vector<Field> full_rope_fields(double theta);
/// Of MiniMax-M2: a part of each head is rotated, in older files given by its elements. Behind `head_dim`.
std::vector<Field> rotary_dim_fields(double theta);
/// For DeepSeek: `mscale_all_dim` also scales attention scores. Must follow the fields with the head sizes.
std::vector<Field> latent_rope_fields();
/// For Gemma: the sliding layers, by name or all except every `period`-th, and their window.
std::vector<Field> layer_type_fields(std::int64_t window, std::int64_t period);
/// Factor of attention scores.
Field score_scale_field(const std::string& name, double fallback);
/// Scores are divided by the root of this.
Field query_scalar_field(const std::string& name, double fallback);
/// Softcap of scores or logits; null means none, absent means `fallback` (0: none).
Field softcap_field(const std::string& name, SoftcapOption option, double fallback);
/// For Mistral: one window for all layers; absent means `fallback`.
Field window_field(const std::string& name, std::int64_t fallback);
/// For Qwen: a window for layers from a given layer on, or by `layer_types`.
std::vector<Field> window_fields();
/// For Qwen's models with experts: all layers are full.
std::vector<Field> no_window_fields();
/// For dots.llm1: no layer slides. `window` and `first` are transformers' defaults of the window and of the
/// first layer that slides.
std::vector<Field> late_window_fields(std::int64_t window, std::int64_t first);
/// Fields of every model that have no effect here, or must have one value.
std::vector<Field> common_fields();

/// What is left of the fields of layers and of rotary angles; parts of `complete`.
void complete_layers(Reading& reading);
void complete_rope(Reading& reading);

/// Fills in what a file may leave out, and checks sizes against each other.
void complete(Reading& reading);

}  // namespace trainerd::core::hf
