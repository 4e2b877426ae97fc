# What `cmake --install` puts where, and two kinds of package, both by CPack from a build tree:
#   cmake --build BUILD --target package       one tarball that runs where it is unpacked
#   cd BUILD && cpack -G DEB                   Debian packages, which depend on Debian's libraries
# Components: program (all that Debian's package has), cuda (the plugin), libraries (those beside glibc's own that the tarball carries,
# in lib/trainerd: under /usr/local they must not stand before the system's), tests (for a machine with a GPU). CUDA's libraries are in
# neither: deploy/cuda-libraries.sh finds them.
include(GNUInstallDirs)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME program)

# RPATH, not RUNPATH: it also serves what the carried libraries need in their turn, and goes before LD_LIBRARY_PATH.
function(package_executable target folder component)
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/trainerd")
  install(TARGETS ${target} RUNTIME_DEPENDENCY_SET carried RUNTIME DESTINATION ${folder} COMPONENT ${component})
endfunction()

package_executable(trainerd bin program)
if(TARGET trainerd_cuda)
  # Linked to the executable's static part again, so it needs no library that the executable does not.
  install(TARGETS trainerd_cuda LIBRARY DESTINATION lib COMPONENT cuda)
endif()
# What a machine with a GPU is tested by, found from there as in the source tree.
if(TRAINERD_TESTS)
  foreach(target test_cuda test_cuda_comm test_core train_bench operators_bench device_bench)
    if(TARGET ${target})
      package_executable(${target} tests tests)
    endif()
  endforeach()
  install(PROGRAMS tests/gpu/run.sh tests/gpu/run.py tests/gpu/table.py DESTINATION tests/gpu COMPONENT tests)
  install(FILES tests/gpu/machine.py tests/gpu/phases.py DESTINATION tests/gpu COMPONENT tests)
  install(DIRECTORY tests/bench/gpu DESTINATION tests/bench COMPONENT tests FILES_MATCHING PATTERN *.yaml PATTERN *.py PATTERN *.md)
endif()

set(glibc "^(ld-linux.*|lib(c|m|mvec|dl|rt|pthread|resolv|util|anl|nsl|BrokenLocale|thread_db|nss_.*))\\.so")
set(cuda "^lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|nv.*)[._]")
install(RUNTIME_DEPENDENCY_SET carried PRE_EXCLUDE_REGEXES ${glibc} ${cuda} LIBRARY DESTINATION lib/trainerd COMPONENT libraries)

install(DIRECTORY configs DESTINATION share/trainerd USE_SOURCE_PERMISSIONS)
install(PROGRAMS deploy/cuda-libraries.sh DESTINATION share/trainerd/deploy)
install(PROGRAMS deploy/slurm/trainerd.sbatch DESTINATION share/trainerd/deploy/slurm)
install(FILES deploy/systemd/trainerd@.service DESTINATION lib/systemd/system)
install(FILES deploy/systemd/node.env deploy/systemd/spare.env DESTINATION share/trainerd/deploy/systemd)
install(DIRECTORY deploy/grafana deploy/prometheus DESTINATION share/trainerd/deploy)
# The pages; configs/README.md goes with configs.
install(FILES README.md CHANGELOG.md CONTRIBUTING.md DESTINATION share/trainerd)
file(GLOB_RECURSE pages CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} apps/*.md core/*.md deploy/*.md io/*.md kernels/*.md parallel/*.md
     tests/*.md)
foreach(page ${pages})
  get_filename_component(folder ${page} DIRECTORY)
  install(FILES ${page} DESTINATION share/trainerd/${folder})
endforeach()
# What parallel/README.md shows.
install(DIRECTORY tests/golden/pictures DESTINATION share/trainerd/tests/golden)

# What is made when it is installed, not when it was configured: BUILD says what was packed; man pages and completion are the binary's
# own.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS deploy/install-deps.sh)
file(STRINGS deploy/install-deps.sh lines REGEX "^  [a-z0-9 -]+$")
string(REGEX MATCHALL "[a-z0-9+-]+-dev" dev_packages "${lines}")
set(architectures none)
if(TRAINERD_BUILD_CUDA)
  set(architectures ${CMAKE_CUDA_ARCHITECTURES})
endif()
set(maintainer "The trainerd developers <trainerd@localhost>")
set(made "
  set(maintainer \"${maintainer}\")
  set(source \"${PROJECT_SOURCE_DIR}\")
  set(version \"${PROJECT_VERSION}\")
  set(architectures \"${architectures}\")
  set(dev_packages \"${dev_packages}\")
  set(binary \"$<TARGET_FILE:trainerd>\")")
install(CODE "${made}")
install(SCRIPT deploy/package_made.cmake)
# The licences of the carried libraries: after these, in the order of components.
install(CODE "${made}" COMPONENT libraries)
install(SCRIPT deploy/package_licences.cmake COMPONENT libraries)

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME trainerd)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "training daemon for large transformers")
set(CPACK_THREADS 2)

# Debian: trainerd, and trainerd-cuda with the plugin, whose libraries are not Debian's.
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${maintainer}")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME trainerd)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "One binary reads one YAML job, plans it, refuses it at the start if it does
not fit, runs the training loop on any number of ranks, writes checkpoints,
survives failures and serves metrics to Prometheus.")
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME trainerd-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "trainerd (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_CUDA_DESCRIPTION "The plugin by which trainerd trains on NVIDIA GPUs. It needs libraries of
CUDA 13 (cuBLASLt, cuDNN, NCCL), which are not Debian's:
/usr/share/trainerd/deploy/cuda-libraries.sh finds them.")

configure_file(deploy/package_name.cmake.in ${CMAKE_BINARY_DIR}/package_name.cmake @ONLY)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_BINARY_DIR}/package_name.cmake)
include(CPack)
