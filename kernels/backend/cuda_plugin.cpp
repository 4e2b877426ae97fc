#include "kernels/backend/cuda_plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "kernels/base/error.h"

namespace trainerd::kernels {
namespace {

constexpr const char* kLibrary = "libtrainerd_cuda.so";

std::filesystem::path find_library() {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const std::filesystem::path& path : {folder / kLibrary, folder / ".." / "lib" / kLibrary})
    if (std::filesystem::exists(path)) return path;
  throw base::device_error(
      "no CUDA here: this build has no CUDA plugin (" + std::string(kLibrary) +
      " beside the executable or in ../lib); build with the CUDA toolkit, or set device: cpu");
}

}  // namespace

void* cuda_plugin_symbol(const char* name) {
  const std::filesystem::path path = find_library();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr)
    throw base::device_error("no CUDA here: " + std::string(::dlerror()) +
                             "; put the folders of CUDA 13's libraries into LD_LIBRARY_PATH "
                             "(deploy/cuda-libraries.sh finds them), "
                             "or set device: cpu");
  void* symbol = ::dlsym(library, name);
  if (symbol == nullptr)
    throw base::device_error(path.string() + " is not this trainerd's CUDA plugin: install it anew");
  return symbol;
}

CudaPlugin open_cuda_plugin() {
  using Entry = const CudaPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(cuda_plugin_symbol("trainerd_cuda_plugin"));
  const CudaPlugin plugin = *entry();
  if (std::string(plugin.interface_hash) != TRAINERD_INTERFACE_HASH)
    throw base::device_error(
        "the CUDA plugin is of another build than this executable: install both from one");
  return plugin;
}

std::string why_no_cuda() {
  try {
    open_cuda_plugin().device_count();
    return "";
  } catch (const base::DeviceError& error) {
    return error.what();
  }
}

}  // namespace trainerd::kernels
