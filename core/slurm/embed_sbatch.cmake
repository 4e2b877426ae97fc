# Writes OUTPUT, a C++ file whose sbatch_text() returns SCRIPT.
file(READ ${SCRIPT} text)
file(WRITE ${OUTPUT} "// Made by core/slurm/embed_sbatch.cmake.
#include \"core/slurm/sbatch_text.h\"

namespace trainerd::core {

std::string_view sbatch_text() { return R\"sbatch(${text})sbatch\"; }

}  // namespace trainerd::core
")
