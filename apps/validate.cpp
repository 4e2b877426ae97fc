#include <cerrno>
#include <cstdio>

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "core/spec/machines.h"
#include "core/spec/report.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"
#include "parallel/placement_svg.h"

namespace trainerd::apps {
namespace {

void write_file(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  if (file == nullptr || std::fclose(file) != 0 || !written)
    throw base::spec_error("--svg: cannot write " + path + ": " + base::errno_text(error));
}

}  // namespace

int validate_command(const ValidateArgs& args) {
  const core::JobSpec job = core::load_job(args.job, args.overrides);
  const parallel::PlacedGrid placed = core::place_job(job);
  if (!args.picture.empty()) write_file(args.picture, parallel::placement_svg(placed));
  print(args.json ? core::job_json(job, placed) : core::to_yaml(job) + core::placement_comments(placed));
  return kExitDone;
}

}  // namespace trainerd::apps
