# The rooms of the house, from the ground up: name, folder, and the rooms that it knows (docs/reading.md says what each
# is for). What those know, it may use as well. A header in the place of a room: of that room this header alone.
# This list is the only one. The build takes include paths from it, tests/commands/house_test.py its rules.
set(CAMBIUM_ROOMS
    "base       src/base       -"
    "kernels    kernels        base"
    "config     src/config     base"
    "comm       src/comm       base kernels/device.h"
    "tensor     src/tensor     base kernels"
    "unicode    src/unicode    base"
    "jinja      src/jinja      unicode"
    "text       src/text       jinja"
    "parallel   src/parallel   tensor comm"
    "data       src/data       text config comm"
    "model      src/model      parallel config"
    "optim      src/optim      parallel"
    "ckpt       src/ckpt       tensor comm text"
    "pretrained src/pretrained model ckpt"
    "train      src/train      pretrained data optim"
    "peft       peft           pretrained"
    "infer      src/infer      pretrained text peft"
    "http       serve/http     base"
    "serve      serve          http infer"
    "jobs       src/jobs       infer data"
    "bench      bench          train serve"
    "commands   src/commands   bench jobs"
)

# cambium_room_entry(NAME FOLDER KNOWS): looks a room up; its folder and what it knows go into these two variables.
function(cambium_room_entry name folder knows)
    foreach(entry ${CAMBIUM_ROOMS})
        string(REGEX REPLACE " +" ";" words "${entry}")
        list(POP_FRONT words entry_name entry_folder)
        if(entry_name STREQUAL name)
            if(NOT IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${entry_folder})
                message(FATAL_ERROR "the room ${name} has no folder ${entry_folder}: see cmake/rooms.cmake")
            endif()
            list(REMOVE_ITEM words "-")
            set(${folder} ${PROJECT_SOURCE_DIR}/${entry_folder} PARENT_SCOPE)
            set(${knows} ${words} PARENT_SCOPE)
            return()
        endif()
    endforeach()
    message(FATAL_ERROR "no room is called ${name}: see cmake/rooms.cmake")
endfunction()
