# The module _cuda, and its kernels as one image for all DOVETAIL_CUDA_TARGETS.
set(targets)
foreach(target ${DOVETAIL_CUDA_TARGETS})
  string(REPLACE "-virtual" "" number ${target})
  string(REGEX MATCH "virtual" virtual ${target})
  if(virtual)
    list(APPEND targets -gencode arch=compute_${number},code=compute_${number})
  else()
    list(APPEND targets -gencode arch=compute_${number},code=sm_${number})
  endif()
endforeach()

set(kernels ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
file(GLOB headers CONFIGURE_DEPENDS native/cuda/*.hpp native/cuda/*.cuh native/run/scalar.hpp)
add_custom_command(
  OUTPUT ${kernels}
  COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -O3 -fatbin --threads 0 --expt-relaxed-constexpr --Werror all-warnings ${targets}
          -I${CMAKE_CURRENT_SOURCE_DIR}/native
          ${CMAKE_CURRENT_SOURCE_DIR}/native/cuda/kernels.cu -o ${kernels}
  DEPENDS native/cuda/kernels.cu ${headers} native/run/mpi_table.h
  VERBATIM)

# An object that holds the image, by the assembler's own means.
set(image ${CMAKE_CURRENT_BINARY_DIR}/kernels_image.cpp)
file(CONFIGURE OUTPUT ${image} CONTENT [[
__asm__(".section .rodata\n.global dovetail_kernels\n.balign 16\ndovetail_kernels:\n.incbin \"@kernels@\"\n.previous\n");
]] @ONLY)
set_source_files_properties(${image} PROPERTIES OBJECT_DEPENDS ${kernels})

file(GLOB cuda_sources CONFIGURE_DEPENDS native/cuda/device/*.cpp native/bind/cuda/*.cpp)
nanobind_add_module(_cuda NB_STATIC NOMINSIZE ${cuda_sources} native/cuda/load.cpp native/run/op.cpp native/run/order.cpp
                    native/run/reduce.cpp ${image})
target_include_directories(_cuda PRIVATE native)
target_include_directories(_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(_cuda PRIVATE -Wall -Wextra)
target_link_libraries(_cuda PRIVATE ${CMAKE_DL_LIBS} Threads::Threads)
install(TARGETS _cuda LIBRARY DESTINATION dovetail/_native)

# For tests where there is no device: the driver's and cuBLASLt's entry points over host threads. Not part of `all`.
file(GLOB pretended_sources CONFIGURE_DEPENDS native/test/device/*.cpp)
add_library(pretended SHARED EXCLUDE_FROM_ALL ${pretended_sources})
target_include_directories(pretended PRIVATE native)
target_include_directories(pretended SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(pretended PRIVATE -Wall -Wextra -O1)
target_link_libraries(pretended PRIVATE Threads::Threads)
set(pretended_at ${CMAKE_CURRENT_BINARY_DIR}/pretended)
set_target_properties(pretended PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${pretended_at})
foreach(name libcuda.so.1 libcublasLt.so.13)
  add_custom_command(
    TARGET pretended
    POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E create_symlink libpretended.so ${pretended_at}/${name})
endforeach()
