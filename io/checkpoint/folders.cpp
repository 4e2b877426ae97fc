#include "io/checkpoint/folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "io/checkpoint/files.h"
#include "io/storage/file_errors.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kReplaced = ".old";

void sort_newest_first(std::vector<Folder>& folders) {
  std::sort(folders.begin(), folders.end(), [](const Folder& a, const Folder& b) {
    return a.step != b.step ? a.step > b.step : a.attempt > b.attempt;
  });
}

// Parses all of `text` as a number >= 0.
std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

std::string folder_name(std::int64_t step, std::int64_t attempt) {
  return fmt::format("{}{:08}{}", kStepPrefix, step, attempt > 1 ? fmt::format(".{}", attempt) : "");
}

std::optional<Folder> parse_folder(const std::string& name) {
  std::string_view rest = name;
  if (!rest.starts_with(kStepPrefix)) return std::nullopt;
  rest.remove_prefix(kStepPrefix.size());
  Folder folder{.name = name};
  if (rest.ends_with(kReplaced)) {
    folder.attempt = 0;
    rest.remove_suffix(kReplaced.size());
  } else if (const std::size_t dot = rest.find('.'); dot != std::string_view::npos) {
    const auto attempt = number_in(rest.substr(dot + 1));
    if (!attempt || *attempt < 2) return std::nullopt;
    folder.attempt = *attempt;
    rest = rest.substr(0, dot);
  }
  const auto step = number_in(rest);
  if (!step) return std::nullopt;
  folder.step = *step;
  return folder;
}

bool is_complete(const Storage& storage, const std::string& folder) {
  const std::string marker = folder + "/" + kMarkerFile;
  if (!storage.exists(marker)) return false;
  try {
    return storage.open(marker)->bytes() >= kMarkerBytes;
  } catch (const StorageError&) {
    throw;
  } catch (const base::CheckpointError&) {
    return true;  // verification reports what has this name instead
  }
}

Folders folders_of(const Storage& storage) {
  Folders folders;
  for (const std::string& name : storage.list(""))
    if (std::optional<Folder> folder = parse_folder(name)) {
      if (!is_complete(storage, name)) {
        folders.incomplete.push_back(*std::move(folder));
        continue;
      }
      folder->good = storage.exists(name + "/" + kGoodFile);
      folders.complete.push_back(*std::move(folder));
    }
  sort_newest_first(folders.complete);
  sort_newest_first(folders.incomplete);
  return folders;
}

}  // namespace trainerd::io
