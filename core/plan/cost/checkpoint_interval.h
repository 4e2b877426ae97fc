#pragma once

// How often a job saves: what saving costs against what a failure does. The planner, the simulator of
// failures and the run itself (`checkpoint.every: auto`) use these.

namespace trainerd::core::plan {

/// Useful seconds between saves that waste least, given what a save costs and the mean time between failures.
/// Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps" (2006), eq. 37; its
/// first term alone is Young's (1974). From a cost of twice the mean time on, that mean time.
double daly_interval_seconds(double save_seconds, double mtbf_seconds);

/// The same where a save is written behind training: no fewer than that takes, or saves would wait for each
/// other. `save_seconds`: the checkpoint stall of a save.
double checkpoint_interval_seconds(double save_seconds, double write_seconds, double mtbf_seconds);

}  // namespace trainerd::core::plan
