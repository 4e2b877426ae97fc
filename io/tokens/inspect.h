#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "io/files/data_files.h"
#include "io/tokens/dataset_info.h"
#include "io/tokens/options.h"

namespace trainerd::io {

/// One line of output: its label, its JSON key and its value.
struct ShownLine {
  std::string name, key, text;
  std::variant<std::string, std::int64_t> value = {};  ///< in JSON
};

struct InspectOptions {
  /// None: the format of each file follows from its header, `dtype` (tokens) or name (`*.bin` is tokens).
  std::optional<DataFormat> format;
  TokenType dtype = TokenType::automatic;
  std::int64_t vocab = 0;  ///< ids must be smaller; 0: no limit
  bool all = false;        ///< read whole files instead of samples
  int threads = 1;
  std::int64_t seq_len = 0;  ///< sequence length to report packing for; 0: none
  DataFiles files = {};      ///< opens the files
  /// Makes additional lines from the tokenizer that dataset.json records and the first tokens of the first
  /// document.
  using Show = std::function<std::vector<ShownLine>(const std::optional<DatasetTokenizer>&,
                                                    std::span<const std::int32_t>)>;
  Show show = {};
};

struct Inspection {
  std::string text;                   ///< human-readable
  std::string json;                   ///< one JSON object
  std::vector<std::string> problems;  ///< one per file that a run would refuse, with its name
};

/// Describes a file, a directory or a pattern, for `trainerd data inspect PATH`: format, tokens, bytes per
/// token, largest id, sizes, and the first line of text. With an index it adds documents, their lengths and
/// how full packed samples are. `c` and `c.idx` also name Megatron's `c.bin`. Throws DataError if there is no
/// such file or if every file is refused.
Inspection inspect_data(const std::string& path, const InspectOptions& options);

/// Returns the format of a file that starts with `head`: by its magic number, else by the options, else by
/// its name.
DataFormat format_by_head(const std::string& path, std::span<const std::byte> head,
                          const InspectOptions& options);
/// Returns the first kLayoutHeadBytes of a file. Throws DataError.
std::vector<std::byte> head_of_file(const std::string& path, const DataFiles& from = {});

}  // namespace trainerd::io
