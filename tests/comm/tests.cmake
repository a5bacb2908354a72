# The body of the collectives' test, for ranks as threads and as processes.
add_library(comm_cases STATIC ${here}/comm/cases.c ${here}/comm/device_cases.c ${here}/comm/unordered.c)
target_include_directories(comm_cases PRIVATE ${PROJECT_SOURCE_DIR}/src/comm) # unordered.c is a channel
target_link_libraries(comm_cases PUBLIC test_support comm)

room_tests(comm LINKS comm_cases)

# The same body in processes. Sanitizers would report Open MPI's own leaks and races, so they do without.
add_executable(comm_mpi_ranks ${here}/comm/mpi_ranks.c)
target_link_libraries(comm_mpi_ranks PRIVATE comm_cases)
find_program(MPIRUN mpirun)
# mpi_test(NAME RANKS PROGRAM CASE): `CASE` of the program under mpirun.
function(mpi_test name ranks program case)
    if(MPI_C_FOUND AND MPIRUN AND NOT CAMBIUM_SANITIZE)
        add_test(NAME ${name} COMMAND ${MPIRUN} --allow-run-as-root --oversubscribe --bind-to none -n ${ranks}
            $<TARGET_FILE:${program}> ${case})
        set_tests_properties(${name} PROPERTIES PROCESSORS 2)
        test_needs(${name} ${program})
    else()
        skipped_test(${name} "no MPI in this build, or no mpirun")
    endif()
    set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 300)
endfunction()
function(comm_mpi_test name ranks case)
    mpi_test(${name} ${ranks} comm_mpi_ranks ${case})
endfunction()
foreach(ranks 2 3 4)
    comm_mpi_test(comm_mpi_${ranks} ${ranks} cases)
endforeach()
comm_mpi_test(comm_mpi_device 3 device)
comm_mpi_test(comm_mpi_unordered 3 unordered)
comm_mpi_test(comm_mpi_started_calls_move_while_nobody_waits 3 travels)
comm_mpi_test(comm_mpi_a_rank_waits_in_one_group_and_moves_in_another 2 groups)
comm_mpi_test(comm_mpi_patience_takes_no_core 3 patience)
comm_mpi_test(comm_mpi_patience_ends_with_a_failed_rank 3 patience_ends)
comm_mpi_test(comm_mpi_mismatch_names_both_calls 3 mismatch)
comm_mpi_test(comm_mpi_message_mismatch_names_both_sides 2 message)
comm_mpi_test(comm_mpi_abort_names_the_rank 3 abort)
if(MPI_C_FOUND AND MPIRUN AND NOT CAMBIUM_SANITIZE)
    set_tests_properties(comm_mpi_patience_ends_with_a_failed_rank PROPERTIES TIMEOUT 30 PASS_REGULAR_EXPRESSION
        "rank 1 failed: it was told to")
    set_tests_properties(comm_mpi_mismatch_names_both_calls PROPERTIES PASS_REGULAR_EXPRESSION
        "rank 0 all-reduce .sum. of 8 fp32, rank 2 all-gather of 8 fp32")
    set_tests_properties(comm_mpi_message_mismatch_names_both_sides PROPERTIES PASS_REGULAR_EXPRESSION
        "rank 0 sends 8 fp32 to rank 1, which receives 9 int32")
    set_tests_properties(comm_mpi_abort_names_the_rank PROPERTIES PASS_REGULAR_EXPRESSION "rank 1 failed: it was told to")
endif()
