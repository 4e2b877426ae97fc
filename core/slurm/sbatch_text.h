#pragma once

#include <string_view>

namespace trainerd::core {

/// deploy/slurm/trainerd.sbatch.
std::string_view sbatch_text();

}  // namespace trainerd::core
