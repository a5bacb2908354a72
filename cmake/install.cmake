# `cmake --install` and `cpack`: the program, its manual and completions (made from its --help), the unit of systemd with
# its user and directories, and the documents. A build with a sanitizer is not for installing.
set(manual ${PROJECT_BINARY_DIR}/manual)
add_custom_command(OUTPUT ${manual}/man1/cambium.1
    COMMAND ${PROJECT_SOURCE_DIR}/tools/manual $<TARGET_FILE:cambium> ${manual}
    DEPENDS cambium ${PROJECT_SOURCE_DIR}/tools/manual
    COMMENT "Making the manual and completions from --help"
    VERBATIM)
add_custom_target(manual ALL DEPENDS ${manual}/man1/cambium.1)

# A build of only the program, as tools/quickstart makes it, has no manual yet.
install(CODE "execute_process(COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target manual
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)")
install(TARGETS cambium RUNTIME DESTINATION bin)
install(DIRECTORY ${manual}/man1 DESTINATION share/man)
install(FILES ${manual}/bash/cambium DESTINATION share/bash-completion/completions)
install(FILES README.md deploy/copyright DESTINATION share/doc/cambium)
install(DIRECTORY docs DESTINATION share/doc/cambium)
install(DIRECTORY deploy/kubernetes DESTINATION share/doc/cambium/deploy)
install(FILES deploy/sysusers.conf DESTINATION lib/sysusers.d RENAME cambium.conf)
install(FILES deploy/tmpfiles.conf DESTINATION lib/tmpfiles.d RENAME cambium.conf)
# These depend on the prefix, which is known when the files are installed: the path in the unit, and the folder in which
# zsh looks (Debian's packages have one of their own).
set(unit ${PROJECT_SOURCE_DIR}/deploy/cambium.service)
install(CODE "
    get_filename_component(prefix \"\${CMAKE_INSTALL_PREFIX}\" ABSOLUTE)
    file(READ ${unit} text)
    string(REPLACE /usr/local/bin/ \"\${prefix}/bin/\" text \"\${text}\")
    file(WRITE ${manual}/cambium.service \"\${text}\")
    file(INSTALL ${manual}/cambium.service DESTINATION \"\${prefix}/lib/systemd/system\")
    set(functions share/zsh/site-functions)
    if(prefix STREQUAL /usr)
        set(functions share/zsh/vendor-completions)
    endif()
    file(INSTALL ${manual}/zsh/_cambium DESTINATION \"\${prefix}/\${functions}\")
")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME cambium)
set(CPACK_PACKAGE_CONTACT "Cambium's developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_SET_DESTDIR ON) # so that CMAKE_INSTALL_PREFIX is the place of the files in the end
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/deploy/postinst)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS libedit2) # chat opens it at run time
if(MPI_C_FOUND)
    set(CPACK_DEBIAN_PACKAGE_SUGGESTS openmpi-bin) # it has mpirun
endif()
include(CPack)
