# activation_memory has its own mmap, as builds with a sanitizer do.
set(without "")
if(CAMBIUM_SANITIZE)
    set(without activation_memory)
endif()
# layers runs what a model is made of. Golden vectors are model directories, which need ckpt.
room_tests(model INSIDE layers SEPARATE activation_memory WITHOUT ${without} LINKS tiny_model ckpt)
