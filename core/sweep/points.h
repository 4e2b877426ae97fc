#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/spec/document.h"
#include "core/spec/problems.h"
#include "core/spec/settings.h"

namespace trainerd::core::sweep {

/// Maximum number of jobs: each one is planned and has a directory.
inline constexpr std::int64_t kMaxSweepJobs = 10'000;

/// A key that a sweep sets in a job.
struct SetKey {
  std::string path;  ///< "optimizer.lr"
  std::string json;  ///< its value
};

/// The settings of one job of a sweep.
struct SweepPoint {
  std::vector<spec::Setting> settings;
  std::vector<SetKey> set;  ///< the same, for results
};

/// Values drawn from ranges: `random` or `sobol`.
struct Draw {
  std::int64_t samples = 0;
  std::uint64_t seed = 0;
  spec::Node over;  ///< a map from a key to [low, high] or [low, high, log]
};

/// The parts of a sweep's file that define its jobs.
struct PointSources {
  std::optional<spec::Node> grid, list;
  std::optional<Draw> random, sobol;
};

/// The jobs of the grid (the last key changes fastest), then of the list, the random draws and the Sobol
/// draws. Each value is checked by itself, like in a job file. Problems go to `problems`, whose first source
/// is the sweep's file `file`. A draw depends only on its seed, key and index.
std::vector<SweepPoint> make_points(const PointSources& sources, const std::string& file,
                                    spec::Problems& problems);

}  // namespace trainerd::core::sweep
