#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/spec/field_table.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// The keys of the section `faults`.
void add_faults(FieldTable& t, job::FaultsOptions& faults);
/// Why the job cannot have a fault of that kind, for people; empty: it can.
std::string unfit(job::FaultKind kind, const job::JobSpec& job);
/// What of them does not go with each other or with the rest of the job.
std::vector<KeyProblem> fault_problems(const job::JobSpec& job, const Problems& bad);

}  // namespace trainerd::core::spec
