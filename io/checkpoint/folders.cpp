#include "io/checkpoint/folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "io/checkpoint/files.h"

namespace trainerd::io {
namespace {

constexpr std::string_view kStepPrefix = "step-";

void sort_newest_first(std::vector<Folder>& folders) {
  std::sort(folders.begin(), folders.end(), [](const Folder& a, const Folder& b) {
    return a.step != b.step ? a.step > b.step : a.replaced < b.replaced;
  });
}

}  // namespace

std::string folder_name(std::int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

std::optional<Folder> parse_folder(const std::string& name) {
  std::string_view rest = name;
  if (!rest.starts_with(kStepPrefix)) return std::nullopt;
  rest.remove_prefix(kStepPrefix.size());
  Folder folder{.step = 0, .replaced = rest.ends_with(kReplaced), .name = name};
  if (folder.replaced) rest.remove_suffix(kReplaced.size());
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), folder.step);
  if (error != std::errc() || end != rest.data() + rest.size() || folder.step < 0) return std::nullopt;
  return folder;
}

bool is_complete(const Storage& storage, const std::string& folder) {
  return storage.exists(folder + "/" + kMarkerFile);
}

Folders folders_of(const Storage& storage) {
  Folders folders;
  for (const std::string& name : storage.list(""))
    if (std::optional<Folder> folder = parse_folder(name))
      (is_complete(storage, name) ? folders.complete : folders.incomplete).push_back(*std::move(folder));
  sort_newest_first(folders.complete);
  const auto same_step = [](const Folder& a, const Folder& b) { return a.step == b.step; };
  folders.complete.erase(std::unique(folders.complete.begin(), folders.complete.end(), same_step),
                         folders.complete.end());
  std::erase_if(folders.incomplete, [&](const Folder& folder) {
    return std::any_of(folders.complete.begin(), folders.complete.end(),
                       [&](const Folder& other) { return same_step(folder, other); });
  });
  sort_newest_first(folders.incomplete);
  return folders;
}

}  // namespace trainerd::io
