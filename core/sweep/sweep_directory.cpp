#include <sys/file.h>

#include <cerrno>
#include <filesystem>
#include <span>

#include "core/spec/changes.h"
#include "core/spec/compose.h"
#include "core/spec/spec.h"
#include "core/sweep/run_sweep.h"
#include "io/storage/file_errors.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"

namespace trainerd::core::sweep {
namespace {

/// Keys in which a job differs from its start, but must not.
std::string changes_of(SweepJob& job, const std::string& was) {
  auto changes = spec::changed_keys(was, job.spec);
  if (!changes) return "its file is no job any more";
  std::string text;
  for (const spec::KeyChange& change : *changes) {
    if (change.key.starts_with("metrics.")) continue;
    if (change.key == "threads" && job.automatic_threads && !change.was.empty()) {
      job.spec.threads = std::stoll(change.was);
      continue;
    }
    text += (text.empty() ? "" : ", ") + spec::to_text(change);
  }
  return text;
}

}  // namespace

void write_whole(const std::string& path, const std::string& text) {
  if (const int error = base::write_file_atomically(path, std::as_bytes(std::span(text))); error != 0)
    throw io::output_error(path, "write", error);
}

SweepDirectory::SweepDirectory(const Sweep& sweep) {
  std::error_code error;
  std::filesystem::create_directories(sweep.output + "/jobs", error);
  if (error) throw io::output_error(sweep.output, "make", error.value());
  const std::string path = sweep.output + "/.lock";
  lock_ = base::open_shared(path);
  if (!lock_) throw io::open_error(path, errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0)
    throw base::spec_error("another sweep is using " + sweep.output +
                           "; wait for it, or set `output` to another directory");
}

void SweepDirectory::write_jobs(Sweep& sweep) const {
  for (SweepJob& job : sweep.jobs) {
    if (!job.refused.empty()) continue;
    const std::string path = sweep.job_file(job);
    std::error_code ignored;
    if (std::filesystem::exists(job.spec.output, ignored) && std::filesystem::exists(path, ignored)) {
      const std::string changes = changes_of(job, spec::read_text_file(path));
      if (!changes.empty())
        throw base::spec_error(
            job.name + " in " + sweep.output + " has begun with other keys (" + changes +
            "): a sweep goes on with the jobs that it has; set `output` to another directory");
    }
    write_whole(path, spec::to_yaml(job.spec));
  }
}

}  // namespace trainerd::core::sweep
