room_tests(grammar WITHOUT schema INSIDE report regex)
