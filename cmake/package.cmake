# What is installed where, and Debian packages of it (`make package`). The client library lies apart from the
# loader's folders: a program meets it only on a share.

# Packages need neither tests nor benchmarks.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

install(TARGETS prorata RUNTIME DESTINATION bin COMPONENT prorata)
install(TARGETS prorata_client_cuda prorata_client_nvml
  LIBRARY DESTINATION lib/prorata COMPONENT prorata NAMELINK_SKIP)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/debian/prorata.service DESTINATION lib/systemd/system COMPONENT prorata)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION share/doc/prorata RENAME copyright COMPONENT prorata)
if(PRORATA_KUBERNETES)
  install(TARGETS prorata-kubernetes RUNTIME DESTINATION bin COMPONENT prorata-kubernetes)
  install(FILES ${PRORATA_BIN_DIR}/kubectl-prorata DESTINATION bin COMPONENT prorata-kubernetes)
  install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION share/doc/prorata-kubernetes RENAME copyright
    COMPONENT prorata-kubernetes)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL prorata)
if(PRORATA_KUBERNETES)
  list(APPEND CPACK_COMPONENTS_ALL prorata-kubernetes)
endif()
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_CONTACT "the authors of prorata")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PRORATA_PACKAGE_NAME prorata)
set(CPACK_COMPONENT_PRORATA_DESCRIPTION "shares of NVIDIA GPUs for programs and containers
The agent of a node, its command line, and the client library that holds a
program to its share of a GPU's memory and time.")
set(CPACK_DEBIAN_PRORATA_PACKAGE_CONTROL_EXTRA
  ${CMAKE_SOURCE_DIR}/deploy/debian/postinst ${CMAKE_SOURCE_DIR}/deploy/debian/prerm
  ${CMAKE_SOURCE_DIR}/deploy/debian/postrm)
set(CPACK_DEBIAN_PRORATA_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PRORATA-KUBERNETES_PACKAGE_NAME prorata-kubernetes)
set(CPACK_COMPONENT_PRORATA-KUBERNETES_DESCRIPTION "shares of NVIDIA GPUs for pods
The Kubernetes side of prorata: what offers a node's GPUs to its cluster, and
makes the shares of pods. It needs the agent of package prorata on the node.")
set(CPACK_OUTPUT_FILE_PREFIX packages)
include(CPack)
