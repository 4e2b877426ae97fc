// Runs a fuzz target without libFuzzer, so that every build tests it for a few seconds: each seed unchanged,
// then mutants. An iteration depends only on its number, so `--only N` repeats a failure.
//
//   fuzz_x ITERATIONS SEED_FILE_OR_DIRECTORY... [--only N] [--trace]
//
// With TRAINERD_FULL_TESTS set, ten times as many.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kLongest = 1 << 16;

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In [0, n); n > 0.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }

 private:
  std::uint64_t state_;
};

auto at(Bytes& bytes, std::size_t i) { return bytes.begin() + static_cast<std::ptrdiff_t>(i); }

// A random stretch of `bytes`: [first, first + length), length >= 1.
std::pair<std::size_t, std::size_t> stretch(const Bytes& bytes, Random& random) {
  const std::size_t first = random.below(bytes.size());
  const std::size_t longest =
      std::min<std::size_t>(bytes.size() - first, random.below(4) == 0 ? bytes.size() : 16);
  return {first, 1 + random.below(longest)};
}

void insert(Bytes& bytes, std::size_t where, const Bytes& what) {
  bytes.insert(at(bytes, where), what.begin(), what.end());
}

void mutate(Bytes& bytes, const std::vector<Bytes>& seeds, Random& random) {
  if (bytes.empty()) bytes.push_back(static_cast<std::uint8_t>(random.next()));
  const auto [first, length] = stretch(bytes, random);
  const Bytes piece(at(bytes, first), at(bytes, first + length));
  switch (random.below(9)) {
    case 0:  // flip a bit
      bytes[first] = static_cast<std::uint8_t>(bytes[first] ^ (1u << random.below(8)));
      break;
    case 1:  // any byte
      bytes[first] = static_cast<std::uint8_t>(random.next());
      break;
    case 2:  // a character of some grammar
      bytes[first] =
          static_cast<std::uint8_t>("{}[]:,\"'\\#&*!|>%@-?<~0123456789.eE+ \n\t\r"[random.below(39)]);
      break;
    case 3:  // an integer at the limit of a type, little-endian
    {
      static constexpr std::array<std::uint64_t, 10> kEdges = {
          0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};
      const std::uint64_t edge = kEdges[random.below(kEdges.size())] + (random.below(3) - 1);
      const std::size_t width =
          std::min<std::size_t>(std::size_t{1} << random.below(4), bytes.size() - first);
      for (std::size_t i = 0; i < width; ++i) bytes[first + i] = static_cast<std::uint8_t>(edge >> (8 * i));
      break;
    }
    case 4:  // delete a piece
      bytes.erase(at(bytes, first), at(bytes, first + length));
      break;
    case 5:  // truncate
      bytes.resize(first);
      break;
    case 6:  // repeat, sometimes many times
    {
      const std::size_t times = random.below(8) == 0 ? 1 + random.below(1000) : 1;
      for (std::size_t i = 0; i < times && bytes.size() < kLongest; ++i) insert(bytes, first, piece);
      break;
    }
    case 7:  // move a copy elsewhere
      insert(bytes, random.below(bytes.size() + 1), piece);
      break;
    default:  // splice in a piece of another seed
    {
      Bytes other = seeds[random.below(seeds.size())];
      if (other.empty()) break;
      const auto [from, count] = stretch(other, random);
      insert(bytes, first, Bytes(at(other, from), at(other, from + count)));
      break;
    }
  }
  if (bytes.size() > kLongest) bytes.resize(kLongest);
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::vector<Bytes> read_seeds(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // a directory's own order is not the same everywhere
  std::vector<Bytes> seeds{Bytes{}};
  for (const auto& file : files) seeds.push_back(read_file(file));
  return seeds;
}

Bytes input(std::uint64_t iteration, const std::vector<Bytes>& seeds) {
  if (iteration < seeds.size()) return seeds[iteration];
  Random random(iteration);
  Bytes bytes = seeds[random.below(seeds.size())];
  for (std::size_t n = 1 + random.below(6); n > 0; --n) mutate(bytes, seeds, random);
  return bytes;
}

bool run(std::uint64_t iteration, const std::vector<Bytes>& seeds) {
  // A heap copy of the exact size, so that sanitizers detect reads past its end.
  const Bytes bytes = input(iteration, seeds);
  try {
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    return true;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "iteration %llu: %s\n", static_cast<unsigned long long>(iteration), e.what());
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> paths;
  std::uint64_t iterations = 0, only = 0;
  bool one = false, trace = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--trace") {
      trace = true;
    } else if (argument == "--only" && i + 1 < argc) {
      one = true;
      only = std::strtoull(argv[++i], nullptr, 10);
    } else if (i == 1) {
      iterations = std::strtoull(argv[i], nullptr, 10);
    } else {
      paths.push_back(argument);
    }
  }
  const std::vector<Bytes> seeds = read_seeds(paths);
  if (seeds.size() < 2 || iterations == 0) {
    std::fprintf(stderr, "usage: %s ITERATIONS SEED_FILE_OR_DIRECTORY... [--only N] [--trace]\n", argv[0]);
    return 2;
  }
  if (std::getenv("TRAINERD_FULL_TESTS") != nullptr) iterations *= 10;
  std::uint64_t failures = 0;
  for (std::uint64_t i = one ? only : 0; i < (one ? only + 1 : iterations); ++i) {
    if (trace) std::fprintf(stderr, "iteration %llu\n", static_cast<unsigned long long>(i));
    failures += run(i, seeds) ? 0 : 1;
  }
  std::printf("%llu inputs, %llu failures\n", static_cast<unsigned long long>(one ? 1 : iterations),
              static_cast<unsigned long long>(failures));
  return failures == 0 ? 0 : 1;
}
