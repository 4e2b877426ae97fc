#pragma once

#include <string_view>

namespace trainerd::core::slurm {

/// The text of deploy/slurm/trainerd.sbatch.
std::string_view sbatch_text();

}  // namespace trainerd::core::slurm
