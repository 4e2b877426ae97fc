#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/spec/fields.h"

// Functions that build the table of fields.h, spread over several files.

namespace trainerd::core::spec {

inline constexpr double kMaxRestarts = 1000;

class FieldTable {
 public:
  Field& add(std::string path, Storage storage, std::string meaning) {
    return fields_.emplace_back(Field{std::move(path), std::move(storage), std::move(meaning)});
  }
  template <class Enum>
  Field& choice(std::string path, Enum& value,
                std::initializer_list<EnumWord<std::type_identity_t<Enum>>> words, std::string meaning) {
    return add(std::move(path), Choice(value, words), std::move(meaning));
  }
  std::vector<Field> take() { return std::move(fields_); }

 private:
  std::vector<Field> fields_;
};

/// Keys that select which linear layers have biases.
void add_biases(FieldTable& t, job::ModelOptions& m);
/// Keys of scaled rotary angles, and of differences between layers.
void add_layers(FieldTable& t, job::ModelOptions& m);

/// Keys of multi-head latent attention.
void add_mla(FieldTable& t, job::ModelOptions& m);

/// Keys of how attention runs on a GPU: the short form, and the keys of the map.
void add_attention(FieldTable& t, job::JobSpec& job);
void add_attention_section(FieldTable& t, job::JobSpec& job);

/// Keys of the axes of parallelism.
void add_parallel(FieldTable& t, job::JobSpec& job);

/// Keys of the loss terms besides cross entropy.
void add_objective(FieldTable& t, job::JobSpec& job);
/// The data types.
void add_precision(FieldTable& t, job::PrecisionRecipe& recipe);

/// Keys of gradient norms by group.
void add_group_norms(FieldTable& t, io::MetricsOptions& m);

/// Keys of a blend of sources and of a split by documents. `idle`: why they have no effect in this job;
/// empty: they have one.
void add_sources(FieldTable& t, io::DataOptions& d, const std::string& idle);

/// Keys of checkpoints and of their durable tier.
void add_checkpoint(FieldTable& t, job::JobSpec& job);
/// Keys of snapshots in memory.
void add_memory_tiers(FieldTable& t, job::JobSpec& job);

/// Keys of how a run supervises its ranks and nodes.
void add_supervise(FieldTable& t, job::JobSpec& job);

/// Keys of the cache of data at s3://.
void add_cache(FieldTable& t, io::DataOptions& d);

/// Keys of validation data, and of evaluations.
void add_validation(FieldTable& t, io::DataOptions& d, const std::string& idle);
void add_evaluation(FieldTable& t, job::JobSpec& job);

}  // namespace trainerd::core::spec
