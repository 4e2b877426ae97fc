#pragma once

#include <memory>

#include "core/hf/weight_source.h"
#include "core/spec/document.h"
#include "core/spec/problems.h"
#include "core/spec/read.h"
#include "core/spec/surroundings.h"

namespace trainerd::core::spec {

/// If the tree has `model.from`: makes the path absolute (relative to the directory of `around`, or to the
/// working directory) and merges the source's `model` keys below those of the job. A problem if there are no
/// weights at the path, or none that can be trained. Null: there is no source.
std::unique_ptr<hf::WeightSource> merge_weights_source(Node& root, const Surroundings& around,
                                                       Problems& problems);

/// Reports every `model` key that contradicts the source, with both values.
void check_weights_source(const job::ModelOptions& model, const hf::WeightSource& weights,
                          const Places& places, Problems& problems);

}  // namespace trainerd::core::spec
