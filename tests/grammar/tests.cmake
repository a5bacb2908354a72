room_tests(grammar INSIDE report regex)
