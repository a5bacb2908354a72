# The programs of the rooms' tests. A group is one file tests/ROOM/NAME_test.c with a main of its own: CTest runs it as
# ROOM_NAME_test, in its own process. The groups of a room are one program, ROOM_tests, which compiles and links them
# once; its only word names the group that runs. A target with a test's name builds what that test runs.

add_custom_target(unit_tests)

# test_needs(NAME TARGETS...): `ninja NAME` builds these targets, which the test NAME runs.
function(test_needs name)
    if(NOT TARGET ${name})
        add_custom_target(${name})
    endif()
    list(REMOVE_ITEM ARGN ${name}) # some programs have their test's name
    if(ARGN)
        add_dependencies(${name} ${ARGN})
    endif()
endfunction()

# test_program(PROGRAM PREFIX FOLDER GROUPS...): FOLDER/GROUP_test.c of each group, which runs as PREFIX_GROUP_test.
function(test_program program prefix folder)
    set(rows "")
    set(sources "")
    foreach(group ${ARGN})
        set(source ${folder}/${group}_test.c)
        list(APPEND sources ${source})
        string(APPEND rows "GROUP(${prefix}_${group}_test)\n")
        set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS main=${prefix}_${group}_test)
    endforeach()
    set(rows_folder ${CMAKE_CURRENT_BINARY_DIR}/groups/${program})
    file(CONFIGURE OUTPUT ${rows_folder}/groups.inc CONTENT "${rows}" @ONLY)
    add_executable(${program} ${sources} ${here}/support/groups.c)
    target_include_directories(${program} PRIVATE ${rows_folder})
    target_link_libraries(${program} PRIVATE test_support)
endfunction()

# group_test(NAME PROGRAM GROUP LABEL): the test NAME, which runs a group of a program.
function(group_test name program group label)
    add_test(NAME ${name} COMMAND ${program} ${group})
    set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 3000) # the whole suites under sanitizers
    set_property(GLOBAL PROPERTY program_of_${name} ${program})
    test_needs(${name} ${program})
endfunction()

# run_again(NAME TEST): the test NAME, which runs the same group as TEST does.
function(run_again name test)
    get_property(program GLOBAL PROPERTY program_of_${test})
    group_test(${name} ${program} ${test} unit)
endfunction()

# room_tests(ROOM [WITHOUT NAMES...] [INSIDE NAMES...] [SEPARATE NAMES...] [LINKS LIBRARIES...]): every NAME_test.c of
# tests/ROOM but those of WITHOUT. The groups INSIDE include the room's own headers. The groups SEPARATE each have a
# program ROOM_NAME_tests, for link options and sources that the others must not have. Groups with failing allocations
# (allocation_test and NAME_allocation_test) are a second program, as `failing` replaces malloc.
function(room_tests room)
    cmake_parse_arguments(arg "" "" "WITHOUT;INSIDE;SEPARATE;LINKS" ${ARGN})
    cambium_room_entry(${room} folder knows)
    file(GLOB groups CONFIGURE_DEPENDS RELATIVE ${here}/${room} ${here}/${room}/*_test.c)
    list(TRANSFORM groups REPLACE "_test\\.c$" "")
    set(together "")
    set(allocation "")
    foreach(group ${groups})
        set(program ${room}_tests)
        if(group IN_LIST arg_WITHOUT OR (group MATCHES "allocation$" AND NOT TARGET failing))
            continue()
        elseif(group IN_LIST arg_SEPARATE)
            set(program ${room}_${group}_tests)
            test_program(${program} ${room} ${here}/${room} ${group})
            list(APPEND programs ${program})
        elseif(group MATCHES "allocation$")
            list(APPEND allocation ${group})
            set(program ${room}_allocation_tests)
        else()
            list(APPEND together ${group})
        endif()
        list(APPEND tests ${room}_${group}_test ${program} ${here}/${room}/${group}_test.c)
    endforeach()
    if(together)
        test_program(${room}_tests ${room} ${here}/${room} ${together})
        list(APPEND programs ${room}_tests)
    endif()
    if(allocation)
        test_program(${room}_allocation_tests ${room} ${here}/${room} ${allocation})
        list(APPEND programs ${room}_allocation_tests)
    endif()
    foreach(program ${programs})
        if(program MATCHES "allocation_tests$")
            target_link_libraries(${program} PRIVATE failing)
        endif()
        target_link_libraries(${program} PRIVATE ${room} PkgConfig::JANSSON ZLIB::ZLIB ${arg_LINKS})
        add_dependencies(unit_tests ${program})
    endforeach()
    foreach(group ${arg_INSIDE})
        set_property(SOURCE ${here}/${room}/${group}_test.c APPEND PROPERTY INCLUDE_DIRECTORIES ${folder})
    endforeach()
    while(tests)
        list(POP_FRONT tests name program source)
        group_test(${name} ${program} ${name} unit)
        add_long_label(${name} ${source})
        if(CAMBIUM_SANITIZE STREQUAL "thread")
            set_tests_properties(${name} PROPERTIES ENVIRONMENT ${thread_suppressions})
        endif()
    endwhile()
endfunction()

# wrap(PROGRAM FUNCTIONS...): the program's own __wrap_FUNCTION stands in the place of each function.
function(wrap program)
    list(TRANSFORM ARGN PREPEND "-Wl,--wrap=" OUTPUT_VARIABLE options)
    target_link_options(${program} PRIVATE ${options})
endfunction()
