room_tests(tasks)
