# A room is one static library. Its include path holds the public headers of the rooms that it may know and nothing
# else, so that a forbidden include does not compile: build/include/ROOM/ROOM/*.h are links to the public headers, and
# "*-internal.h" stays inside the room.
include(${CMAKE_CURRENT_LIST_DIR}/rooms.cmake)

# cambium_view(VIEW DIRECTORY PREFIX HEADERS...): makes an include path with just HEADERS under PREFIX/.
function(cambium_view view directory prefix)
    set(root ${PROJECT_BINARY_DIR}/include/${view})
    file(REMOVE_RECURSE ${root})
    file(MAKE_DIRECTORY ${root}/${prefix})
    foreach(header ${ARGN})
        file(CREATE_LINK ${directory}/${header} ${root}/${prefix}/${header} SYMBOLIC)
    endforeach()
endfunction()

# cambium_room_knows(TARGET NAME): TARGET may include what the room NAME may.
function(cambium_room_knows target name)
    cambium_room_entry(${name} folder knows)
    foreach(known ${knows})
        if(known MATCHES "^([a-z]+)/(.+)$") # a header alone: the room is linked, its include path is not taken
            set(room ${CMAKE_MATCH_1})
            set(header ${CMAKE_MATCH_2})
            cambium_room_entry(${room} room_folder ignored)
            list(APPEND alone_${room} ${header})
            cambium_view(${name}-${room} ${room_folder} ${room} ${alone_${room}})
            target_include_directories(${target} PUBLIC ${PROJECT_BINARY_DIR}/include/${name}-${room})
            target_link_libraries(${target} PRIVATE $<LINK_ONLY:${room}>)
        else()
            target_link_libraries(${target} PUBLIC ${known})
        endif()
    endforeach()
endfunction()

# cambium_room(NAME LINKS libraries...): the library of a room that cmake/rooms.cmake names.
function(cambium_room name)
    cmake_parse_arguments(ROOM "" "" "LINKS" ${ARGN})
    cambium_room_entry(${name} directory knows)
    file(GLOB sources CONFIGURE_DEPENDS ${directory}/*.c)
    file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${directory} ${directory}/*.h)
    list(FILTER headers EXCLUDE REGEX "internal\\.h$")
    cambium_view(${name} ${directory} ${name} ${headers})
    add_library(${name} STATIC ${sources})
    target_include_directories(${name} INTERFACE ${PROJECT_BINARY_DIR}/include/${name})
    target_include_directories(${name} PRIVATE ${PROJECT_BINARY_DIR}/include/${name})
    target_link_libraries(${name} PUBLIC cambium_options PRIVATE ${ROOM_LINKS})
    cambium_room_knows(${name} ${name})
endfunction()
