#include "io/tokens/document_split.h"

#include <cmath>
#include <filesystem>

#include "io/tokens/megatron_index.h"
#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"

namespace trainerd::io {
namespace {

/// Chooses the validation documents of one file.
class DocumentSplit {
 public:
  DocumentSplit(const std::string& path, double fraction)
      : key_(kernels::hash_name("validation documents of " + std::filesystem::path(path).filename().string(),
                                0)),
        limit_(std::ldexp(fraction, 64)) {}
  bool is_validation(std::int64_t document) const {
    const auto bits = kernels::philox(key_, static_cast<std::uint64_t>(document), 0);
    return static_cast<double>((std::uint64_t{bits[0]} << 32) | bits[1]) < limit_;
  }

 private:
  std::uint64_t key_;
  double limit_;
};

}  // namespace

namespace {

/// Calls `visit(document)` for the file's documents that belong to `part`.
template <class Visit>
void each_chosen(const SourceFile& file, DataPart part, double fraction, const Visit& visit) {
  const DocumentSplit split(file.path, fraction);
  std::int64_t number = 0;
  each_document(*file.layout.index, [&](const Document& document) {
    if (part == DataPart::all || split.is_validation(number++) == (part == DataPart::validation))
      visit(document);
  });
}

}  // namespace

void each_document_of(std::span<const SourceFile> files, DataPart part, double fraction, const char* key,
                      const std::function<void(std::int64_t position, std::int64_t tokens)>& visit) {
  std::int64_t position = 0;
  for (const SourceFile& file : files) {
    if (!file.layout.index)
      throw base::data_error(file.path + ": " + key +
                             " needs to know where documents begin, and this file does not say it: name a "
                             "Megatron data set (.bin with .idx), as `trainerd data prepare` writes them");
    each_chosen(file, part, fraction, [&](const Document& document) {
      visit(position, document.tokens);
      position += document.tokens;
    });
  }
}

bool is_validation_document(const std::string& path, std::int64_t document, double fraction) {
  return DocumentSplit(path, fraction).is_validation(document);
}

std::vector<Stretch> stretches_of(std::span<const SourceFile> files, DataPart part, double fraction) {
  std::vector<Stretch> stretches;
  std::int64_t position = 0;
  const auto append = [&](std::size_t file, std::int64_t begin, std::int64_t tokens) {
    if (tokens == 0) return;
    Stretch* last = stretches.empty() ? nullptr : &stretches.back();
    if (last != nullptr && last->file == file && last->begin + last->tokens == begin) last->tokens += tokens;
    else stretches.push_back({position, file, begin, tokens});
    position += tokens;
  };
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (part == DataPart::all) {
      append(i, 0, files[i].layout.tokens);
      continue;
    }
    if (!files[i].layout.index)
      throw base::data_error(
          files[i].path +
          ": data.valid_fraction chooses whole documents, and this file does not say where they "
          "begin: name a Megatron data set (.bin with .idx), or leave data.valid_fraction out and "
          "name files for validation in data.valid");
    each_chosen(files[i], part, fraction,
                [&](const Document& document) { append(i, document.first, document.tokens); });
  }
  return stretches;
}

}  // namespace trainerd::io
