# A room is one static library. Its include path holds the public headers of the rooms that it may know and nothing
# else, so that a forbidden include does not compile: build/include/ROOM/ROOM/*.h are links to the public headers, and
# "*-internal.h" stays inside the room.

# cambium_view(VIEW DIRECTORY PREFIX HEADERS...): makes an include path with just HEADERS under PREFIX/.
function(cambium_view view directory prefix)
    set(root ${PROJECT_BINARY_DIR}/include/${view})
    file(REMOVE_RECURSE ${root})
    file(MAKE_DIRECTORY ${root}/${prefix})
    foreach(header ${ARGN})
        file(CREATE_LINK ${directory}/${header} ${root}/${prefix}/${header} SYMBOLIC)
    endforeach()
endfunction()

# cambium_room(NAME DIRECTORY KNOWS rooms... LINKS libraries...)
function(cambium_room name directory)
    cmake_parse_arguments(ROOM "" "" "KNOWS;LINKS" ${ARGN})
    file(GLOB sources CONFIGURE_DEPENDS ${directory}/*.c)
    file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${directory} ${directory}/*.h)
    list(FILTER headers EXCLUDE REGEX "internal\\.h$")
    cambium_view(${name} ${directory} ${name} ${headers})
    add_library(${name} STATIC ${sources})
    target_include_directories(${name} INTERFACE ${PROJECT_BINARY_DIR}/include/${name})
    target_include_directories(${name} PRIVATE ${PROJECT_BINARY_DIR}/include/${name})
    target_link_libraries(${name} PUBLIC cambium_options ${ROOM_KNOWS} PRIVATE ${ROOM_LINKS})
endfunction()
