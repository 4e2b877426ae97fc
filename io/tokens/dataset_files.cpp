#include "io/tokens/dataset_files.h"

#include <set>
#include <string>

#include "io/text/json.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr std::string_view kDataset = "/dataset.json";

// Returns the names of its .bin/.idx pairs; empty if the file was not written by `trainerd data prepare`.
std::vector<std::string> names_in_dataset(const std::string& path, const DataFiles& from) {
  const DataFile file = from.open(path);
  if (!file) return {};
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  text.resize(static_cast<std::size_t>(file.read(0, std::as_writable_bytes(std::span(text)))));
  std::vector<std::string> names;
  try {
    const nlohmann::json dataset = parse_json(text);
    if (!dataset.is_object() || !dataset.contains("files")) return {};
    for (const nlohmann::json& entry : dataset["files"]) names.push_back(string_member(entry, "name"));
  } catch (const JsonError& error) {
    throw base::data_error(
        path + ": " + error.what() +
        "; prepare the data again, or remove the file if it is not of `trainerd data prepare`");
  }
  return names;
}

}  // namespace

void check_datasets_are_whole(std::span<const ListedFile> files, const DataFiles& from) {
  std::set<std::string> there;
  for (const ListedFile& file : files) there.insert(file.path);
  for (const ListedFile& file : files) {
    if (file.named || !file.path.ends_with(kDataset)) continue;
    const std::string folder = file.path.substr(0, file.path.size() - kDataset.size());
    for (const std::string& name : names_in_dataset(file.path, from))
      for (const char* ending : {".bin", ".idx"})
        if (const std::string path = folder + "/" + name + ending; !there.contains(path))
          throw base::data_error(
              path +
              ": it is not there, and the dataset.json beside it names it: copy it too, or "
              "prepare the data again; to train on a part, name its files");
  }
}

}  // namespace trainerd::io
