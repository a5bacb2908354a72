room_tests(optim)
