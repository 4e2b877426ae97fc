#pragma once

#include <memory>

#include "core/hf/weight_source.h"
#include "core/spec/document.h"
#include "core/spec/problems.h"
#include "core/spec/read.h"
#include "core/spec/surroundings.h"

namespace trainerd::core::spec {

/// Where the tree has `model.from`: makes the path absolute, as it is relative to the directory of `around`
/// or else to the working directory, and puts the source's `model` keys below those of the job. A problem
/// where there are no weights at the path, or none that can be trained. Null: there is no source.
std::unique_ptr<hf::WeightSource> merge_weights_source(Node& root, const Surroundings& around,
                                                       Problems& problems);

/// Every key of `model` that says something else than the source becomes a problem with both values.
void check_weights_source(const job::ModelOptions& model, const hf::WeightSource& weights,
                          const Places& places, Problems& problems);

}  // namespace trainerd::core::spec
