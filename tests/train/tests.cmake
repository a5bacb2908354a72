room_tests(train INSIDE bytes fp8 opening LINKS tiny_model)
