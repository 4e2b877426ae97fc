# One plugin beside the executable, loaded when a job needs a CUDA device (kernels/backend/cuda_plugin.h). It
# contains its own hidden copy of the parts of kernels/ that it needs, and exports only its entry points.
if(NOT TRAINERD_BUILD_CUDA)
  return()
endif()

trainerd_room(kernels/cuda/runtime TYPE OBJECT USES kernels/backend LIBRARIES CUDA::cudart_static)
file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels/*.cu)
if(TRAINERD_UNITY)
  trainerd_batch_kernels(kernel_sources cu 10 ${kernel_sources})
endif()
trainerd_room(kernels/cuda/kernels TYPE OBJECT SOURCES ${kernel_sources} USES kernels/cuda/launch kernels/cuda/runtime LIBRARIES CUDA::cudart_static)
trainerd_room(kernels/cuda/attention TYPE OBJECT USES kernels/cuda/kernels LIBRARIES CUDA::cudart_static)
trainerd_room(kernels/cuda/gemm TYPE OBJECT USES kernels/cuda/launch kernels/cuda/runtime LIBRARIES CUDA::cudart_static CUDA::cublasLt)
# cuDNN and its header-only front end (deploy/install-cuda-deps.sh). Without either, attention uses our own
# kernels, which the plan and a counter show.
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR})
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${PROJECT_SOURCE_DIR}/build/cuda-deps/include)
if(CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY AND CUDNN_FRONTEND_INCLUDE_DIR)
  message(STATUS "attention on CUDA: cuDNN")
  set(TRAINERD_CUDNN ON)
  set(cudnn_sources attention_cudnn.cpp attention_graph.cpp attention_plans.cpp)
else()
  message(STATUS "attention on CUDA: our own kernels alone (cuDNN or its front end was not found)")
  set(TRAINERD_CUDNN OFF)
  set(cudnn_sources attention_none.cpp)
endif()
set(TRAINERD_CUDNN ${TRAINERD_CUDNN} PARENT_SCOPE)
list(TRANSFORM cudnn_sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/cuda/cudnn/)
trainerd_room(kernels/cuda/cudnn TYPE OBJECT SOURCES ${cudnn_sources} USES kernels/target LIBRARIES CUDA::cudart_static)
# only host code that describes work; a fifth less to compile than with -O1
target_compile_options(trainerd_kernels_cuda_cudnn PRIVATE -Og)
# The front end's own text forms of graphs, a third of the remaining compile time, are not used here.
target_compile_definitions(trainerd_kernels_cuda_cudnn PRIVATE CUDNN_FRONTEND_SKIP_JSON_LIB)
if(TRAINERD_CUDNN)
  target_include_directories(trainerd_kernels_cuda_cudnn SYSTEM PRIVATE ${CUDNN_FRONTEND_INCLUDE_DIR} ${CUDNN_INCLUDE_DIR})
endif()
trainerd_room(kernels/cuda/backend TYPE OBJECT USES kernels/cuda/attention kernels/cuda/cudnn kernels/cuda/gemm
              LIBRARIES CUDA::cudart_static CUDA::cublasLt)

# tests/kernels/ptx_test.py reads the kernels' PTX in the plugin. Generating it again would take as long as
# compiling the kernels.
set(TRAINERD_PTX OFF)
if(TRAINERD_TESTS AND "90a-real" IN_LIST CMAKE_CUDA_ARCHITECTURES)
  set(TRAINERD_PTX ON)
  list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^90a-real$" 90a OUTPUT_VARIABLE with_ptx)
  foreach(room kernels attention)
    set_target_properties(trainerd_kernels_cuda_${room} PROPERTIES CUDA_ARCHITECTURES "${with_ptx}")
    target_compile_options(trainerd_kernels_cuda_${room} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--no-compress>)
  endforeach()
endif()
set(TRAINERD_PTX ${TRAINERD_PTX} PARENT_SCOPE)

add_library(trainerd_cuda MODULE)
foreach(room runtime kernels attention gemm cudnn backend)
  target_sources(trainerd_cuda PRIVATE $<TARGET_OBJECTS:trainerd_kernels_cuda_${room}>)
endforeach()
set_target_properties(trainerd_cuda PROPERTIES
  LINKER_LANGUAGE CUDA
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
  INSTALL_RPATH "$ORIGIN;$ORIGIN/../lib"
  CUDA_RUNTIME_LIBRARY Static)
set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cuda/backend/plugin.cpp TARGET_DIRECTORY trainerd_kernels_cuda_backend
                            PROPERTIES COMPILE_DEFINITIONS TRAINERD_INTERFACE_HASH="${interface_hash}")
# The list of the kernels' images for describe_device().
foreach(architecture ${CMAKE_CUDA_ARCHITECTURES})
  if(NOT architecture MATCHES "^[0-9]+[af]?(-real|-virtual)?$")
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES: name GPUs by number (90a-real), not \"${architecture}\"")
  endif()
endforeach()
string(REPLACE ";" "," images "${CMAKE_CUDA_ARCHITECTURES}")
set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cuda/backend/cuda_backend.cpp TARGET_DIRECTORY trainerd_kernels_cuda_backend
                            PROPERTIES COMPILE_DEFINITIONS TRAINERD_CUDA_IMAGES="${images}")
target_link_libraries(trainerd_cuda PRIVATE trainerd_options trainerd_kernels_backend CUDA::cudart_static CUDA::cublasLt)

if(TRAINERD_CUDNN)
  target_link_libraries(trainerd_cuda PRIVATE ${CUDNN_LIBRARY})
endif()
# RPATH, not RUNPATH, so that libraries which the CUDA libraries load are searched in the same places.
target_link_options(trainerd_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,--disable-new-dtags -Wl,--no-undefined)
