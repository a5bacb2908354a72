# NAME_test.py drives the program itself.

# Commands that .ci/run has under AddressSanitizer too (label sanitized): they take hostile input. `tools/test --long` has
# all commands.
set(sanitized_commands bad_input serve_attack serve_bodies serve_transport requests messages preprocess)

set(environment "CAMBIUM=$<TARGET_FILE:cambium>" "CAMBIUM_SOURCE=${PROJECT_SOURCE_DIR}")
# command_needs(VARIABLE TARGET): the variable of the environment that names a file which tests of commands use.
function(command_needs variable target)
    set(environment ${environment} "${variable}=$<TARGET_FILE:${target}>" PARENT_SCOPE)
    set(needs ${needs} ${target} PARENT_SCOPE)
endfunction()
set(needs cambium)

# Preloaded into the program, it fails the allocation that the environment names. ThreadSanitizer wants malloc for itself.
if(NOT CAMBIUM_SANITIZE STREQUAL "thread")
    add_library(failing_preload MODULE ${here}/support/failing/allocator.c)
    target_include_directories(failing_preload PRIVATE ${here})
    target_compile_definitions(failing_preload PRIVATE _GNU_SOURCE _FILE_OFFSET_BITS=64)
    target_compile_options(failing_preload PRIVATE -Wall -Wextra -Werror -fno-builtin)
    command_needs(CAMBIUM_INJECTOR failing_preload)
endif()
# The same for the opening of a file. A sanitizer must be the first library.
if(NOT CAMBIUM_SANITIZE)
    add_library(fail_open MODULE ${here}/support/failing/open.c)
    target_compile_definitions(fail_open PRIVATE _GNU_SOURCE)
    target_compile_options(fail_open PRIVATE -Wall -Wextra -Werror)
    target_link_libraries(fail_open PRIVATE ${CMAKE_DL_LIBS})
    command_needs(CAMBIUM_FAIL_OPEN fail_open)
    # Watches what becomes of names in a directory, and kills the program before the call that the environment names.
    add_library(calls_preload MODULE ${here}/support/failing/calls.c)
    target_compile_definitions(calls_preload PRIVATE _GNU_SOURCE)
    target_compile_options(calls_preload PRIVATE -Wall -Wextra -Werror)
    target_link_libraries(calls_preload PRIVATE Threads::Threads)
    command_needs(CAMBIUM_CALLS calls_preload)
    if(MPI_C_FOUND) # changes a number that a rank passes on
        add_library(message_preload MODULE ${here}/support/failing/message.c)
        target_compile_options(message_preload PRIVATE -Wall -Wextra -Werror)
        target_link_libraries(message_preload PRIVATE MPI::MPI_C m)
        command_needs(CAMBIUM_MESSAGES message_preload)
    endif()
else()
    list(APPEND environment "CAMBIUM_SANITIZED=${CAMBIUM_SANITIZE}")
endif()
if(CAMBIUM_SANITIZE STREQUAL "thread")
    list(APPEND environment ${thread_suppressions})
endif()

# The transport of the server with services for tests, which clients of every kind are let loose upon.
file(GLOB interop_sources CONFIGURE_DEPENDS ${here}/serve/interop_*.c)
add_executable(serve_interop_server ${interop_sources})
target_include_directories(serve_interop_server PRIVATE ${here}/serve)
target_link_libraries(serve_interop_server PRIVATE serve PkgConfig::EVENT PkgConfig::JANSSON)
cambium_proto(serve_interop_server interop_grpc ${here}/serve)
command_needs(CAMBIUM_INTEROP_SERVER serve_interop_server)

# The backend `cuda` on drivers that show faults, and where the program finds these.
if(CAMBIUM_HAS_CUDA)
    list(APPEND environment "CAMBIUM_FAKE_DRIVERS=${CMAKE_CURRENT_BINARY_DIR}/cuda/fakes"
        "CAMBIUM_CUDA_STANDIN=${CMAKE_CURRENT_BINARY_DIR}/cuda/lib")
    command_needs(CAMBIUM_COMM_RANKS comm_mpi_ranks)
    list(APPEND needs cuda_libraries)
endif()

file(GLOB scripts CONFIGURE_DEPENDS ${here}/commands/*_test.py)
foreach(script ${scripts})
    get_filename_component(name ${script} NAME_WE)
    add_test(NAME commands_${name} COMMAND ${Python3_EXECUTABLE} -B ${here}/support/run.py ${script})
    set_tests_properties(commands_${name} PROPERTIES LABELS command TIMEOUT 1800 SKIP_RETURN_CODE 77 ENVIRONMENT "${environment}")
    test_needs(commands_${name} ${needs})
    add_long_label(commands_${name} ${script})
    string(REGEX REPLACE "_test$" "" command ${name})
    if(command IN_LIST sanitized_commands)
        set_property(TEST commands_${name} APPEND PROPERTY LABELS sanitized)
    endif()
endforeach()
set_tests_properties(commands_allocation_test PROPERTIES TIMEOUT 7200) # each allocation of every command, where all run
