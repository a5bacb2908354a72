# cambium_proto(TARGET PATH [FOLDER]): compiles FOLDER/PATH.proto (proto/ where none is given) by protoc-c into the build
# tree and adds it to TARGET, whose sources include it as "NAME.pb-c.h". Generated code is not held to our warnings.
find_program(PROTOC_C protoc-c REQUIRED)
function(cambium_proto target path)
    set(source ${PROJECT_SOURCE_DIR}/proto/${path}.proto)
    if(ARGC GREATER 2)
        set(source ${ARGV2}/${path}.proto)
    endif()
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(name ${source} NAME_WE)
    set(out ${PROJECT_BINARY_DIR}/proto/${path})
    file(MAKE_DIRECTORY ${out})
    add_custom_command(
        OUTPUT ${out}/${name}.pb-c.c ${out}/${name}.pb-c.h
        COMMAND ${PROTOC_C} --c_out=${out} -I ${folder} ${source}
        DEPENDS ${source}
        VERBATIM)
    set_source_files_properties(${out}/${name}.pb-c.c PROPERTIES COMPILE_OPTIONS -w)
    target_sources(${target} PRIVATE ${out}/${name}.pb-c.c ${out}/${name}.pb-c.h)
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
