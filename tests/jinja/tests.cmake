room_tests(jinja INSIDE cost)
