#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "io/tokens/inspect.h"
#include "io/tokens/megatron_index.h"
#include "io/tokens/token_source.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

// A token file of any bytes, also read as a Megatron index: only a DataError may be thrown, and every token
// lies in the vocabulary. The first byte chooses format, vocabulary, sequence length and the declared type.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainerd;
  if (size == 0) return 0;
  constexpr std::array<std::int64_t, 4> kVocabs{3, 256, 50257, 128256};
  constexpr std::array kTypes{io::TokenType::automatic, io::TokenType::uint16, io::TokenType::int32,
                              io::TokenType::uint8};
  const std::int64_t vocab = kVocabs[data[0] & 3u], seq_len = 1 + (data[0] >> 3) % 8;
  const io::DataOptions options{.train = {},
                                .valid = {},
                                .format = (data[0] & 4u) != 0 ? io::DataFormat::text : io::DataFormat::tokens,
                                .tokenizer = "bytes",
                                .dtype = kTypes[data[0] >> 6]};
  const base::UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC));
  if (!fd || base::write_all(fd.get(), std::as_bytes(std::span(data + 1, size - 1))) != 0) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  try {
    io::inspect_data(path, {.format = options.format,
                            .dtype = options.dtype,
                            .vocab = vocab,
                            .all = seq_len % 2 == 0,
                            .threads = 1});
  } catch (const base::DataError&) {}
  try {
    io::read_megatron_index(path);
  } catch (const base::DataError&) {}
  try {
    io::TokenSource source({path}, options, seq_len, vocab, 1, io::SampleOrder::shuffled);
    try {
      source.check_samples(1);
    } catch (const base::DataError&) {}
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq_len) + 1);
    for (std::int64_t cursor = 0; cursor < 4; ++cursor) {
      source.read(cursor, tokens);
      for (const std::int32_t token : tokens)
        if (token < 0 || token >= vocab) std::abort();
    }
  } catch (const base::DataError&) {}
  return 0;
}
