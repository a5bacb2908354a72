# The rooms of the house, from the ground up: name, folder, the rooms that it knows, and its purpose. A room may also use
# the rooms that those know. A header in the place of a room permits that header alone.
# This list is the only one: the build takes include paths from it, tests/commands/house_test.py its rules, and
# tools/rooms the picture in docs/README.md.
set(CAMBIUM_ROOMS
    "base       src/base       -"                     # errors, log, memory, files, clocks, random numbers
    "kernels    kernels        base"                  # devices: their memory, streams and numeric operations
    "config     src/config     base kernels/device.h" # options of a run, from one table of rows
    "comm       src/comm       base kernels/device.h kernels/handle.h" # groups of ranks and their collectives
    "tensor     src/tensor     base kernels"          # the parameter table, and how values are stored
    "unicode    src/unicode    base"                  # tables of characters
    "jinja      src/jinja      unicode"               # the language of chat templates
    "grammar    src/grammar    unicode"               # constraints on what a model writes
    "text       src/text       jinja grammar"         # tokenizers and chats
    "tasks      src/tasks      unicode"               # benchmarks: texts of their rows, and metrics
    "parallel   src/parallel   tensor comm"           # the rank grid, the one linear, pipelines, gradient sync
    "data       src/data       text config comm"      # corpora and tuning rows, as samples
    "model      src/model      parallel config"       # the transformer, forward and backward; its families
    "optim      src/optim      parallel"              # AdamW and learning-rate schedules
    "ckpt       src/ckpt       tensor comm text"      # safetensors, model directories, checkpoints
    "pretrained src/pretrained model ckpt"            # a model directory, opened
    "convert    src/convert    pretrained"            # models and checkpoints, from one form into another
    "train      src/train      pretrained data optim" # the trainer, its memory plan, its saves
    "peft       peft           pretrained"            # adapters: methods, files, and a bank that mixes them
    "infer      src/infer      text peft train"        # the engine and its scheduler; sampling; tuning runs
    "openai     src/openai     infer"                 # OpenAI's requests and answers, without their transport
    "http       serve/http     base"                  # sockets, TLS, HTTP/1 and HTTP/2
    "serve      serve          http openai"           # the server: protocols, calls, adapters by name
    "jobs       src/jobs       openai train tasks"    # offline work: requests from a file, scoring, proofs
    "planner    src/planner    train infer"           # what a layout costs on a cluster
    "bench      bench          train serve planner"   # speed and memory, measured
    "commands   src/commands   bench jobs convert"    # one file a subcommand: options in, results out
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
