#include "io/storage/storage.h"

#include <filesystem>
#include <system_error>

#include "io/storage/local_storage.h"
#include "kernels/base/error.h"

namespace trainerd::io {

bool is_remote(const std::string& uri) {
  return uri.find("://") != std::string::npos && !uri.starts_with("file://");
}

std::string local_path(const std::string& uri) {
  const std::size_t colon = uri.find("://");
  const std::string scheme = colon == std::string::npos ? "file" : uri.substr(0, colon);
  const std::string path = colon == std::string::npos ? uri : uri.substr(colon + 3);
  if (scheme == "s3")
    throw base::spec_error(uri + ": a directory is expected here; use a path or file:///path");
  if (scheme != "file")
    throw base::spec_error(uri + ": there is no storage called \"" + scheme +
                           "\"; use a path, file:///path or s3://bucket/prefix");
  if (path.empty()) throw base::spec_error("\"" + uri + "\": the path is empty; name a directory");
  if (colon != std::string::npos && path.front() != '/')
    throw base::spec_error(uri + ": a file:// path is absolute; write file:///path, or the path alone");
  return path;
}

std::unique_ptr<Storage> open_storage(const std::string& uri, const OpenRemote& remote) {
  if (remote && uri.starts_with("s3://")) return remote(uri);
  return std::make_unique<LocalStorage>(local_path(uri));
}

bool is_same_directory(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  const auto plain = [](const std::string& uri) {
    const std::string path = uri.starts_with("file://") ? uri.substr(7) : uri;
    std::error_code error;
    const fs::path absolute = fs::absolute(path, error);
    fs::path found = fs::weakly_canonical(absolute, error);
    if (error) found = absolute.lexically_normal();
    return found.has_filename() ? found : found.parent_path();  // drops a trailing slash
  };
  const fs::path here = plain(a), there = plain(b);
  std::error_code absent;
  return here == there || fs::equivalent(here, there, absent);
}

std::string read_text(const Storage& storage, const std::string& name) {
  const std::unique_ptr<StoredFile> file = storage.open(name);
  std::string text(static_cast<std::size_t>(file->bytes()), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace trainerd::io
