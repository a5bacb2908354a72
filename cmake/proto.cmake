# cambium_proto(TARGET PATH [FOLDER]): compiles FOLDER/PATH.proto (proto/ where none is given) by protoc-c into the build
# tree and adds it to TARGET, whose sources include it as "PATH.pb-c.h". What it imports stands beneath the same folder, and
# is compiled for TARGET as well. Generated code is not held to our warnings.
find_program(PROTOC_C protoc-c REQUIRED)
function(cambium_proto target path)
    set(folder ${PROJECT_SOURCE_DIR}/proto)
    if(ARGC GREATER 2)
        set(folder ${ARGV2})
    endif()
    set(out ${PROJECT_BINARY_DIR}/proto)
    file(MAKE_DIRECTORY ${out})
    add_custom_command(
        OUTPUT ${out}/${path}.pb-c.c ${out}/${path}.pb-c.h
        COMMAND ${PROTOC_C} --c_out=${out} -I ${folder} ${folder}/${path}.proto
        DEPENDS ${folder}/${path}.proto
        VERBATIM)
    set_source_files_properties(${out}/${path}.pb-c.c PROPERTIES COMPILE_OPTIONS -w)
    target_sources(${target} PRIVATE ${out}/${path}.pb-c.c ${out}/${path}.pb-c.h)
    target_include_directories(${target} SYSTEM PRIVATE ${out})
endfunction()

# cambium_descriptors(TARGET NAME PATHS...): the descriptors of proto/PATH.proto, as a FileDescriptorSet whose bytes
# TARGET's sources can include from "NAME.bin.inc".
function(cambium_descriptors target name)
    set(out ${PROJECT_BINARY_DIR}/proto/${name}.bin)
    set(sources ${ARGN})
    list(TRANSFORM sources APPEND .proto)
    set(paths ${sources})
    list(TRANSFORM paths PREPEND ${PROJECT_SOURCE_DIR}/proto/)
    add_custom_command(
        OUTPUT ${out}
        COMMAND ${PROTOC_C} --descriptor_set_out=${out} --include_imports -I ${PROJECT_SOURCE_DIR}/proto ${sources}
        DEPENDS ${paths}
        VERBATIM)
    cambium_embed(${target} ${out})
endfunction()
