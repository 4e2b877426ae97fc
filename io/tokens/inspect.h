#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/files/data_files.h"
#include "io/tokens/dataset_info.h"
#include "io/tokens/options.h"

namespace trainerd::io {

/// A line about the data: its name, its key in JSON, and its value.
struct ShownLine {
  std::string name, key, value;
};

struct InspectOptions {
  /// None: of each file by its header or name (`*.bin` is tokens), or tokens with `dtype`.
  std::optional<DataFormat> format;
  TokenType dtype = TokenType::automatic;
  std::int64_t vocab = 0;  ///< ids must be less; 0: any
  bool all = false;        ///< read the files whole, not samples of them
  int threads = 1;
  std::int64_t seq_len = 0;  ///< say how full samples of it are by DataOptions::packing; 0: do not
  DataFiles files = {};      ///< what opens them
  /// Given what dataset.json says of the tokenizer and the first tokens of the first document: lines to
  /// print.
  using Show = std::function<std::vector<ShownLine>(const std::optional<DatasetTokenizer>&,
                                                    std::span<const std::int32_t>)>;
  Show show = {};
};

struct Inspection {
  std::string text;                   ///< for people
  std::string json;                   ///< one object
  std::vector<std::string> problems;  ///< one for each file that a run would refuse, naming it
};

/// What `trainerd data inspect PATH` prints about a file, a directory or a pattern: format, tokens, bytes per
/// token, documents, their lengths and how full samples of them are where an index says them, largest id,
/// sizes, and for text its first line. Megatron's `c.bin` goes by the names `c` and `c.idx` too. Throws
/// DataError: no such file, or all of them are refused.
Inspection inspect_data(const std::string& path, const InspectOptions& options);

/// The format of a file that starts with `head`: by its magic number, then as the options say, then by its
/// name.
DataFormat format_by_head(const std::string& path, std::span<const std::byte> head,
                          const InspectOptions& options);
/// The first kLayoutHeadBytes of a file. Throws DataError.
std::vector<std::byte> head_of_file(const std::string& path, const DataFiles& from = {});

}  // namespace trainerd::io
