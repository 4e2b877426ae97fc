#pragma once

// How often a job saves: the cost of saving against the cost of failures. The planner, the failure simulator
// and the run itself (`checkpoint.every: auto`) use these functions.

namespace trainerd::core::plan {

/// Useful training seconds between saves that minimise waste, from the cost of a save and the mean time
/// between failures. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps"
/// (2006), eq. 37; its first term alone is Young's (1974). If a save costs twice the MTBF or more, the result
/// is the MTBF.
double daly_interval_seconds(double save_seconds, double mtbf_seconds);

/// The same for saves that are written during training: at least `write_seconds`, or saves would queue.
/// `save_seconds` is the checkpoint stall per save.
double checkpoint_interval_seconds(double save_seconds, double write_seconds, double mtbf_seconds);

}  // namespace trainerd::core::plan
