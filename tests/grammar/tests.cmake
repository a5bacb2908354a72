room_tests(grammar INSIDE deadline report regex)
