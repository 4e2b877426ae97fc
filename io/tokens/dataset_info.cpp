#include "io/tokens/dataset_info.h"

#include <filesystem>
#include <map>
#include <utility>

#include "io/text/json.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

std::string dataset_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "dataset.json").string();
}

// Returns `take(JSON of the file)`; none if there is no such file.
template <class Take>
auto read_dataset(const std::string& path, const DataFiles& from, const Take& take)
    -> std::optional<decltype(take(nlohmann::json()))> {
  const DataFile file = from.open(path);
  if (!file) return std::nullopt;
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  text.resize(static_cast<std::size_t>(file.read(0, std::as_writable_bytes(std::span(text)))));
  try {
    return take(parse_json(text));
  } catch (const JsonError& error) {
    throw base::data_error(
        path + ": " + error.what() +
        "; prepare the data again, or remove the file if it is not of `trainerd data prepare`");
  }
}

std::optional<std::int32_t> end_token(const nlohmann::json& j) {
  const auto after = j.find("after");
  if (after == j.end() || !after->is_array() || after->empty()) return std::nullopt;
  if (!after->back().is_number_integer()) throw JsonError("\"after\" is not a list of ids");
  return after->back().get<std::int32_t>();
}

void check_same(const DatasetTokenizer& a, const DatasetTokenizer& b) {
  if (a.hash != b.hash)
    throw base::data_error(a.path + " and " + b.path + " name different tokenizers (" + a.hash + ", " +
                           b.hash + "): prepare all data by one");
}

}  // namespace

std::optional<DatasetTokenizer> dataset_tokenizer(std::span<const SourceFile> files) {
  std::map<std::string, DataFiles> folders;
  for (const SourceFile& file : files)
    folders.try_emplace(std::filesystem::path(file.path).parent_path().string(), file.from);
  std::optional<DatasetTokenizer> found;
  for (const auto& [folder, from] : folders) {
    const std::string path = dataset_path(folder);
    auto here = read_dataset(path, from, [&path](const nlohmann::json& j) {
      const nlohmann::json tokenizer = member(j, "tokenizer");
      return DatasetTokenizer{path, string_member(tokenizer, "hash"), int_member(tokenizer, "vocab"),
                              tokenizer.contains("file") ? string_member(tokenizer, "file") : "",
                              end_token(j)};
    });
    if (here && found) check_same(*found, *here);
    else if (here) found = std::move(here);
  }
  return found;
}

std::optional<bool> dataset_has_masks(const std::string& folder, const DataFiles& from) {
  const auto says =
      read_dataset(dataset_path(folder), from, [](const nlohmann::json& j) -> std::optional<bool> {
        if (!j.contains("loss_mask")) return std::nullopt;
        if (!j["loss_mask"].is_boolean()) throw JsonError("\"loss_mask\" is neither true nor false");
        return j["loss_mask"].get<bool>();
      });
  return says.value_or(std::nullopt);
}

bool dataset_has_pairs(const std::string& folder, const DataFiles& from) {
  const auto says = read_dataset(dataset_path(folder), from, [](const nlohmann::json& j) {
    if (!j.contains("pairs")) return false;
    if (!j["pairs"].is_boolean()) throw JsonError("\"pairs\" is neither true nor false");
    return j["pairs"].get<bool>();
  });
  return says.value_or(false);
}

void check_pairs(std::span<const SourceFile> files, Packing packing) {
  std::map<std::string, bool> folders;
  for (const SourceFile& file : files) {
    const std::string folder = std::filesystem::path(file.path).parent_path().string();
    const auto [at, is_new] = folders.try_emplace(folder, false);
    if (is_new) at->second = dataset_has_pairs(folder, file.from);
    if (at->second && packing != Packing::pairs)
      throw base::data_error(
          file.path +
          ": its documents are pairs of a chosen and a rejected answer, as the dataset.json "
          "beside it says: train on them with loss.dpo.beta (0.1)");
    if (!at->second && packing == Packing::pairs)
      throw base::data_error(
          file.path +
          ": no dataset.json beside it says that its documents are pairs of a chosen and a "
          "rejected answer: prepare them by `trainerd data prepare --pairs`");
    if (packing == Packing::pairs && file.mask.empty())
      throw base::data_error(file.path +
                             ": it has no loss mask, which says what of a pair is the answer: prepare "
                             "it by `trainerd data prepare --pairs`");
  }
}

std::optional<std::string> dataset_checksum(const std::string& path, const DataFiles& from) {
  const std::filesystem::path file(path);
  const std::string stem = file.stem().string(), ending = file.extension().string();
  if (ending.size() < 2) return std::nullopt;
  const std::string key = ending.substr(1) + "_xxh3";
  return read_dataset(dataset_path(file.parent_path().string()), from,
                      [&](const nlohmann::json& j) -> std::optional<std::string> {
                        if (!j.contains("files")) return std::nullopt;
                        for (const nlohmann::json& entry : member(j, "files"))
                          if (string_member(entry, "name") == stem && entry.contains(key))
                            return string_member(entry, key.c_str());
                        return std::nullopt;
                      })
      .value_or(std::nullopt);
}

std::optional<DatasetTokenizer> check_one_tokenizer(const DataOptions& data, std::int64_t vocab,
                                                    bool validates, const DataFiles& from) {
  if (data.format != DataFormat::tokens) return std::nullopt;
  std::vector<std::string> paths = data.train;
  for (const DataSource& source : data.sources)
    paths.insert(paths.end(), source.path.begin(), source.path.end());
  auto train = dataset_tokenizer(open_source_files(paths, data, vocab, from));
  if (!validates) return train;
  for (const ValidationSet& set : validation_sets(data)) {
    if (set.path.empty()) continue;  // made from the training documents
    const auto valid = dataset_tokenizer(open_source_files(set.path, data, vocab, from));
    if (train && valid) check_same(*train, *valid);
  }
  return train;
}

}  // namespace trainerd::io
