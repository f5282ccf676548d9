# Compiles kernels/ for GPUs and generates the catalog of the library (src/gpu/catalog.hpp).
#
#   kernels/table  --this file-->                  unit.cpp
#   unit.cpp       --clang-->                      unit.s (AMD) or unit.ptx (NVIDIA)
#   unit.s         --assemble.sh--> gfx1100.co     --compress--> gfx1100.zst
#   unit.ptx       --join_ptx.sh--> sm_80.ptx      --compress--> sm_80.zst
#
# A cross build does not repeat this: ROCFLASH_KERNELS_FROM names a build for this machine, whose
# compressed kernels it embeds.
#
# A unit is one line of kernels/table/kernels.inc, or its lines of several dtypes, for one family;
# each member of the family has a separate module. Stock clang compiles all of them, independent of
# the host compiler, without ROCm and CUDA toolkit. The files in <build>/kernels are rebuilt only if
# a dependency changed.
set(ROCFLASH_GPU_ARCHS "" CACHE STRING
  "GPU architectures to compile kernels for: all, none, a list such as gfx942;gfx1100;sm_80, or native: those of this machine's GPUs, to try out and not to install (default: all; none with sanitizers)")
set(ROCFLASH_KERNELS_FROM "" CACHE PATH
  "A build directory of these sources whose kernels are embedded instead of compiling them, for cross builds")
set(ROCFLASH_ZSTD_SOURCE "" CACHE PATH
  "A directory with zstd.c and zstd.h, zstd's sources in one file, which are compiled instead of searching libzstd.a")

include(${CMAKE_CURRENT_LIST_DIR}/KernelTable.cmake)

# Only clang compiles this code, so its extensions need no warning.
set(kernel_flags_common
  -std=c++20 -O3 -ffreestanding -fno-exceptions -fno-rtti -fno-threadsafe-statics
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion $<$<BOOL:${ROCFLASH_WERROR}>:-Werror>
  -isystem ${PROJECT_SOURCE_DIR}/kernels/freestanding -I${PROJECT_SOURCE_DIR}/kernels -I${PROJECT_SOURCE_DIR}/src)

# Sets kernel_tools_missing to a text that names the missing tools.
function(rocflash_find_kernel_tools)
  set(missing "")
  find_program(ROCFLASH_BASH NAMES bash)
  rocflash_find_zstd()
  set(given "")
  foreach(tool COMPILER LINKER)
    if(ROCFLASH_KERNEL_${tool})
      list(APPEND given ROCFLASH_KERNEL_${tool}=${ROCFLASH_KERNEL_${tool}})
    endif()
  endforeach()
  # The packaging and scripts/setup.sh call the same script, so that they find the same tools.
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ${given} sh ${PROJECT_SOURCE_DIR}/kernels/build/llvm.sh
    OUTPUT_VARIABLE found)
  string(REGEX MATCHALL "[^\n]+" lines "${found}")
  foreach(line ${lines})
    if(line MATCHES "^missing (.*)")
      list(APPEND missing "${CMAKE_MATCH_1}")
    elseif(line MATCHES "^compiler (.*)")
      set(ROCFLASH_KERNEL_COMPILER "${CMAKE_MATCH_1}" CACHE FILEPATH "clang 22 or newer, for kernels" FORCE)
    elseif(line MATCHES "^linker (.*)")
      set(ROCFLASH_KERNEL_LINKER "${CMAKE_MATCH_1}" CACHE FILEPATH "LLVM's linker, for kernels" FORCE)
    endif()
  endforeach()
  mark_as_advanced(ROCFLASH_KERNEL_COMPILER ROCFLASH_KERNEL_LINKER ROCFLASH_BASH ROCFLASH_ZSTD_INCLUDE
    ROCFLASH_ZSTD_LIBRARY)
  if(NOT ROCFLASH_BASH)
    list(APPEND missing "bash")
  endif()
  if(NOT ROCFLASH_ZSTD_INCLUDE OR NOT ROCFLASH_ZSTD_LIBRARY)
    list(APPEND missing "libzstd.a with its header")
  endif()
  list(JOIN missing ", " missing)
  set(kernel_tools_missing "${missing}" PARENT_SCOPE)
endfunction()

# Sets ROCFLASH_ZSTD_INCLUDE and ROCFLASH_ZSTD_LIBRARY.
function(rocflash_find_zstd)
  if(ROCFLASH_ZSTD_SOURCE)
    if(NOT TARGET rocflash_zstd)
      add_library(rocflash_zstd STATIC ${ROCFLASH_ZSTD_SOURCE}/zstd.c)
      target_compile_options(rocflash_zstd PRIVATE -w)
    endif()
    set(ROCFLASH_ZSTD_INCLUDE ${ROCFLASH_ZSTD_SOURCE} CACHE PATH "" FORCE)
    set(ROCFLASH_ZSTD_LIBRARY rocflash_zstd CACHE STRING "" FORCE)
    return()
  endif()
  find_path(ROCFLASH_ZSTD_INCLUDE zstd.h)
  find_library(ROCFLASH_ZSTD_LIBRARY libzstd.a DOC "zstd as a static library: the kernels' compression")
endfunction()

# rocflash_native_archs(result): the architectures of this machine's GPUs that have kernels.
function(rocflash_native_archs result)
  execute_process(COMMAND sh ${PROJECT_SOURCE_DIR}/kernels/build/native.sh OUTPUT_VARIABLE found COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" lines "${found}")
  set(here "")
  set(others "")
  foreach(line ${lines})
    string(REGEX REPLACE " .*" "" gpu "${line}")
    set(served FALSE)
    foreach(family ${kernel_families})
      if(gpu STREQUAL kernel_vendor_${family})
        # One PTX file runs on all generations; family extensions are for some of them.
        list(APPEND here ${kernel_members_${family}})
        set(served TRUE)
      elseif(gpu IN_LIST kernel_members_${family})
        list(APPEND here ${gpu})
        set(served TRUE)
      endif()
    endforeach()
    if(NOT served)
      list(APPEND others ${gpu})
    endif()
  endforeach()
  if(others)
    list(JOIN others ", " names)
    message(WARNING "This machine has ${names}, which there are no kernels for")
  endif()
  if(here)
    list(JOIN here ", " names)
    message(NOTICE "-- Kernels for the GPUs of this machine: ${names}. Others are left out.")
  else()
    message(NOTICE "-- No GPU found that there are kernels for: they are left out, the CPU serves.")
    set(here none)
  endif()
  set(${result} ${here} PARENT_SCOPE)
endfunction()

# The build for the CPU alone, which is an error if kernels were requested, or if this machine could
# use them.
function(rocflash_without_kernel_tools)
  set(remedy "scripts/setup.sh installs them (docs/install.md); ROCFLASH_GPU_ARCHS=none builds for the CPU only.")
  if(ROCFLASH_GPU_ARCHS AND NOT ROCFLASH_GPU_ARCHS STREQUAL "native")
    message(FATAL_ERROR "ROCFLASH_GPU_ARCHS is ${ROCFLASH_GPU_ARCHS}, but GPU kernels need ${kernel_tools_missing}. ${remedy}")
  endif()
  execute_process(COMMAND sh ${PROJECT_SOURCE_DIR}/kernels/build/native.sh --signs OUTPUT_VARIABLE found
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(found)
    string(REPLACE "\n" ", " found "${found}")
    message(FATAL_ERROR "This machine has a GPU or its driver (${found}), but GPU kernels need ${kernel_tools_missing}. ${remedy}")
  endif()
  message(WARNING "CPU ONLY: this build has no GPU kernels, because they need ${kernel_tools_missing}. ${remedy}")
endfunction()

# Sets kernel_archs to the architectures to build, in the catalog's order.
function(rocflash_choose_kernel_archs)
  set(known "")
  foreach(family ${kernel_families})
    list(APPEND known ${kernel_members_${family}})
  endforeach()
  set(asked ${ROCFLASH_GPU_ARCHS})
  if(asked STREQUAL "native")
    rocflash_native_archs(asked)
  endif()
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
        message(FATAL_ERROR "ROCFLASH_GPU_ARCHS names ${arch}; allowed are all, none, native, or some of ${names}")
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
    if(kernel_tools_missing)
      rocflash_without_kernel_tools()
      set(chosen "")
    endif()
  endif()
  set(kernel_archs ${chosen} PARENT_SCOPE)
endfunction()

# Sets kernel_archs, kernel_directory and kernel_outputs to those of ROCFLASH_KERNELS_FROM.
function(rocflash_take_kernels)
  set(directory ${ROCFLASH_KERNELS_FROM}/kernels)
  set(list ${directory}/include/targets.inc)
  if(NOT EXISTS ${list})
    message(FATAL_ERROR "ROCFLASH_KERNELS_FROM is ${ROCFLASH_KERNELS_FROM}, which has no kernels/include/targets.inc")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})
  file(STRINGS ${list} lines REGEX "^ROCFLASH_TARGET\\(")
  set(archs "")
  set(outputs "")
  foreach(line ${lines})
    string(REGEX REPLACE "^ROCFLASH_TARGET\\(([a-z0-9_]+),.*" "\\1" arch ${line})
    list(APPEND archs ${arch})
    list(APPEND outputs ${directory}/${arch}.zst)
  endforeach()
  foreach(output ${outputs})
    if(NOT EXISTS ${output})
      message(FATAL_ERROR "${output} does not exist; build rocflash_kernels in ${ROCFLASH_KERNELS_FROM}")
    endif()
  endforeach()
  rocflash_find_zstd()
  if(archs AND (NOT ROCFLASH_ZSTD_INCLUDE OR NOT ROCFLASH_ZSTD_LIBRARY))
    message(FATAL_ERROR "GPU kernels need libzstd.a with its header for the target; ROCFLASH_ZSTD_SOURCE names its sources")
  endif()
  set(kernel_archs ${archs} PARENT_SCOPE)
  set(kernel_directory ${directory} PARENT_SCOPE)
  set(kernel_outputs ${outputs} PARENT_SCOPE)
endfunction()

if(ROCFLASH_KERNELS_FROM)
  rocflash_take_kernels()
elseif(WIN32 AND CMAKE_CROSSCOMPILING AND NOT ROCFLASH_GPU_ARCHS STREQUAL "none")
  message(FATAL_ERROR "A cross build for Windows takes its kernels from the build that ROCFLASH_KERNELS_FROM names; "
    "ROCFLASH_GPU_ARCHS=none builds for the CPU only")
else()
  rocflash_choose_kernel_archs()
  set(kernel_directory ${PROJECT_BINARY_DIR}/kernels)
  set(kernel_outputs "") # what the catalog embeds
endif()
set(kernel_scripts ${PROJECT_SOURCE_DIR}/kernels/build)
set(kernel_table "")     # lines of targets.inc
set(kernel_modules "")   # "arch:file" for the report

# rocflash_compile_unit(family unit result): generates the source of one unit for one family and
# compiles it. Sets result to the output file, or to nothing if the family does not have these
# kernels.
function(rocflash_compile_unit family unit result)
  set(${result} "" PARENT_SCOPE)
  string(REPLACE "|" ";" columns "${unit}")
  list(POP_FRONT columns dtypes operation schedule variant set buckets)
  rocflash_in_set(wanted "${set}" ${family})
  if(NOT wanted)
    return()
  endif()
  rocflash_header_of(${family} ${operation} ${schedule} header)
  if(NOT header)
    message(FATAL_ERROR "kernels/table/kernels.inc has ${operation} kernels (${schedule}) for ${family}, but no header")
  endif()
  rocflash_function_of(${operation} ${schedule} function)

  # The symbols here are checked against the table's names by entry.hpp.
  set(entries "")
  string(REPLACE "+" ";" buckets "${buckets}")
  string(REPLACE "+" ";" dtypes "${dtypes}")
  foreach(dtype ${dtypes})
    foreach(bucket ${buckets})
      set(symbol ${function}_${dtype})
      if(NOT bucket STREQUAL "0")
        string(APPEND symbol _${bucket})
      endif()
      if(NOT variant STREQUAL "any")
        string(APPEND symbol _${variant})
      endif()
      string(APPEND entries "ROCFLASH_ENTRY(${symbol}, ${function}, ${operation}, ${schedule}, ${dtype}, ${bucket}, ${variant})\n")
    endforeach()
  endforeach()
  list(GET buckets 0 first)
  list(JOIN dtypes "_" dtypes)
  set(name ${function}_${dtypes}_${variant}_${first})
  set(layer ${kernel_layer_${family}})
  set(source ${kernel_directory}/${family}/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
// Written by cmake/Kernels.cmake from kernels/table.
#define ROCFLASH_THIS_FAMILY @family@
#define ROCFLASH_ARCH_HEADER "@layer@"
#define ROCFLASH_SCHEDULE_HEADER "@header@"
#include "entry/entry.hpp"

@entries@]])
  set(extension s)
  if(kernel_vendor_${family} STREQUAL "nvidia")
    set(extension ptx)
  endif()
  set(output ${kernel_directory}/${family}/${name}.${extension})
  add_custom_command(OUTPUT ${output}
    COMMAND ${ROCFLASH_KERNEL_COMPILER} ${kernel_flags_${family}} ${kernel_flags_common}
      -S ${source} -o ${output} -MD -MF ${output}.d -MT ${output}
    DEPENDS ${source} ${ROCFLASH_KERNEL_COMPILER} DEPFILE ${output}.d
    COMMENT "Compiling ${name} for ${family}" COMMAND_EXPAND_LISTS VERBATIM)
  set(${result} ${output} PARENT_SCOPE)
endfunction()

# The members that are built: built_<family>.
foreach(family ${kernel_families})
  set(built_${family} "")
  foreach(arch ${kernel_members_${family}})
    if(arch IN_LIST kernel_archs AND NOT ROCFLASH_KERNELS_FROM)
      list(APPEND built_${family} ${arch})
    endif()
  endforeach()
endforeach()

foreach(family ${kernel_families})
  set(members ${built_${family}})
  if(NOT members)
    continue()
  endif()
  set(is_amd TRUE)
  if(kernel_vendor_${family} STREQUAL "nvidia")
    set(is_amd FALSE)
  endif()
  set(compiled "")
  foreach(unit ${kernel_units})
    rocflash_compile_unit(${family} "${unit}" output)
    list(APPEND compiled ${output})
  endforeach()

  list(GET members 0 first_member)
  foreach(arch ${members})
    # The module that it is a copy of with other flags, and the delta base of its compression; by
    # default itself.
    set(copied "")
    set(base ${arch})
    if(is_amd AND NOT arch STREQUAL first_member)
      set(base ${first_member})
      set(copied ${kernel_directory}/${base}.co)
    elseif(is_amd AND built_${kernel_delta_base_${family}})
      list(GET built_${kernel_delta_base_${family}} 0 base)
    endif()
    set(difference_from "")
    if(NOT base STREQUAL arch)
      set(difference_from ${kernel_directory}/${base}.co)
    endif()
    if(is_amd)
      set(module ${kernel_directory}/${arch}.co)
      set(script ${kernel_scripts}/assemble.sh)
      set(arguments ${ROCFLASH_KERNEL_COMPILER} ${ROCFLASH_KERNEL_LINKER} ${arch} ${module})
      if(copied)
        list(APPEND arguments ${copied})
      else()
        list(APPEND arguments -)
      endif()
      list(APPEND arguments ${compiled})
    else()
      set(module ${kernel_directory}/${arch}.ptx)
      set(script ${kernel_scripts}/join_ptx.sh)
      set(arguments ${module} ${compiled})
    endif()
    add_custom_command(OUTPUT ${module}
      COMMAND ${ROCFLASH_BASH} ${script} ${arguments}
      DEPENDS ${compiled} ${script} ${copied}
      COMMENT "Assembling the kernels of ${arch}" VERBATIM)
    add_custom_command(OUTPUT ${kernel_directory}/${arch}.zst
      COMMAND rocflash_compress ${module} ${kernel_directory}/${arch}.zst ${difference_from}
      DEPENDS ${module} ${difference_from} rocflash_compress
      COMMENT "Compressing the kernels of ${arch}" VERBATIM)
    string(APPEND kernel_table "ROCFLASH_TARGET(${arch}, ${family}, ${base})\n")
    list(APPEND kernel_modules "${arch}:${module}")
    list(APPEND kernel_outputs ${kernel_directory}/${arch}.zst)
  endforeach()
endforeach()

if(NOT ROCFLASH_KERNELS_FROM)
  list(LENGTH kernel_archs kernel_count)
  file(CONFIGURE OUTPUT ${kernel_directory}/include/targets.inc @ONLY CONTENT [[
// Written by cmake/Kernels.cmake: what the catalog carries.
#undef ROCFLASH_TARGETS
#define ROCFLASH_TARGETS @kernel_count@
#ifdef ROCFLASH_TARGET
@kernel_table@#endif
]])
endif()

add_library(rocflash_catalog OBJECT ${PROJECT_SOURCE_DIR}/src/gpu/catalog.cpp ${PROJECT_SOURCE_DIR}/src/gpu/ptx.cpp)
target_include_directories(rocflash_catalog
  PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/kernels PRIVATE ${kernel_directory}/include)
target_link_libraries(rocflash_catalog PRIVATE rocflash_options)
if(kernel_archs)
  target_compile_definitions(rocflash_catalog PRIVATE ROCFLASH_KERNELS="${kernel_directory}"
    ROCFLASH_EMBED_HEADER="platform/${rocflash_platform}/embed.hpp")
  target_include_directories(rocflash_catalog SYSTEM PRIVATE ${ROCFLASH_ZSTD_INCLUDE})
  target_link_libraries(rocflash_catalog INTERFACE ${ROCFLASH_ZSTD_LIBRARY})
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/gpu/catalog.cpp PROPERTIES OBJECT_DEPENDS "${kernel_outputs}")
  list(JOIN kernel_archs " " names)
endif()
if(kernel_archs AND ROCFLASH_KERNELS_FROM)
  message(STATUS "Kernels for ${names}, from ${ROCFLASH_KERNELS_FROM}")
elseif(kernel_archs)
  message(STATUS "Kernels for ${names}, by ${ROCFLASH_KERNEL_COMPILER}")
  add_executable(rocflash_compress ${kernel_scripts}/compress.cpp)
  target_include_directories(rocflash_compress SYSTEM PRIVATE ${ROCFLASH_ZSTD_INCLUDE})
  target_link_libraries(rocflash_compress PRIVATE rocflash_options ${ROCFLASH_ZSTD_LIBRARY})
  add_custom_target(rocflash_kernels DEPENDS ${kernel_outputs})
  add_dependencies(rocflash_catalog rocflash_kernels)

  # The report is for people and tests; a build without the JSON library omits it.
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
