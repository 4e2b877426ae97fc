#include "io/tokens/source_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <span>
#include <utility>

#include "io/tokens/mask_files.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {

std::vector<DataFile> list_data(const std::vector<std::string>& paths, DataFormat format) {
  if (format != DataFormat::tokens) return list_files(paths);
  std::vector<std::string> named = paths;
  for (std::string& path : named)
    if (!path.ends_with(".idx")) path = megatron_data_path(path);
  std::vector<DataFile> files = list_files(named);
  std::set<std::string> companions;
  for (const DataFile& file : files) {
    companions.insert(megatron_index_path(file.path));
    companions.insert(mask_path_of(file.path));
  }
  std::erase_if(files, [&](const DataFile& file) {
    return !file.named && (companions.contains(file.path) || file.path.ends_with("/dataset.json"));
  });
  return files;
}

SourceFile open_source_file(const std::string& path, const DataOptions& options, std::int64_t vocab) {
  const base::UniqueFd fd = base::open_read(path);
  if (!fd) throw base::data_error(path + ": cannot be opened: " + base::errno_text(errno));
  SourceFile file{.path = path, .bytes = base::file_bytes(fd.get()), .layout = {}};
  std::array<std::byte, kLayoutHeadBytes> head{};
  const std::int64_t got = file.bytes < 0 ? -1 : base::read_at(fd.get(), head, 0);
  if (got < 0) throw base::data_error(path + ": cannot be read: " + base::errno_text(errno));
  if (file.bytes == 0) return file;
  LayoutRequest request{.format = options.format, .dtype = options.dtype, .vocab = vocab};
  if (options.format == DataFormat::tokens)
    if (const std::string index = megatron_index_path(path); !index.empty())
      request.index = read_megatron_index(index);
  file.layout =
      detect_layout(std::span(head).first(static_cast<std::size_t>(got)), file.bytes, request, path);
  return file;
}

std::vector<SourceFile> open_source_files(const std::vector<std::string>& paths, const DataOptions& options,
                                          std::int64_t vocab) {
  std::vector<SourceFile> files;
  for (const DataFile& listed : list_data(paths, options.format)) {
    SourceFile file = open_source_file(listed.path, options, vocab);
    if (file.layout.tokens == 0 && listed.named)
      throw base::data_error(listed.path +
                             ": the file holds no tokens: name one that does, or take it off the list");
    if (file.layout.tokens == 0) continue;
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace trainerd::io
