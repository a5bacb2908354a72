# The golden vectors of adapters, also for the engine's tests.
add_library(peft_golden STATIC ${here}/peft/golden.c)
target_link_libraries(peft_golden PUBLIC test_support peft PRIVATE PkgConfig::JANSSON)

room_tests(peft SEPARATE runners INSIDE methods LINKS tiny_model peft_golden optim) # training an adapter takes an optimizer
wrap(peft_runners_tests device_alloc device_alloc_zeroed) # it counts what is allocated
foreach(group frozen kept) # they stand between a rank and its group
    set_property(SOURCE ${here}/peft/${group}_test.c APPEND PROPERTY INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/src/comm)
endforeach()
