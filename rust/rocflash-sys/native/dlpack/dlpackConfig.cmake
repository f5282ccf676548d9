# What the project's CMakeLists.txt asks for: the DLPack structs that rocflash.h uses.
add_library(dlpack::dlpack INTERFACE IMPORTED)
set_target_properties(dlpack::dlpack PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/include")
