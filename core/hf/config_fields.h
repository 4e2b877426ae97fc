#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/job/model_options.h"

// Kinds of fields of a config.json, of which families.cpp makes its tables. For sources of this room alone.

namespace trainerd::core::hf {

/// A config.json while it is read.
struct Reading {
  const nlohmann::json& json;
  job::ModelOptions model;
  std::vector<std::string> problems, notes;

  void problem(const std::string& field, const std::string& what) { problems.push_back(field + ": " + what); }
};
/// A config.json while it is written.
struct Writing {
  const job::ModelOptions& model;
  const nlohmann::json& source;  ///< the one that training began from; an empty object: there is none
  nlohmann::ordered_json& out;
};

struct Field {
  std::string name;
  /// `value` is null where the file does not have the field; a JSON null is a value.
  std::function<void(Reading&, const nlohmann::json* value)> read;
  std::function<void(Writing&)> write;
};

using SizeOption = std::int64_t job::ModelOptions::*;
using RealOption = double job::ModelOptions::*;
using FlagOption = bool job::ModelOptions::*;
using SoftcapOption = double& (*)(job::ModelOptions&);

/// A positive integer that must be there.
Field size_field(const std::string& name, SizeOption option);
/// The same; where it is absent the option stays 0, for `complete` to fill.
Field optional_size_field(const std::string& name, SizeOption option);
/// The width of a head; absent: hidden / heads, and left out where it is that, since some versions do not
/// know it.
Field head_dim_field(const std::string& name);
/// The positions that a model was made for: `seq_len`. Rotary models keep the source's if it is more.
Field positions_field(const std::string& name);
Field real_field(const std::string& name, RealOption option, double fallback);
Field flag_field(const std::string& name, FlagOption option, bool fallback);
/// One of `values`, which mean the same and are what this program computes; absent or null is the first.
Field fixed_field(const std::string& name, std::vector<nlohmann::json> values, const std::string& why);
/// Changes nothing that training computes: copied from the source.
Field kept_field(const std::string& name);
/// A token id, copied from the source; without a source it is written as null. If the field were absent,
/// transformers would use its default, an id of another vocabulary.
Field token_field(const std::string& name);
/// A rate of dropout, which training takes from the job alone: noted when it is not 0, and kept. `key`: of
/// the job, that has such a rate; empty: none has.
Field dropout_field(const std::string& name, const std::string& key = {});

/// The base of the rotary angles, at the top or in `rope_parameters`, how they are scaled, and which part of
/// a head is rotated: `rotary_fraction` where it is not said; none: always the whole of it.
std::vector<Field> rope_fields(std::optional<double> rotary_fraction = {});
/// Of Phi-3: the same, scaled by longrope alone, with the original length at the top. Behind
/// `max_position_embeddings`.
std::vector<Field> longrope_fields(std::optional<double> rotary_fraction);
/// Of Gemma 3: the same for full layers, and a base of their own for sliding ones.
std::vector<Field> two_rope_fields(double theta, double sliding_theta);
/// Of Gemma: which layers slide, by name, or all but every `period`-th; and their window.
std::vector<Field> layer_type_fields(std::int64_t window, std::int64_t period);
/// What scores are multiplied by.
Field score_scale_field(const std::string& name, double fallback);
/// By whose root scores are divided.
Field query_scalar_field(const std::string& name, double fallback);
/// Of scores or of logits; null means none, absent means `fallback` (0: none).
Field softcap_field(const std::string& name, SoftcapOption option, double fallback);
/// Of Mistral: one window for all layers; absent means `fallback`.
Field window_field(const std::string& name, std::int64_t fallback);
/// Of Qwen: a window for layers from some layer on, or by `layer_types`.
std::vector<Field> window_fields();
/// Fields of every model that change nothing here, or must have one value.
std::vector<Field> common_fields();

/// What is left of the fields of layers and of rotary angles; parts of `complete`.
void complete_layers(Reading& reading);
void complete_rope(Reading& reading);

/// Fills what a file may leave out, and checks the sizes with each other.
void complete(Reading& reading);

}  // namespace trainerd::core::hf
