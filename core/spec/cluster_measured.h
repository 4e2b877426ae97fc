#pragma once

#include <string>
#include <vector>

#include "core/spec/fields.h"
#include "parallel/layout/measured_rates.h"

namespace trainerd::core::spec {

/// Adds the keys of a cluster file's `measured` section below `prefix`, bound to `rates`. `trainerd
/// calibrate` writes this section. Curves that are not given remain as empty lists; `drop_empty_curves`
/// removes them.
void add_measured_fields(std::vector<Field>& fields, const std::string& prefix,
                         parallel::MeasuredRates& rates);
void drop_empty_curves(parallel::MeasuredRates& rates);

/// What is wrong with a curve's numbers, with its key in the file; empty if nothing is.
std::string curve_problem(const parallel::MeasuredRates& rates);

}  // namespace trainerd::core::spec
