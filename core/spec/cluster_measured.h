#pragma once

#include <string>
#include <vector>

#include "core/spec/fields.h"
#include "parallel/layout/measured_rates.h"

namespace trainerd::core::spec {

/// Adds the keys of a cluster file's `measured` section below `prefix`, bound to `rates`: `trainerd
/// calibrate` writes it. Curves that are not given are left as empty lists: `drop_empty_curves` takes them
/// out.
void add_measured_fields(std::vector<Field>& fields, const std::string& prefix,
                         parallel::MeasuredRates& rates);
void drop_empty_curves(parallel::MeasuredRates& rates);

/// What is wrong with the numbers of a curve, by its key in the file; empty when nothing is.
std::string curve_problem(const parallel::MeasuredRates& rates);

}  // namespace trainerd::core::spec
