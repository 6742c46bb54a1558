# `cmake --install` and find_package(scaling_contrasts).
include(CMakePackageConfigHelpers)
set(SC_PACKAGE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/scaling_contrasts)
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS scaling_contrasts RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS scaling_contrasts_headers EXPORT scaling_contrasts_targets)
install(EXPORT scaling_contrasts_targets NAMESPACE scaling_contrasts:: DESTINATION ${SC_PACKAGE_FOLDER})
configure_package_config_file(cmake/scaling_contrasts-config.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/scaling_contrasts-config.cmake INSTALL_DESTINATION ${SC_PACKAGE_FOLDER})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/scaling_contrasts-config-version.cmake
  COMPATIBILITY SameMajorVersion ARCH_INDEPENDENT)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/scaling_contrasts-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/scaling_contrasts-config-version.cmake DESTINATION ${SC_PACKAGE_FOLDER})
