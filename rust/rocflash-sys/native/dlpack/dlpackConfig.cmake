# The package that find_package(dlpack) finds in the crate: the DLPack structs that rocflash.h uses.
add_library(dlpack::dlpack INTERFACE IMPORTED)
set_target_properties(dlpack::dlpack PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/include")
