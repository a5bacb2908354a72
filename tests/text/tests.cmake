room_tests(text INSIDE added regex scan)
