# Clusters that tests start on this machine; each says what it lacks and is skipped where it cannot.
if(MPI_C_FOUND AND MPIRUN AND NOT CAMBIUM_SANITIZE)
    file(GLOB scripts CONFIGURE_DEPENDS ${here}/cluster/*_test.py)
    foreach(script ${scripts})
        get_filename_component(name ${script} NAME_WE)
        add_test(NAME cluster_${name} COMMAND ${Python3_EXECUTABLE} -B ${here}/support/run.py ${script})
        set_tests_properties(cluster_${name} PROPERTIES LABELS cluster TIMEOUT 900 PROCESSORS 2
            SKIP_RETURN_CODE 77
            ENVIRONMENT "CAMBIUM=$<TARGET_FILE:cambium>;CAMBIUM_SOURCE=${PROJECT_SOURCE_DIR};PYTHONPATH=${here}/commands")
        test_needs(cluster_${name} cambium)
    endforeach()
endif()
