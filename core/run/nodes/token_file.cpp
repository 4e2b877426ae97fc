#include "core/run/nodes/token_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>
#include <utility>

#include "io/storage/file_errors.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"

namespace trainerd::core::run {
namespace {

constexpr std::int64_t kLongest = 4096;

/// The file's text; empty if it does not exist or is incomplete.
std::string text_at(const std::string& path) {
  const auto unusable = [&](const std::string& problem) {
    return base::spec_error(path + ", the job's token, " + problem +
                            "; give all agents one token in the environment variable TRAINERD_TOKEN instead");
  };
  const base::UniqueFd fd = base::open_regular(path);
  if (!fd && !io::is_absence(errno)) throw unusable("cannot be read: " + base::errno_text(errno));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || info.st_size > kLongest) return "";
  if ((info.st_mode & 077) != 0)
    throw unusable("can be used by others than its owner, or its file system does not say by whom");
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  const std::int64_t bytes = base::read_at(fd.get(), std::as_writable_bytes(std::span(text)), 0);
  text.resize(bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
  return text.ends_with('\n') ? text.substr(0, text.size() - 1) : "";
}

}  // namespace

std::string TokenFile::path(const std::string& output) { return output + "/.token"; }

TokenFile::TokenFile(std::string output, const parallel::JobToken& token)
    : output_(std::move(output)), text_(token.text()) {
  std::error_code made;
  made_output_ = std::filesystem::create_directories(output_, made);
  const std::string line = text_ + "\n";
  const int error =
      made ? made.value() : base::write_file_atomically(path(output_), std::as_bytes(std::span(line)), 0600);
  if (error == 0) {
    text_at(path(output_));  // throws here, before the other nodes, if it cannot be used
    return;
  }
  const std::string text =
      "the job's token cannot be written: " + path(output_) + ": " + base::errno_text(error);
  if (io::is_full_disk(error)) throw base::checkpoint_error(text + io::remedy_of(error, true));
  throw base::spec_error(text + "; set `output` to a directory that can be written");
}

// Another run with the same output may have replaced the file. A directory that was created for it is removed
// if it is empty.
TokenFile::~TokenFile() {
  try {
    if (text_at(path(output_)) != text_) return;
  } catch (const base::SpecError&) {
    return;
  }
  ::unlink(path(output_).c_str());
  if (made_output_) ::rmdir(output_.c_str());
}

std::optional<parallel::JobToken> TokenFile::read(const std::string& output) {
  std::string text = text_at(path(output));
  if (text.empty()) return std::nullopt;
  return parallel::JobToken(std::move(text), path(output));
}

}  // namespace trainerd::core::run
