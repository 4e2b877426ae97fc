#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/field_table.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Adds the keys of the section `faults`.
void add_faults(FieldTable& t, job::FaultsOptions& faults);
/// Why the job cannot have a fault of this kind, as text; empty: it can.
std::string unfit(job::FaultKind kind, const job::JobSpec& job);
/// Faults that contradict each other or the rest of the job.
std::vector<KeyProblem> fault_problems(const job::JobSpec& job, const Problems& bad);

}  // namespace trainerd::core::spec
