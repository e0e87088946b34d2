# nvshmem_libfabric::channel: library and headers of the device channel.
get_filename_component(_nvshmem_libfabric_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." REALPATH)
if(NOT TARGET nvshmem_libfabric::channel)
  add_library(nvshmem_libfabric::channel SHARED IMPORTED)
  set_target_properties(nvshmem_libfabric::channel PROPERTIES
    IMPORTED_LOCATION "${_nvshmem_libfabric_prefix}/lib/libnvshmem_libfabric_channel.so.0"
    IMPORTED_SONAME "libnvshmem_libfabric_channel.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_nvshmem_libfabric_prefix}/include")
endif()
unset(_nvshmem_libfabric_prefix)
