# Compiles kernels/ for GPUs and makes the catalogue that the library carries (src/gpu/catalogue.hpp).
#
#   kernels/*.cpp --clang--> unit.s, one a family  --assemble.sh--> gfx1100.co, one a member --compress--> gfx1100.zst
#                            unit.ptx              --join_ptx.sh--> sm_80.ptx                --compress--> sm_80.zst
#
# Stock clang does all of it, whatever compiles the host's code: no ROCm, no CUDA toolkit. What lies in
# <build>/kernels is made only when something it depends on changed.
set(ROCFLASH_GPU_ARCHS "" CACHE STRING
  "GPU architectures to compile kernels for: all, none, or a list such as gfx942;gfx1100;sm_80 (default: all; none with sanitizers)")

# A family is one schedule (kernel::Family), compiled once and assembled for each member. LLVM keeps the generic
# targets to what all their members can run.
set(kernel_families cdna2 cdna3 cdna4 rdna2 rdna3 rdna4 nvidia)
set(kernel_members_cdna2 gfx90a)
set(kernel_members_cdna3 gfx942)
set(kernel_members_cdna4 gfx950)
set(kernel_members_rdna2 gfx1030 gfx1031 gfx1032 gfx1033 gfx1034 gfx1035 gfx1036)
set(kernel_members_rdna3 gfx1100 gfx1101 gfx1102 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153)
set(kernel_members_rdna4 gfx1200 gfx1201)
set(kernel_members_nvidia sm_80)

# How each family is compiled. Generic targets exist from code object version 6 on; assemble.sh makes it 5.
set(kernel_flags_amd --target=amdgcn-amd-amdhsa -nogpulib)
set(kernel_flags_cdna2 ${kernel_flags_amd} -mcpu=gfx90a -mcode-object-version=5)
set(kernel_flags_cdna3 ${kernel_flags_amd} -mcpu=gfx942 -mcode-object-version=5)
set(kernel_flags_cdna4 ${kernel_flags_amd} -mcpu=gfx950 -mcode-object-version=5)
set(kernel_flags_rdna2 ${kernel_flags_amd} -mcpu=gfx10-3-generic -mcode-object-version=6)
set(kernel_flags_rdna3 ${kernel_flags_amd} -mcpu=gfx11-generic -mcode-object-version=6)
set(kernel_flags_rdna4 ${kernel_flags_amd} -mcpu=gfx12-generic -mcode-object-version=6)
set(kernel_flags_nvidia --target=nvptx64-nvidia-cuda -nogpulib -march=sm_80 -Xclang -target-feature -Xclang +ptx70)
# Only clang ever sees this code, so its extensions are no matter for a warning.
set(kernel_flags_common
  -std=c++20 -O3 -ffreestanding -fno-exceptions -fno-rtti -fno-threadsafe-statics
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion $<$<BOOL:${ROCFLASH_WERROR}>:-Werror>
  -isystem ${PROJECT_SOURCE_DIR}/kernels/freestanding -I${PROJECT_SOURCE_DIR}/kernels -I${PROJECT_SOURCE_DIR}/src)

# Each source is a unit; a large one is cut by the lines of kernels/table.hpp, so that all cores have work and a change
# of one header does not wait for a single long compilation. A unit is "name|source|definitions".
file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cpp)
set(kernel_units "")
foreach(source ${kernel_sources})
  cmake_path(GET source STEM name)
  if(name STREQUAL "forward")
    foreach(dtype f16 bf16)
      foreach(variant plain full)
        list(APPEND kernel_units
          "${name}_${dtype}_${variant}|${source}|-DROCFLASH_UNIT_DTYPE=${dtype},-DROCFLASH_UNIT_VARIANT=${variant}")
      endforeach()
    endforeach()
  else()
    list(APPEND kernel_units "${name}|${source}|")
  endif()
endforeach()

# Sets kernel_tools_missing to what is not there, in words.
function(rocflash_find_kernel_tools)
  set(missing "")
  set(llvm HINTS /usr/lib/llvm-22/bin)
  find_program(ROCFLASH_KERNEL_COMPILER NAMES clang++-22 clang++ ${llvm} DOC "clang 22 or newer, for kernels")
  find_program(ROCFLASH_KERNEL_LINKER NAMES ld.lld-22 ld.lld ${llvm} DOC "LLVM's linker, for kernels")
  find_program(ROCFLASH_BASH NAMES bash)
  find_path(ROCFLASH_ZSTD_INCLUDE zstd.h)
  find_library(ROCFLASH_ZSTD_LIBRARY libzstd.a DOC "zstd as a static library: the kernels' compression")
  mark_as_advanced(ROCFLASH_KERNEL_COMPILER ROCFLASH_KERNEL_LINKER ROCFLASH_BASH ROCFLASH_ZSTD_INCLUDE
    ROCFLASH_ZSTD_LIBRARY)
  if(ROCFLASH_KERNEL_COMPILER)
    execute_process(COMMAND ${ROCFLASH_KERNEL_COMPILER} -dumpversion OUTPUT_VARIABLE version
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${ROCFLASH_KERNEL_COMPILER} --print-targets OUTPUT_VARIABLE known ERROR_QUIET)
    if(NOT version)
      list(APPEND missing "clang 22 (${ROCFLASH_KERNEL_COMPILER} does not run)")
    elseif(version VERSION_LESS 22)
      list(APPEND missing "clang 22 (${ROCFLASH_KERNEL_COMPILER} is ${version})")
    elseif(NOT known MATCHES "amdgcn" OR NOT known MATCHES "nvptx64")
      list(APPEND missing "clang 22 with the targets amdgcn and nvptx64 (${ROCFLASH_KERNEL_COMPILER} lacks them)")
    endif()
  else()
    list(APPEND missing "clang 22")
  endif()
  if(NOT ROCFLASH_KERNEL_LINKER)
    list(APPEND missing "ld.lld of LLVM 22")
  endif()
  if(NOT ROCFLASH_BASH)
    list(APPEND missing "bash")
  endif()
  if(NOT ROCFLASH_ZSTD_INCLUDE OR NOT ROCFLASH_ZSTD_LIBRARY)
    list(APPEND missing "libzstd.a with its header")
  endif()
  list(JOIN missing ", " missing)
  set(kernel_tools_missing "${missing}" PARENT_SCOPE)
endfunction()

# Sets kernel_archs to the architectures to build, in the catalogue's order.
function(rocflash_choose_kernel_archs)
  set(known "")
  foreach(family ${kernel_families})
    list(APPEND known ${kernel_members_${family}})
  endforeach()
  set(asked ${ROCFLASH_GPU_ARCHS})
  if(NOT asked)
    set(asked all)
    if(ROCFLASH_SANITIZE OR ROCFLASH_BUILD_FUZZ)
      set(asked none)
    endif()
  endif()
  if(asked STREQUAL "none")
    set(chosen "")
  elseif(asked STREQUAL "all")
    set(chosen ${known})
  else()
    set(chosen ${known})
    foreach(arch ${asked})
      if(NOT arch IN_LIST known)
        list(JOIN known ", " names)
        message(FATAL_ERROR "ROCFLASH_GPU_ARCHS names ${arch}; allowed are all, none, or some of ${names}")
      endif()
    endforeach()
    foreach(arch ${known})
      if(NOT arch IN_LIST asked)
        list(REMOVE_ITEM chosen ${arch})
      endif()
    endforeach()
  endif()
  if(chosen)
    rocflash_find_kernel_tools()
    if(kernel_tools_missing AND ROCFLASH_GPU_ARCHS)
      message(FATAL_ERROR "ROCFLASH_GPU_ARCHS is ${ROCFLASH_GPU_ARCHS}, but kernels need ${kernel_tools_missing}")
    elseif(kernel_tools_missing)
      message(WARNING "This build is for the CPU alone: kernels for GPUs need ${kernel_tools_missing}. "
        "ROCFLASH_GPU_ARCHS=none says that this is meant.")
      set(chosen "")
    endif()
  endif()
  set(kernel_archs ${chosen} PARENT_SCOPE)
endfunction()

rocflash_choose_kernel_archs()
set(kernel_directory ${PROJECT_BINARY_DIR}/kernels)
set(kernel_scripts ${PROJECT_SOURCE_DIR}/kernels/tools)
set(kernel_table "")     # lines of targets.inc
set(kernel_modules "")   # "family:arch:file" for the report
set(kernel_outputs "")   # what the catalogue embeds

# rocflash_compile_unit(family unit output): one unit for one family.
function(rocflash_compile_unit family unit output)
  string(REPLACE "|" ";" parts "${unit}|")
  list(GET parts 0 name)
  list(GET parts 1 source)
  list(GET parts 2 definitions)
  string(REPLACE "," ";" definitions "${definitions}")
  add_custom_command(OUTPUT ${output}
    COMMAND ${ROCFLASH_KERNEL_COMPILER} ${kernel_flags_${family}} ${kernel_flags_common} ${definitions}
      -S ${source} -o ${output} -MD -MF ${output}.d -MT ${output}
    DEPENDS ${source} ${ROCFLASH_KERNEL_COMPILER} DEPFILE ${output}.d
    COMMENT "Compiling ${name} for ${family}" COMMAND_EXPAND_LISTS VERBATIM)
endfunction()

foreach(family ${kernel_families})
  set(members "")
  foreach(arch ${kernel_members_${family}})
    if(arch IN_LIST kernel_archs)
      list(APPEND members ${arch})
    endif()
  endforeach()
  if(NOT members)
    continue()
  endif()
  set(is_amd TRUE)
  set(extension s)
  if(family STREQUAL "nvidia")
    set(is_amd FALSE)
    set(extension ptx)
  endif()
  file(MAKE_DIRECTORY ${kernel_directory}/${family})
  set(compiled "")
  foreach(unit ${kernel_units})
    string(REGEX REPLACE "\\|.*" "" name "${unit}")
    rocflash_compile_unit(${family} "${unit}" ${kernel_directory}/${family}/${name}.${extension})
    list(APPEND compiled ${kernel_directory}/${family}/${name}.${extension})
  endforeach()

  list(GET members 0 base)
  foreach(arch ${members})
    if(is_amd)
      set(module ${kernel_directory}/${arch}.co)
      set(script ${kernel_scripts}/assemble.sh)
      set(arguments ${ROCFLASH_KERNEL_COMPILER} ${ROCFLASH_KERNEL_LINKER} ${arch} ${module} ${compiled})
    else()
      set(module ${kernel_directory}/${arch}.ptx)
      set(script ${kernel_scripts}/join_ptx.sh)
      set(arguments ${module} ${compiled})
    endif()
    add_custom_command(OUTPUT ${module}
      COMMAND ${ROCFLASH_BASH} ${script} ${arguments}
      DEPENDS ${compiled} ${script}
      COMMENT "Assembling the kernels of ${arch}" VERBATIM)
    set(relative_to "")
    if(is_amd AND NOT arch STREQUAL base)
      set(relative_to ${kernel_directory}/${base}.co)
    endif()
    add_custom_command(OUTPUT ${kernel_directory}/${arch}.zst
      COMMAND rocflash_compress ${module} ${kernel_directory}/${arch}.zst ${relative_to}
      DEPENDS ${module} ${relative_to} rocflash_compress
      COMMENT "Compressing the kernels of ${arch}" VERBATIM)
    string(APPEND kernel_table "ROCFLASH_TARGET(${arch}, ${family}, ${base})\n")
    list(APPEND kernel_modules "${family}:${arch}:${module}")
    list(APPEND kernel_outputs ${kernel_directory}/${arch}.zst)
  endforeach()
endforeach()

list(LENGTH kernel_archs kernel_count)
file(CONFIGURE OUTPUT ${kernel_directory}/include/targets.inc @ONLY CONTENT [[
// Written by cmake/Kernels.cmake: what the catalogue carries.
#undef ROCFLASH_TARGETS
#define ROCFLASH_TARGETS @kernel_count@
#ifdef ROCFLASH_TARGET
@kernel_table@#endif
]])

add_library(rocflash_catalogue OBJECT ${PROJECT_SOURCE_DIR}/src/gpu/catalogue.cpp ${PROJECT_SOURCE_DIR}/src/gpu/ptx.cpp)
target_include_directories(rocflash_catalogue
  PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/kernels PRIVATE ${kernel_directory}/include)
target_link_libraries(rocflash_catalogue PRIVATE rocflash_options)
if(kernel_archs)
  list(JOIN kernel_archs " " names)
  message(STATUS "Kernels for ${names}, by ${ROCFLASH_KERNEL_COMPILER}")
  add_executable(rocflash_compress ${kernel_scripts}/compress.cpp)
  target_include_directories(rocflash_compress SYSTEM PRIVATE ${ROCFLASH_ZSTD_INCLUDE})
  target_link_libraries(rocflash_compress PRIVATE rocflash_options ${ROCFLASH_ZSTD_LIBRARY})
  add_custom_target(rocflash_kernels DEPENDS ${kernel_outputs})
  add_dependencies(rocflash_catalogue rocflash_kernels)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/gpu/catalogue.cpp PROPERTIES OBJECT_DEPENDS "${kernel_outputs}")
  target_compile_definitions(rocflash_catalogue PRIVATE ROCFLASH_KERNELS="${kernel_directory}")
  target_include_directories(rocflash_catalogue SYSTEM PRIVATE ${ROCFLASH_ZSTD_INCLUDE})
  target_link_libraries(rocflash_catalogue INTERFACE ${ROCFLASH_ZSTD_LIBRARY})

  # The report is for people and tests; a build without either's needs does without the JSON library.
  find_package(nlohmann_json QUIET)
  if(nlohmann_json_FOUND)
    add_executable(rocflash_kernel_reporter ${kernel_scripts}/report.cpp)
    target_include_directories(rocflash_kernel_reporter PRIVATE ${PROJECT_SOURCE_DIR}/kernels ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(rocflash_kernel_reporter PRIVATE rocflash_options nlohmann_json::nlohmann_json)
    list(TRANSFORM kernel_modules REPLACE ".*:" "" OUTPUT_VARIABLE modules)
    add_custom_command(OUTPUT ${kernel_directory}/report.json ${kernel_directory}/report.txt
      COMMAND rocflash_kernel_reporter ${kernel_directory}/report.json ${kernel_directory}/report.txt ${kernel_modules}
      DEPENDS ${modules} rocflash_kernel_reporter
      COMMENT "Reporting on the kernels" VERBATIM)
    add_custom_target(rocflash_kernel_report ALL DEPENDS ${kernel_directory}/report.json)
    add_dependencies(rocflash_kernel_report rocflash_kernels)
  endif()
else()
  message(STATUS "No kernels for GPUs: the CPU alone")
endif()
