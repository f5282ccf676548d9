# verify/ checks the public API, so it includes only its own, public and system headers, and nothing
# of src/ or kernels/ but the table of the drivers' functions, which describes the vendors' API, and
# what opens shared libraries.
file(GLOB files ${DIRECTORY}/*.hpp ${DIRECTORY}/*.cpp)
if(NOT files)
  message(FATAL_ERROR "${DIRECTORY} has no sources")
endif()
foreach(file ${files})
  file(STRINGS ${file} lines REGEX "^ *#include")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "#include (\"verify/|\"gpu/driver/symbols.hpp\"|\"platform/shared_library.hpp\"|<rocflash/|<dlpack/|<[a-z_]+>)")
      message(FATAL_ERROR "${file}: ${line}")
    endif()
  endforeach()
endforeach()
