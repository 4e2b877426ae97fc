#include "io/tokens/source_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <span>
#include <utility>

#include "io/hash/hash.h"
#include "io/tokens/dataset_files.h"
#include "io/tokens/mask_files.h"
#include "kernels/base/error.h"

namespace trainerd::io {

bool reads_objects(const DataOptions& options) {
  if (options.format == DataFormat::synthetic) return false;
  const auto any = [](const std::vector<std::string>& paths) {
    return std::any_of(paths.begin(), paths.end(), is_s3);
  };
  return any(options.train) || any(options.valid) || any(options.mask) || any(options.valid_mask) ||
         std::any_of(options.valid_sets.begin(), options.valid_sets.end(),
                     [&](const ValidationSet& set) { return any(set.path) || any(set.mask); }) ||
         std::any_of(options.sources.begin(), options.sources.end(),
                     [&](const DataSource& source) { return any(source.path) || any(source.mask); });
}

std::vector<ListedFile> list_data(const std::vector<std::string>& paths, DataFormat format,
                                  const DataFiles& from) {
  if (format != DataFormat::tokens) return list_files(paths, from);
  std::vector<std::string> named = paths;
  for (std::string& path : named) path = megatron_data_path(path, from);
  std::vector<ListedFile> files = list_files(named, from);
  check_datasets_are_whole(files, from);
  std::set<std::string> companions;
  for (const ListedFile& file : files) {
    companions.insert(megatron_index_path(file.path));
    companions.insert(mask_path_of(file.path));
  }
  std::erase_if(files, [&](const ListedFile& file) {
    return !file.named && (companions.contains(file.path) || file.path.ends_with("/dataset.json"));
  });
  return files;
}

SourceFile open_source_file(const std::string& path, const DataOptions& options, std::int64_t vocab,
                            const DataFiles& from) {
  const DataFile opened = from.open(path);
  if (!opened) throw base::data_error(path + ": cannot be opened: " + base::errno_text(ENOENT));
  SourceFile file{.path = path, .bytes = opened.bytes(), .layout = {}, .mask = {}, .from = from};
  std::array<std::byte, kLayoutHeadBytes> head{};
  const std::int64_t got = opened.read(0, head);
  LayoutRequest request{.format = options.format, .dtype = options.dtype, .vocab = vocab};
  if (options.format == DataFormat::tokens)
    if (const std::string index = megatron_index_path(path); !index.empty())
      request.index = read_megatron_index(index, from);
  if (file.bytes == 0 && !request.index) return file;
  file.layout =
      detect_layout(std::span(head).first(static_cast<std::size_t>(got)), file.bytes, request, path);
  return file;
}

std::vector<SourceFile> open_source_files(const std::vector<std::string>& paths, const DataOptions& options,
                                          std::int64_t vocab, const DataFiles& from) {
  std::vector<SourceFile> files;
  for (const ListedFile& listed : list_data(paths, options.format, from)) {
    SourceFile file = open_source_file(listed.path, options, vocab, from);
    if (file.layout.tokens == 0 && listed.named)
      throw base::data_error(listed.path +
                             ": the file holds no tokens: name one that does, or take it off the list");
    if (file.layout.tokens == 0) continue;
    files.push_back(std::move(file));
  }
  return files;
}

std::string data_stamp(const DataOptions& options, const DataFiles& from) {
  if (options.format == DataFormat::synthetic) return "";
  Xxh3 hash;
  const auto add = [&](const std::string& path) {
    const DataFile file = from.open(path);
    const std::string entry = path + "\n" + (file ? file.stamp() : "none") + "\n";
    hash.update(std::as_bytes(std::span(entry)));
  };
  const auto add_all = [&](const std::vector<std::string>& paths, const std::vector<std::string>& masks) {
    for (const ListedFile& file : list_data(paths, options.format, from)) {
      add(file.path);
      const std::string stem = file.path.substr(0, file.path.rfind('.'));
      if (options.format == DataFormat::tokens && !is_s3(file.path)) add(stem + ".idx"), add(stem + ".mask");
    }
    for (const std::string& mask : masks) add(mask);
  };
  if (options.sources.empty()) add_all(options.train, options.mask);
  for (const DataSource& source : options.sources) add_all(source.path, source.mask);
  return hash.hex();
}

}  // namespace trainerd::io
