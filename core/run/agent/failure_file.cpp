#include "core/run/agent/failure_file.h"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "io/storage/file_errors.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {

std::string restore_failures(RepeatedFailure& failures, const std::string& path, std::int64_t step) {
  if (::access(path.c_str(), F_OK) != 0 && io::is_absence(errno)) return "";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<CountedFailure> earlier;
  try {
    for (const nlohmann::json& j : nlohmann::json::parse(text))
      earlier.push_back({.cause = {.what = j.at("what"), .own = j.at("own")},
                         .step = j.at("step"),
                         .times = j.at("times")});
  } catch (const nlohmann::json::exception& error) {
    return path + ", which counts the failures of earlier runs, cannot be read: " + error.what() +
           "; failures are counted anew";
  }
  failures.restore(earlier, step);
  return "";
}

std::string write_failures(const RepeatedFailure& failures, const std::string& path) {
  nlohmann::json all = nlohmann::json::array();
  for (const CountedFailure& failure : failures.counted())
    all.push_back({{"what", failure.cause.what},
                   {"own", failure.cause.own},
                   {"step", failure.step},
                   {"times", failure.times}});
  const std::string text = all.dump(1) + "\n";
  const int error = base::write_file_atomically(path, std::as_bytes(std::span(text)));
  if (error == 0) return "";
  return path + " cannot be written: " + base::errno_text(error) +
         "; a later run of the job does not know of this failure";
}

}  // namespace trainerd::core::run
