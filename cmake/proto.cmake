# cambium_proto(TARGET NAME): compiles proto/NAME.proto by protoc-c into the build tree and adds it to TARGET, whose sources
# include it as "NAME.pb-c.h". Generated code is not held to our warnings.
find_program(PROTOC_C protoc-c REQUIRED)
function(cambium_proto target name)
    set(out ${PROJECT_BINARY_DIR}/proto/${name})
    file(MAKE_DIRECTORY ${out})
    add_custom_command(
        OUTPUT ${out}/${name}.pb-c.c ${out}/${name}.pb-c.h
        COMMAND ${PROTOC_C} --c_out=${out} -I ${PROJECT_SOURCE_DIR}/proto ${PROJECT_SOURCE_DIR}/proto/${name}.proto
        DEPENDS ${PROJECT_SOURCE_DIR}/proto/${name}.proto
        VERBATIM)
    set_source_files_properties(${out}/${name}.pb-c.c PROPERTIES COMPILE_OPTIONS -w)
    target_sources(${target} PRIVATE ${out}/${name}.pb-c.c ${out}/${name}.pb-c.h)
    target_include_directories(${target} SYSTEM PRIVATE ${out})
endfunction()
