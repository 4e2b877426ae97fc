# `cmake --build BUILD --target package` makes one tarball that runs where it is unpacked: the executable, the CUDA plugin and the
# libraries they need beside glibc's own, in lib/trainerd: under /usr/local they must not stand before the system's. CUDA's are not in it: deploy/cuda-libraries.sh finds them.
# RPATH, not RUNPATH: it also serves what the carried libraries need in their turn, and goes before LD_LIBRARY_PATH.

function(package_executable target folder)
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/trainerd")
  install(TARGETS ${target} RUNTIME_DEPENDENCY_SET carried RUNTIME DESTINATION ${folder})
endfunction()

package_executable(trainerd bin)
if(TARGET trainerd_cuda)
  # Linked to the executable's static part again, so it needs no library that the executable does not.
  install(TARGETS trainerd_cuda LIBRARY DESTINATION lib)
endif()
# What a machine with a GPU is tested by, found from there as in the source tree.
if(TRAINERD_TESTS)
  foreach(target test_cuda test_cuda_comm test_core train_bench operators_bench)
    if(TARGET ${target})
      package_executable(${target} tests)
    endif()
  endforeach()
  install(PROGRAMS tests/gpu/run.sh tests/gpu/run.py tests/gpu/table.py DESTINATION tests/gpu)
  install(DIRECTORY tests/bench/gpu DESTINATION tests/bench FILES_MATCHING PATTERN *.yaml PATTERN *.py PATTERN *.md)
endif()

set(glibc "^(ld-linux.*|lib(c|m|mvec|dl|rt|pthread|resolv|util|anl|nsl|BrokenLocale|thread_db|nss_.*))\\.so")
set(cuda "^lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|nv.*)[._]")
install(RUNTIME_DEPENDENCY_SET carried PRE_EXCLUDE_REGEXES ${glibc} ${cuda} LIBRARY DESTINATION lib/trainerd)

install(DIRECTORY configs DESTINATION share/trainerd)
install(PROGRAMS deploy/cuda-libraries.sh DESTINATION share/trainerd/deploy)
install(PROGRAMS deploy/slurm/trainerd.sbatch DESTINATION share/trainerd/deploy/slurm)
install(DIRECTORY deploy/grafana deploy/prometheus DESTINATION share/trainerd/deploy)
# The pages; configs/README.md goes with configs.
install(FILES README.md CHANGELOG.md CONTRIBUTING.md DESTINATION share/trainerd)
foreach(page core core/model core/plan core/run deploy io kernels parallel tests tests/golden tests/bench/gpu)
  install(FILES ${page}/README.md DESTINATION share/trainerd/${page})
endforeach()
# What parallel/README.md shows.
install(DIRECTORY tests/golden/pictures DESTINATION share/trainerd/tests/golden)

# What was packed: asked when it is packed, not when it was configured.
install(CODE "set(source \"${PROJECT_SOURCE_DIR}\")")
install(CODE "set(version \"${PROJECT_VERSION}\")\nset(architectures \"${CMAKE_CUDA_ARCHITECTURES}\")\nset(cuda ${TRAINERD_BUILD_CUDA})")
install(SCRIPT deploy/package_commit.cmake)
install(CODE [[
  if(NOT cuda)
    set(architectures none)
  endif()
  file(WRITE "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/share/trainerd/BUILD"
       "version: ${version}\ncommit: ${commit}\ncuda_architectures: ${architectures}\n")]])

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME trainerd)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_CHECKSUM SHA256)
configure_file(deploy/package_name.cmake.in ${CMAKE_BINARY_DIR}/package_name.cmake @ONLY)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_BINARY_DIR}/package_name.cmake)
include(CPack)
