# Writes OUTPUT, a C++ file whose FUNCTION returns each of PRESETS (YAML files) as a string under its name without the
# extension.
set(rows "")
foreach(preset IN LISTS PRESETS)
  get_filename_component(name ${preset} NAME_WLE)
  file(READ ${preset} text)
  string(APPEND rows "    {\"${name}\", R\"yaml(${text})yaml\"},\n")
endforeach()
file(WRITE ${OUTPUT} "// Made by core/spec/embed_presets.cmake.
#include <array>

#include \"core/spec/compose.h\"

namespace trainerd::core::spec {

std::span<const PresetText> ${FUNCTION}() {
  static constexpr auto kPresets = std::to_array<PresetText>({
${rows}  });
  return kPresets;
}

}  // namespace trainerd::core::spec
")
