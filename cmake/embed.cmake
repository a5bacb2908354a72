# cambium_embed(TARGET FILE): TARGET's sources can include FILE's bytes, as numbers with commas, from "NAME.inc". Run by itself
# (-DIN= -DOUT=) it writes them.
if(DEFINED OUT)
    file(READ ${IN} bytes HEX)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
    string(REGEX REPLACE "((0x..,)(0x..,)(0x..,)(0x..,)(0x..,)(0x..,)(0x..,)(0x..,))" "\\1\n" bytes "${bytes}")
    file(WRITE ${OUT} "${bytes}\n")
    return()
endif()

set(CAMBIUM_EMBED ${CMAKE_CURRENT_LIST_FILE})
function(cambium_embed target file)
    get_filename_component(name ${file} NAME)
    set(out ${PROJECT_BINARY_DIR}/embedded/${target}/${name}.inc)
    add_custom_command(OUTPUT ${out} COMMAND ${CMAKE_COMMAND} -DIN=${file} -DOUT=${out} -P ${CAMBIUM_EMBED}
        DEPENDS ${file} ${CAMBIUM_EMBED} VERBATIM)
    target_sources(${target} PRIVATE ${out})
    set_source_files_properties(${out} PROPERTIES HEADER_FILE_ONLY ON)
    target_include_directories(${target} PRIVATE ${PROJECT_BINARY_DIR}/embedded/${target})
endfunction()
