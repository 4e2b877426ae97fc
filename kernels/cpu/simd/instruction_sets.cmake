# Row kernels and attention tiles are one source each, built once per instruction set and chosen at run time.
# The room's own objects are the portable ones.
get_target_property(simd_sources trainerd_kernels_cpu_simd SOURCES)

function(set_simd_build target isa)
  target_compile_definitions(${target} PRIVATE TRAINERD_SIMD=${isa})
  # Disables GCC's notes about vector types in function signatures: none crosses a translation unit here.
  target_compile_options(${target} PRIVATE -Wno-psabi -fno-trapping-math ${ARGN})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TRAINERD_UNITY} UNITY_BUILD_BATCH_SIZE 5)
endfunction()
function(add_simd_build isa)
  add_library(trainerd_simd_${isa} OBJECT ${simd_sources})
  target_link_libraries(trainerd_simd_${isa} PRIVATE trainerd_options)
  set_simd_build(trainerd_simd_${isa} ${isa} -O3 ${ARGN})
  target_sources(trainerd_kernels_cpu_simd PRIVATE $<TARGET_OBJECTS:trainerd_simd_${isa}>)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_simd_build(trainerd_kernels_cpu_simd portable)  # only processors without AVX2 run it, and -O3 doubles its compile time
  add_simd_build(avx2 -mavx2 -mfma -mf16c)
  add_simd_build(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512)
  add_simd_build(avx512_bf16 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx512vbmi -mfma -mprefer-vector-width=512)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cpu/kernel_tables.cpp PROPERTIES COMPILE_DEFINITIONS TRAINERD_X86_KERNELS=1)
else()
  set_simd_build(trainerd_kernels_cpu_simd portable -O3)
endif()
